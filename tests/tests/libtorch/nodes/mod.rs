//! `enn train` on several nodes with the real worker: workers, nodes and the head die, nodes come, are drained and cut off, and
//! the run goes on.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.
//! Networks with cables are in `tests/namespaces/nodes.rs`.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

mod faults;
mod gaps;
mod takeover;

use enn_common::event::EventKind;
use enn_tests::{
    launch,
    nodes::{Agents, kill_9},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    process::Command,
    time::{Duration, Instant},
};

/// A node that is silent is lost after 5 s; the others do a step soon after that.
const CUT_NOTICED_MAX: Duration = Duration::from_secs(12);

#[test]
fn two_nodes_end_with_the_bits_of_one_also_when_a_worker_of_the_other_node_dies() {
    let mut agents = Agents::new("2", 12, None);
    [1, 2].into_iter().for_each(|node| agents.start(node));
    agents.working(2, 10);
    kill_9(agents.worker(2));
    assert_eq!((agents.end(1), agents.end(2)), (Some(0), Some(0)), "{}", agents.told());
    let events = agents.events();
    let killed = |what: &EventKind| matches!(what, EventKind::WorkerExited { signal: Some(9), .. });
    assert!(events.iter().any(killed), "{}", agents.told());
    let lost = |what: &EventKind| matches!(what, EventKind::Recovered { lost_steps: 0, .. });
    assert!(events.iter().any(lost), "{}", agents.told());
    agents.every_row_once_per_epoch();
    agents.nothing_is_left();
    assert!(agents.weights() == agents.alone(2), "{}", agents.told());
}

/// Two nodes of two workers, on which the state is shared; no checkpoint before the end.
fn sharing(nnodes: &str, epochs: u64) -> Agents<'static> {
    let flags =
        ["--set", "train.strategy=hsdp", "--set", "train.bucket_mib=0.01", "--set", "train.checkpoint_every=100000"];
    Agents::new(nnodes, epochs, None).of(2).with(&flags)
}

fn decided(agents: &Agents<'_>, begins: &str) -> usize {
    let is = |what: &&EventKind| matches!(what, EventKind::Decided { decision } if decision.starts_with(begins));
    agents.events().iter().filter(is).count()
}

#[test]
fn what_a_dead_worker_had_of_a_shared_state_comes_from_the_other_node_and_no_bit_changes() {
    let mut undisturbed = sharing("2", 12);
    [1, 2].into_iter().for_each(|node| undisturbed.start(node));
    assert_eq!((undisturbed.end(1), undisturbed.end(2)), (Some(0), Some(0)), "{}", undisturbed.told());
    assert_eq!(
        decided(&undisturbed, "strategy hsdp: as asked, over 2 nodes of 2 workers"),
        1,
        "{}",
        undisturbed.told()
    );

    let mut agents = sharing("2", 12);
    [1, 2].into_iter().for_each(|node| agents.start(node));
    agents.working(4, 10);
    let pid = agents.worker(2);
    kill_9(pid);
    assert_eq!((agents.end(1), agents.end(2)), (Some(0), Some(0)), "{}", agents.told());
    let events = agents.events();
    let lost = |what: &EventKind| matches!(what, EventKind::Recovered { lost_steps: 0, from_rank: Some(_), .. });
    assert!(events.iter().any(lost), "{}", agents.told());
    let dead = events.iter().find_map(|what| match what {
        EventKind::WorkerExited { rank, signal: Some(9), .. } => Some(rank.0),
        _ => None,
    });
    let received: Vec<_> = events
        .iter()
        .filter_map(|what| match what {
            EventKind::StateReceived { rank, from, .. } => Some((Some(rank.0), Some(from.0 + 2))),
            _ => None,
        })
        .collect();
    assert_eq!(received, [(dead, dead)], "its place on the other node: {}", agents.told());
    assert_eq!(decided(&agents, "the state of step "), 1, "{}", agents.told());
    agents.every_row_once_per_epoch();
    agents.nothing_is_left();
    assert!(agents.weights() == undisturbed.weights(), "{}", agents.told());
}

