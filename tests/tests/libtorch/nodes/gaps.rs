//! Nodes do not hear each other for a while. In 0.1 that ended runs that could have gone on.

use enn_common::event::EventKind;
use enn_tests::nodes::{Agents, kill_9};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

fn working(nnodes: &str, nodes: u32) -> (Agents<'static>, u64) {
    let mut agents = Agents::new(nnodes, 20_000, None);
    (1..=nodes).for_each(|node| agents.start(node));
    let round = agents.working(nodes, 5);
    (agents, round)
}

/// For so long, and for some time after it, all go on in the round that they are in.
#[track_caller]
fn nothing_happens(agents: &Agents<'_>, nodes: u32, round: u64, time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time + Duration::from_secs(3) {
        assert_eq!(agents.working(nodes, agents.step() + 1), round, "{}", agents.told());
    }
    let lost = |what: &EventKind| matches!(what, EventKind::NodeLost { .. });
    assert!(!agents.events().iter().any(lost), "{}", agents.told());
}

/// All nodes save and end with a signal's code.
#[track_caller]
fn stops(mut agents: Agents<'_>, nodes: u32) {
    agents.signal(1, Signal::SIGTERM);
    let codes: Vec<_> = (1..=nodes).map(|node| agents.end(node)).collect();
    assert_eq!(codes, vec![Some(143); nodes as usize], "{}", agents.told());
    agents.nothing_is_left();
}

#[test]
fn a_network_gap_costs_a_run_of_fixed_size_nothing() {
    for seconds in [7, 15] {
        let (agents, round) = working("2", 2);
        agents.ask(&["chaos", "--partition", &format!("127.0.0.2:{seconds}s")]);
        nothing_happens(&agents, 2, round, Duration::from_secs(seconds));
        stops(agents, 2);
    }
}

#[test]
fn a_worker_that_dies_in_a_network_gap_is_replaced_after_it() {
    let (agents, round) = working("2", 2);
    agents.ask(&["chaos", "--partition", "127.0.0.2:8s"]);
    let dead = agents.worker(2);
    kill_9(dead);
    let again = agents.until("the next round at work", |_| {
        let next = agents.working(2, agents.step() + 1);
        (next != round).then_some(next)
    });
    assert_eq!(again, round + 1, "{}", agents.told());
    assert_ne!(agents.worker(2), dead);
    stops(agents, 2);
}

#[test]
fn a_launcher_that_does_not_run_for_seven_seconds_costs_nothing() {
    for node in [2, 1] {
        let (agents, round) = working("2", 2);
        agents.signal(node, Signal::SIGSTOP);
        std::thread::park_timeout(Duration::from_secs(7));
        agents.signal(node, Signal::SIGCONT);
        nothing_happens(&agents, 2, round, Duration::ZERO);
        stops(agents, 2);
    }
}

#[test]
fn a_node_that_was_left_behind_is_taken_in_when_it_comes_back() {
    let (agents, _) = working("1:2", 2);
    agents.ask(&["chaos", "--partition", "127.0.0.2:9s"]);
    agents.working(1, agents.step() + 1);
    agents.working(2, agents.step() + 1);
    let lost = |what: &EventKind| matches!(what, EventKind::NodeLost { .. });
    assert!(agents.events().iter().any(lost), "{}", agents.told());
    stops(agents, 2);
}
