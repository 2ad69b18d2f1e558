//! What people ask for around the death of the node that leads: what was accepted outlives it, and who asks while nobody leads is
//! answered by the next one, or told that none comes.

use enn_common::{
    checkpoint::{latest, name},
    event::EventKind,
};
use enn_tests::nodes::Agents;
use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, mkfifo},
};
use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

/// In a run of three nodes another one leads within so many seconds, and who asks meanwhile waits no longer.
const ASKED_MAX: Duration = Duration::from_secs(40);

/// Steps between those that are told, at most.
const UNTOLD_MAX: u64 = 2_000;

fn three(nnodes: &str) -> Agents<'static> {
    started(Agents::new(nnodes, 20_000, None))
}

/// Three nodes, and no checkpoint before the end.
fn unsaved() -> Agents<'static> {
    started(Agents::new("2:3", 20_000, None).with(&["--set", "train.checkpoint_every=100000"]))
}

fn started(mut agents: Agents<'static>) -> Agents<'static> {
    (1..=3).for_each(|node| agents.start(node));
    agents.working(3, 5);
    agents
}

/// A worker that stands still: no step is done, nothing is saved, until it is dropped.
struct Frozen(Pid);

impl Frozen {
    fn on(agents: &Agents<'_>, node: u32) -> Self {
        let pid = Pid::from_raw(agents.worker(node).cast_signed());
        kill(pid, Signal::SIGSTOP).unwrap();
        Self(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _gone = kill(self.0, Signal::SIGCONT);
    }
}

/// Asks the head, which dies before anything of it can be done.
fn asked_of_the_dead(agents: &mut Agents<'_>, wishes: &[&[&str]]) {
    let frozen = Frozen::on(agents, 2);
    wishes.iter().for_each(|words| _ = agents.ask(words));
    agents.kill(1);
    drop(frozen);
}

fn count(agents: &Agents<'_>, is: impl Fn(&EventKind) -> bool) -> usize {
    agents.events().iter().filter(|what| is(what)).count()
}

/// The nodes that are left have saved, and ended as after this signal, under another head.
fn stopped(mut agents: Agents<'_>, code: i32) {
    assert_eq!([agents.end(2), agents.end(3)], [Some(code); 2], "{}", agents.told());
    assert_eq!(count(&agents, |what| matches!(what, EventKind::RunStarted { .. })), 2, "{}", agents.told());
    let events = agents.events();
    let led = events.iter().rposition(|what| matches!(what, EventKind::RunStarted { .. })).unwrap();
    let asked = |what: &EventKind| matches!(what, EventKind::StopRequested { .. });
    let saved = |what: &EventKind| matches!(what, EventKind::CheckpointCommitted { .. });
    assert!(events[led..].iter().any(asked) && events[led..].iter().any(saved), "{}", agents.told());
    let steps = |what: &&EventKind| matches!(what, EventKind::Stepped { .. });
    assert!(events[led..].iter().filter(steps).count() <= 1, "it went on: {}", agents.told());
    agents.nothing_is_left();
}

#[test]
fn a_stop_that_was_accepted_outlives_the_head() {
    let mut agents = three("2:3");
    asked_of_the_dead(&mut agents, &[&["stop"]]);
    stopped(agents, 130);
}

#[test]
fn a_stop_holds_whenever_after_it_the_head_dies() {
    for wait_ms in [0, 30, 90, 200] {
        let mut agents = unsaved();
        agents.ask(&["stop"]);
        // While the workers finish their step, save, wait for the commit, or end.
        std::thread::park_timeout(Duration::from_millis(wait_ms));
        agents.kill(1);
        assert_eq!([agents.end(2), agents.end(3)], [Some(130); 2], "after {wait_ms} ms: {}", agents.told());
        let found = latest(&checkpoints(&agents)).found;
        assert!(found.is_some(), "after {wait_ms} ms: {}", agents.told());
        agents.nothing_is_left();
    }
}

fn checkpoints(agents: &Agents<'_>) -> PathBuf {
    agents.run_dir().unwrap().join("checkpoints")
}

/// A stop, in which the head is stuck in its last commit, when the shares of the `others` are written.
fn stuck_in_the_last_commit(agents: &mut Agents<'_>, others: &[u32]) {
    let frozen = Frozen::on(agents, 2);
    let round = agents.working(1 + others.len() as u32, 0);
    let head = agents.pid(1);
    // In whichever of these the head writes what makes shares a checkpoint, it waits for somebody who reads.
    let first = agents.step();
    for step in first..first + UNTOLD_MAX {
        let dir = checkpoints(agents).join(name::temporary(step, &format!("{round}-{head:x}")));
        fs::create_dir_all(&dir).unwrap();
        mkfifo(&dir.join(name::METADATA), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    }
    agents.ask(&["stop"]);
    drop(frozen);
    let written = || {
        let mut all = fs::read_dir(checkpoints(agents)).unwrap().flatten();
        all.any(|dir| others.iter().all(|&rank| dir.path().join(name::shard(rank)).exists()))
    };
    agents.until("the shares of the nodes that do not lead", |_| written().then_some(()));
    // Long enough to end, for who would.
    std::thread::park_timeout(Duration::from_millis(700));
}

#[test]
fn workers_that_stop_are_there_until_their_checkpoint_is_committed() {
    let mut agents = unsaved();
    stuck_in_the_last_commit(&mut agents, &[1, 2]);
    assert_eq!(count(&agents, |what| matches!(what, EventKind::CheckpointCommitted { .. })), 0, "{}", agents.told());
    agents.kill(1);
    stopped(agents, 130);
}

#[test]
fn of_a_pair_whose_head_dies_in_its_last_commit_the_other_says_what_is_saved_and_the_checkpoint_before_stands() {
    for nnodes in ["2", "1:2"] {
        let every = ["--set", "train.checkpoint_every=100000", "--set", "train.checkpoint_every_steps=50"];
        let mut agents = Agents::new(nnodes, 20_000, None).with(&every);
        [1, 2].into_iter().for_each(|node| agents.start(node));
        let saved =
            |what: &EventKind| if let EventKind::CheckpointCommitted { step, .. } = what { Some(*step) } else { None };
        agents.until("a checkpoint", |events| events.iter().find_map(saved));
        stuck_in_the_last_commit(&mut agents, &[1]);
        let before = agents.events().iter().filter_map(saved).max();
        agents.kill(1);
        assert_eq!(agents.end(2), Some(6), "{}", agents.told());
        let found = latest(&checkpoints(&agents)).found.unwrap();
        found.verify(&mut |_| {}).unwrap();
        assert_eq!(found.manifest().map(|manifest| manifest.step), before);
        let printed = agents.printed(2);
        let newest = format!("the newest checkpoint is {}", name::committed(before.unwrap()));
        assert!(printed.contains(&newest) && printed.contains("enn train --resume "), "{printed}");
        agents.nothing_is_left();
    }
}

#[test]
fn a_signal_at_the_head_outlives_it() {
    let mut agents = three("2:3");
    let frozen = Frozen::on(&agents, 3);
    agents.signal(1, Signal::SIGTERM);
    let asked = |what: &EventKind| matches!(what, EventKind::StopRequested { .. });
    agents.until("the signal", |events| events.iter().any(asked).then_some(()));
    // It is told to the other nodes before anybody is asked to save; who asks now comes behind that.
    agents.ask(&["stop"]);
    agents.kill(1);
    drop(frozen);
    stopped(agents, 143);
}

#[test]
fn a_signal_at_a_node_that_the_head_has_not_heard_of_is_known_to_the_next() {
    let mut agents = three("2:3");
    // It neither reads nor writes any more; nobody notices within 5 s.
    agents.signal(1, Signal::SIGSTOP);
    agents.signal(3, Signal::SIGTERM);
    let deadline = Instant::now() + ASKED_MAX;
    while !agents.printed(3).contains("SIGTERM") {
        assert!(Instant::now() < deadline, "{}", agents.told());
        std::thread::park_timeout(Duration::from_millis(5));
    }
    agents.kill(1);
    stopped(agents, 143);
}

#[test]
fn a_signal_while_nobody_leads_stops_the_run_when_somebody_does() {
    let mut agents = three("2:3");
    agents.kill(1);
    agents.signal(2, Signal::SIGTERM);
    agents.signal(3, Signal::SIGTERM);
    stopped(agents, 143);
}

#[test]
fn a_pause_and_a_size_that_were_accepted_outlive_the_head() {
    let mut agents = three("2:3");
    asked_of_the_dead(&mut agents, &[&["resize", "4"], &["pause"]]);
    agents.paused();
    assert!(agents.ask_in_vain(&["pause"]).contains("paused already"));
    agents.ask(&["continue"]);
    // Two nodes would have two.
    agents.working(4, agents.step() + 1);
    agents.stop(&[2, 3]);
}

#[test]
fn a_node_that_was_to_be_drained_is_left_under_the_next_head() {
    let mut agents = three("1:3");
    asked_of_the_dead(&mut agents, &[&["drain", "--node", "127.0.0.3"]]);
    assert_eq!(agents.end(3), Some(0), "{}", agents.told());
    agents.working(1, agents.step() + 1);
    agents.stop(&[2]);
}

#[test]
fn a_drain_that_would_leave_too_few_after_a_death_is_not_done_and_that_is_told() {
    let mut agents = three("2:3");
    asked_of_the_dead(&mut agents, &[&["drain", "--node", "127.0.0.3"]]);
    agents.working(2, agents.step() + 1);
    let told = |what: &EventKind| matches!(what, EventKind::Warned { message } if message.contains("127.0.0.3 is not drained"));
    assert_eq!(count(&agents, told), 1, "{}", agents.told());
    agents.stop(&[2, 3]);
}

#[test]
fn who_asks_while_nobody_leads_is_answered_by_the_next_head() {
    let mut agents = Agents::new("1:4", 20_000, None);
    (1..=4).for_each(|node| agents.start(node));
    agents.working(4, 5);
    agents.kill(1);
    let began = Instant::now();
    // What holds the directory for the dead head is gone in a moment.
    let led = |what: &EventKind| matches!(what, EventKind::RunStarted { .. });
    let headless = |said: &str| said.contains("the node that led the run is gone; another one takes over");
    while !headless(&agents.ask(&["status"])) && count(&agents, led) == 1 {
        assert!(began.elapsed() < ASKED_MAX, "{}", agents.told());
    }
    // The first thing that the next head does is to change the size.
    let said = agents.ask(&["resize", "2"]);
    assert!(said.contains("2 workers instead of 3"), "{said}");
    assert!(began.elapsed() < ASKED_MAX, "it took {:?}", began.elapsed());
    agents.working(2, agents.step() + 1);
    agents.kill(2);
    let said = agents.ask(&["drain", "--node", "127.0.0.4"]);
    assert!(said.contains("the workers of node 127.0.0.4 leave it"), "{said}");
    assert_eq!(agents.end(4), Some(0), "{}", agents.told());
    agents.ask(&["pause"]);
    agents.paused();
    agents.stop(&[3]);
}

#[test]
fn a_run_that_is_to_grow_right_after_a_takeover_grows_also_when_the_next_head_dies() {
    let mut agents = Agents::new("1:4", 20_000, None);
    (1..=4).for_each(|node| agents.start(node));
    agents.working(4, 5);
    agents.kill(1);
    // One node is to have a second worker, which nobody has begun to load when the head that accepted it is gone, too.
    let said = agents.ask(&["resize", "4"]);
    assert!(said.contains("4 workers instead of 3"), "{said}");
    let leads = agents.leader(&[2, 3, 4]);
    agents.kill(leads);
    agents.working(4, agents.step() + 1);
    let left: Vec<u32> = (2..=4).filter(|node| *node != leads).collect();
    agents.ask(&["resize", "1"]);
    agents.working(1, agents.step() + 1);
    assert_eq!(count(&agents, |what| matches!(what, EventKind::RunStarted { .. })), 3, "{}", agents.told());
    assert_eq!(count(&agents, |what| matches!(what, EventKind::RoundFailed { .. })), 0, "{}", agents.told());
    agents.stop(&left);
}

#[test]
fn a_stop_while_nobody_leads_is_heard_by_the_next_head() {
    let mut agents = three("2:3");
    agents.kill(1);
    let said = agents.ask(&["stop"]);
    assert!(said.contains("finish the step, save and end"), "{said}");
    stopped(agents, 130);
}

#[test]
fn who_asks_a_run_that_nobody_takes_over_is_told_so_in_time() {
    let mut agents = Agents::new("2", 20_000, None);
    [1, 2].into_iter().for_each(|node| agents.start(node));
    agents.working(2, 5);
    agents.kill(1);
    let began = Instant::now();
    let said = agents.ask_in_vain(&["pause"]);
    assert!(said.contains("none of its other nodes has taken over within 30 s"), "{said}");
    assert!(began.elapsed() < ASKED_MAX, "it took {:?}", began.elapsed());
    assert_eq!(agents.end(2), Some(6), "{}", agents.told());
    agents.nothing_is_left();
}