#[test]
fn a_node_has_all_of_a_shared_state_when_the_other_dies_and_gives_it_to_the_next() {
    let mut agents = sharing("1:2", 2_000);
    [1, 2].into_iter().for_each(|node| agents.start(node));
    agents.working(4, 5);
    agents.kill(2);
    agents.working(2, agents.step() + 1);
    assert_eq!(decided(&agents, "strategy fsdp in place of hsdp: all workers are on one node"), 1, "{}", agents.told());
    agents.start(3);
    agents.working(4, agents.step() + 1);
    assert_eq!(decided(&agents, "strategy hsdp: as asked"), 2, "{}", agents.told());
    agents.signal(1, Signal::SIGINT);
    assert_eq!(agents.end(1), Some(130), "{}", agents.told());
    let events = agents.events();
    let steps =
        events.iter().filter_map(|what| if let EventKind::Stepped { step, .. } = what { Some(*step) } else { None });
    assert!(steps.collect::<Vec<_>>().is_sorted(), "{}", agents.told());
    let from_nothing = |what: &EventKind| matches!(what, EventKind::RoundFailed { .. });
    assert!(!events.iter().any(from_nothing), "{}", agents.told());
}

#[test]
fn a_node_that_dies_is_left_behind_and_one_that_comes_is_taken_in_and_drained() {
    let mut agents = Agents::new("1:2", 2_000, None);
    [1, 2].into_iter().for_each(|node| agents.start(node));
    agents.working(2, 5);
    let died = Instant::now();
    agents.kill(2);
    agents.working(1, agents.step() + 1);
    assert!(died.elapsed() < Duration::from_secs(6), "it took {:?}", died.elapsed());
    agents.start(3);
    agents.working(2, agents.step() + 1);
    let refused = agents.ask_in_vain(&["drain", "--node", "nowhere"]);
    assert!(refused.contains("127.0.0.1, 127.0.0.3") && refused.contains("nowhere"), "{refused}");
    assert!(agents.ask(&["drain", "--node", "127.0.0.3"]).contains("1 nodes go on"));
    assert_eq!(agents.end(3), Some(0), "{}", agents.printed(3));
    agents.working(1, agents.step() + 1);
    let status = agents.ask(&["status"]);
    assert!(status.contains("127.0.0.1") && status.contains("127.0.0.3"), "{status}");
    agents.stop(&[1]);
}

#[test]
fn when_the_head_dies_another_node_leads_and_no_step_is_lost() {
    let mut agents = Agents::new("2:3", 60, None);
    (1..=3).for_each(|node| agents.start(node));
    agents.working(3, 10);
    agents.kill(1);
    agents.working(2, agents.step() + 1);
    let codes = [agents.end(2), agents.end(3)];
    assert_eq!(codes, [Some(0); 2], "{}", agents.told());
    let recovered = |what: &EventKind| matches!(what, EventKind::Recovered { lost_steps: 0, from_rank: Some(_), .. });
    assert!(agents.events().iter().any(recovered), "{}", agents.told());
    agents.every_row_once_per_epoch();
    agents.nothing_is_left();
}

/// Nothing began anew from a checkpoint, and no step was done twice.
fn went_on(agents: &Agents<'_>) {
    let events = agents.events();
    let anew = |what: &EventKind| matches!(what, EventKind::RoundFailed { .. });
    assert!(!events.iter().any(anew), "{}", agents.told());
    let steps =
        events.iter().filter_map(|what| if let EventKind::Stepped { step, .. } = what { Some(*step) } else { None });
    assert!(steps.collect::<Vec<_>>().is_sorted_by(|a, b| a < b), "{}", agents.told());
    agents.every_row_once_per_epoch();
    agents.nothing_is_left();
}

#[test]
fn the_shares_of_a_state_are_known_to_the_node_that_leads_when_the_head_dies() {
    let mut agents = sharing("2:3", 12);
    (1..=3).for_each(|node| agents.start(node));
    agents.working(6, 5);
    agents.kill(1);
    assert_eq!([agents.end(2), agents.end(3)], [Some(0); 2], "{}", agents.told());
    let events = agents.events();
    let recovered = |what: &EventKind| matches!(what, EventKind::Recovered { lost_steps: 0, from_rank: Some(_), .. });
    assert!(events.iter().any(recovered), "{}", agents.told());
    assert_eq!(decided(&agents, "the state of step "), 1, "{}", agents.told());
    went_on(&agents);
}

#[test]
fn a_share_that_died_with_the_head_sends_all_to_the_checkpoint_and_that_is_told() {
    let mut agents = Agents::new("2:3", 12, None).with(&["--set", "train.strategy=fsdp"]);
    (1..=3).for_each(|node| agents.start(node));
    agents.working(3, 30);
    agents.kill(1);
    assert_eq!([agents.end(2), agents.end(3)], [Some(0); 2], "{}", agents.told());
    let events = agents.events();
    let anew = |what: &EventKind| matches!(what, EventKind::RoundFailed { restarting: true, .. });
    assert!(events.iter().any(anew), "{}", agents.told());
    let recovered = |what: &EventKind| matches!(what, EventKind::Recovered { from_rank: None, .. });
    assert!(events.iter().any(recovered), "{}", agents.told());
    assert_eq!(decided(&agents, "the state comes from the checkpoint"), 1, "{}", agents.told());
    agents.every_row_once_per_epoch();
    agents.nothing_is_left();
}

#[test]
fn the_node_that_leads_is_drained_and_another_one_leads() {
    let mut agents = Agents::new("1:3", 20_000, None);
    (1..=3).for_each(|node| agents.start(node));
    agents.working(3, 5);
    assert!(agents.ask(&["drain", "--node", "127.0.0.1"]).contains("another node leads, and 2 nodes go on"));
    assert_eq!(agents.end(1), Some(0), "{}", agents.told());
    agents.until("a new head", |events| {
        let began = |what: &EventKind| matches!(what, EventKind::RunStarted { .. });
        (events.iter().filter(|what| began(what)).count() == 2).then_some(())
    });
    // What is asked of the new head before its first round holds for that.
    let leads = agents.leader(&[2, 3]);
    agents.ask(&["pause"]);
    agents.paused();
    // A run that is paused is handed over as such.
    let last = 5 - leads;
    agents.ask(&["drain", "--node", &agents.host(leads)]);
    assert_eq!(agents.end(leads), Some(0), "{}", agents.told());
    agents.until("another pause", |events| {
        let paused = |what: &EventKind| matches!(what, EventKind::Paused { .. });
        (events.iter().filter(|what| paused(what)).count() == 2).then_some(())
    });
    agents.ask(&["continue"]);
    agents.working(1, agents.step() + 1);
    assert!(agents.ask_in_vain(&["drain", "--node", &agents.host(last)]).contains("0 nodes would be left"));
    agents.ask(&["stop"]);
    assert_eq!(agents.end(last), Some(130), "{}", agents.told());
    let events = agents.events();
    let failed = |what: &EventKind| {
        matches!(what, EventKind::RoundFailed { .. } | EventKind::Recovered { .. } | EventKind::GaveUp { .. })
    };
    assert!(!events.iter().any(failed), "{}", agents.told());
    agents.nothing_is_left();
}

#[test]
fn a_node_is_drained_while_the_run_is_paused() {
    let mut agents = Agents::new("1:2", 20_000, None);
    [1, 2].into_iter().for_each(|node| agents.start(node));
    agents.working(2, 5);
    agents.ask(&["pause"]);
    agents.paused();
    agents.ask(&["drain", "--node", "127.0.0.2"]);
    assert_eq!(agents.end(2), Some(0), "{}", agents.told());
    agents.ask(&["continue"]);
    agents.working(1, agents.step() + 1);
    agents.stop(&[1]);
}

#[test]
fn a_shared_state_is_whole_where_the_lead_is_handed_over() {
    let mut agents = Agents::new("2:3", 16, None).with(&["--set", "train.strategy=fsdp"]);
    (1..=3).for_each(|node| agents.start(node));
    agents.working(3, 5);
    let run = agents.run_dir().unwrap();
    let drained = Command::new(launch::enn()).args(["drain", "--node", "127.0.0.1"]).arg(run).output().unwrap();
    assert!(drained.status.success(), "{}", agents.told());
    assert_eq!([1, 2, 3].map(|node| agents.end(node)), [Some(0); 3], "{}", agents.told());
    went_on(&agents);
}

#[test]
fn a_run_that_waits_too_long_for_a_node_saves_and_ends_on_all() {
    let mut agents = Agents::new("3", 2_000, None).waiting(15);
    (1..=3).for_each(|node| agents.start(node));
    agents.working(3, 5);
    agents.kill(3);
    let codes = [agents.end(1), agents.end(2)];
    assert!(codes.iter().all(|code| code.is_some_and(|code| code != 0)), "{codes:?} {}", agents.told());
    assert!(
        agents.events().iter().any(|what| matches!(what, EventKind::CheckpointCommitted { .. })),
        "{}",
        agents.told()
    );
    agents.nothing_is_left();
}

#[test]
fn a_signal_on_any_node_stops_the_run_after_a_checkpoint() {
    let mut agents = Agents::new("2", 2_000, None);
    [1, 2].into_iter().for_each(|node| agents.start(node));
    agents.working(2, 5);
    agents.signal(2, Signal::SIGTERM);
    assert_eq!((agents.end(2), agents.end(1)), (Some(143), Some(143)), "{}", agents.told());
    assert!(
        agents.events().iter().any(|what| matches!(what, EventKind::CheckpointCommitted { .. })),
        "{}",
        agents.told()
    );
    agents.nothing_is_left();
}

#[test]
fn a_signal_to_all_nodes_at_once_is_one_wish() {
    let mut agents = Agents::new("3", 2_000, None);
    (1..=3).for_each(|node| agents.start(node));
    agents.working(3, 5);
    (1..=3).for_each(|node| agents.signal(node, Signal::SIGINT));
    assert_eq!([1, 2, 3].map(|node| agents.end(node)), [Some(130); 3], "{}", agents.told());
    let ended = |what: &EventKind| matches!(what, EventKind::WorkerExited { code: Some(0), .. });
    let ended = agents.events().iter().filter(|what| ended(what)).count();
    assert_eq!(ended, 3, "nobody is killed: {}", agents.told());
    agents.nothing_is_left();
}

#[test]
fn a_run_on_two_nodes_is_resized_paused_and_continued() {
    let mut agents = Agents::new("2", 20_000, None).with(&["--spares", "1"]);
    [1, 2].into_iter().for_each(|node| agents.start(node));
    agents.working(2, 5);
    agents.ask(&["resize", "3"]);
    agents.working(3, agents.step() + 1);
    agents.ask(&["pause"]);
    agents.paused();
    agents.ask(&["resize", "1"]);
    agents.ask(&["continue"]);
    agents.working(1, agents.step() + 1);
    agents.ask(&["resize", "2"]);
    agents.working(2, agents.step() + 1);
    agents.ask(&["stop"]);
    assert_eq!((agents.end(1), agents.end(2)), (Some(130), Some(130)), "{}", agents.told());
    let events = agents.events();
    let spares = events.iter().filter_map(|what| match what {
        EventKind::SpareEnded { code, signal, .. } => Some((*code, *signal)),
        _ => None,
    });
    // One that was still loading has not heard that it may end, and is ended by the signal.
    let in_peace = |end: &(Option<i32>, Option<i32>)| matches!(end, (Some(0), None) | (None, Some(15)));
    assert!(spares.collect::<Vec<_>>().iter().all(in_peace), "{}", agents.told());
    agents.nothing_is_left();
}

#[test]
fn a_worker_of_another_node_that_hangs_is_replaced() {
    let mut agents = Agents::new("2", 20_000, None).with(&["--hang-timeout", "3"]);
    [1, 2].into_iter().for_each(|node| agents.start(node));
    agents.working(2, 5);
    let hung = agents.worker(2);
    kill(Pid::from_raw(hung.cast_signed()), Signal::SIGSTOP).unwrap();
    let began = Instant::now();
    agents.until("a hang", |events| {
        events.iter().any(|what| matches!(what, EventKind::HangDetected { .. })).then_some(())
    });
    assert!((2.0..10.0).contains(&began.elapsed().as_secs_f64()), "it took {:?}", began.elapsed());
    agents.working(2, agents.step() + 1);
    assert_ne!(agents.worker(2), hung);
    agents.signal(1, Signal::SIGTERM);
    assert_eq!((agents.end(1), agents.end(2)), (Some(143), Some(143)), "{}", agents.told());
    agents.nothing_is_left();
}

#[test]
fn with_the_policy_restart_all_nodes_begin_again_from_the_newest_checkpoint() {
    let mut agents = Agents::new("2", 12, None).with(&["--policy", "restart"]);
    [1, 2].into_iter().for_each(|node| agents.start(node));
    agents.working(2, 30);
    kill_9(agents.worker(2));
    assert_eq!((agents.end(1), agents.end(2)), (Some(0), Some(0)), "{}", agents.told());
    let restarted = |what: &EventKind| matches!(what, EventKind::RoundFailed { restarting: true, .. });
    assert!(agents.events().iter().any(restarted), "{}", agents.told());
    agents.every_row_once_per_epoch();
    agents.nothing_is_left();
}

#[test]
fn a_pair_whose_head_dies_ends_and_says_so() {
    let mut agents = Agents::new("2", 2_000, None);
    [1, 2].into_iter().for_each(|node| agents.start(node));
    agents.working(2, 5);
    let died = Instant::now();
    agents.kill(1);
    assert_eq!(agents.end(2), Some(6), "{}", agents.told());
    assert!(died.elapsed() < Duration::from_secs(10), "it took {:?}", died.elapsed());
    assert!(agents.printed(2).contains("127.0.0.1"), "it names the endpoint: {}", agents.printed(2));
    agents.nothing_is_left();
}

#[test]
fn a_link_that_is_cut_for_long_loses_the_node_and_a_short_cut_loses_nothing() {
    let mut agents = Agents::new("1:2", 20_000, None);
    [1, 2].into_iter().for_each(|node| agents.start(node));
    let round = agents.working(2, 5);
    let cut = |node: &str| agents.ask(&["chaos", "--partition", node]);
    let refused = agents.ask_in_vain(&["chaos", "--partition", "127.0.0.1"]);
    assert!(refused.contains("expected a node that another one leads: 127.0.0.2"));
    assert!(cut("127.0.0.2:2s").contains("cut for 2 s"));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        assert_eq!(agents.working(2, agents.step() + 1), round, "{}", agents.told());
    }
    assert!(cut("127.0.0.2:30s").contains("cut for 30 s"));
    let cut = Instant::now();
    agents.working(1, agents.step() + 1);
    assert!(cut.elapsed() < CUT_NOTICED_MAX, "it took {:?}", cut.elapsed());
    assert_eq!(agents.end(2), Some(6), "{}", agents.printed(2));
    agents.signal(1, Signal::SIGTERM);
    assert_eq!(agents.end(1), Some(143), "{}", agents.told());
    agents.nothing_is_left();
}
