//! Runs over several nodes of one machine, with workers that do as their script says: the leader dies, leaves or is stopped, and the workers
//! stay where they are.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_cluster::supervise::{AskError, Asker, ask};
use enn_common::{
    event::{Event, EventKind},
    wire::command::Request,
};
use enn_tests::{agent::kill_9, launch::free_port};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

/// Nothing here takes longer, even on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Everybody works until told otherwise.
const WORK: &str = "spare.*=hello,warm,seat;*.*=hello,ready,run";

/// A node at work.
struct Node {
    host: &'static str,
    process: Child,
    lines: Receiver<String>,
    seen: Vec<Event>,
}

impl Node {
    fn start(
        dir: &Path,
        host: &'static str,
        port: u16,
        role: &str,
        workers: u32,
        options: &[&str],
        script: &str,
    ) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_node_under_test"))
            .arg(dir)
            .args([host, &port.to_string(), role, &workers.to_string(), crate::PROGRAMS.1])
            .args(options)
            .env("ENN_FAKE_SCRIPT", script)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (into, lines) = channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| into.send(line)));
        Self { host, process, lines, seen: Vec::new() }
    }

    /// Returns the next event. Fails at the end, or when none comes within the time.
    fn event_within(&mut self, wait: Duration) -> Result<Event, RecvTimeoutError> {
        let event: Event = serde_json::from_str(&self.lines.recv_timeout(wait)?).unwrap();
        self.seen.push(event.clone());
        Ok(event)
    }

    /// Returns the next event, which comes before `deadline`. Fails at the end.
    fn next(&mut self, deadline: Instant) -> Result<Event, RecvTimeoutError> {
        let event = self.event_within(deadline.saturating_duration_since(Instant::now()));
        assert!(event != Err(RecvTimeoutError::Timeout), "{} goes on; seen: {:#?}", self.host, self.seen);
        event
    }

    /// Reads events until one fits.
    fn until<T>(&mut self, mut wanted: impl FnMut(&EventKind) -> Option<T>) -> T {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let event = self.next(deadline);
            let event = event.unwrap_or_else(|error| panic!("{}: {error}; seen: {:#?}", self.host, self.seen));
            if let Some(found) = wanted(&event.what) {
                return found;
            }
        }
    }

    fn all<T>(&self, wanted: impl Fn(&EventKind) -> Option<T>) -> Vec<T> {
        self.seen.iter().filter_map(|event| wanted(&event.what)).collect()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    /// Reads to the end; returns how it ended.
    fn end(mut self) -> String {
        let deadline = Instant::now() + WAIT_MAX;
        while self.next(deadline).is_ok() {}
        let mut stderr = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        self.process.wait().unwrap();
        stderr.trim().to_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Ended already, when all went well.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// Nodes that work in one directory, the first of which leads.
fn nodes(hosts: &[&'static str], workers: u32, options: &[&str], script: &str) -> (tempfile::TempDir, Vec<Node>) {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let start = |(index, host): (usize, &&'static str)| {
        let role = if index == 0 { "leads" } else { "follows" };
        Node::start(dir.path(), host, port, role, workers, options, script)
    };
    let nodes = hosts.iter().enumerate().map(start).collect();
    (dir, nodes)
}

/// Waits until so many workers are ready.
fn all_ready(node: &mut Node, workers: usize) {
    for _ in 0..workers {
        node.until(|what| matches!(what, EventKind::WorkerReady { .. }).then_some(()));
    }
}

/// The processes of workers on other hosts than this one.
fn workers_beside(node: &Node, own: &str) -> Vec<u32> {
    node.all(|what| match what {
        EventKind::WorkerStarted { pid, host, .. } if host != own => Some(*pid),
        _ => None,
    })
}

/// Returns the node that leads after another one, once a round of its own has recovered; the others are put back.
fn successor(nodes: &mut Vec<Node>) -> Node {
    let deadline = Instant::now() + WAIT_MAX;
    let recovers = |what: &EventKind| matches!(what, EventKind::Recovered { .. });
    while Instant::now() < deadline {
        for index in 0..nodes.len() {
            while let Ok(event) = nodes[index].event_within(Duration::from_millis(5)) {
                if recovers(&event.what) {
                    return nodes.remove(index);
                }
            }
        }
    }
    panic!("no node leads: {:#?}", nodes.iter().map(|node| (node.host, &node.seen)).collect::<Vec<_>>());
}

fn asked(run: &Path, request: &Request) -> Result<String, AskError> {
    ask(run, request, Asker { run_is_living: true, host: "a" })
}

fn ends(nodes: Vec<Node>) -> Vec<String> {
    nodes.into_iter().map(Node::end).collect()
}

#[test]
fn nodes_finish_together_and_one_checkpoint_has_the_shards_of_all() {
    let script = "0.0=hello,ready,staged:5,done,exit:0;0.1=hello,ready,staged:5,done,exit:0";
    let (_dir, mut nodes) = nodes(&["a", "b"], 1, &["min=2"], script);
    let path = nodes[0].until(|what| match what {
        EventKind::CheckpointCommitted { step: 5, path, .. } => Some(path.clone()),
        _ => None,
    });
    for rank in 0..2 {
        let bytes = std::fs::read(path.join(format!("__{rank}_0.distcp"))).unwrap();
        assert!(bytes.windows(14).any(|window| window == b"left in memory"), "rank {rank}");
    }
    assert_eq!(ends(nodes), ["led: Ok(Finished)", "followed: Ended(Finished)"]);
}

#[test]
fn a_signal_to_any_node_stops_all_and_a_dead_worker_of_a_follower_is_replaced() {
    let (_dir, mut nodes) = nodes(&["a", "b"], 1, &["min=2"], WORK);
    all_ready(&mut nodes[0], 2);
    let pid = workers_beside(&nodes[0], "a")[0];
    kill_9(pid.cast_signed());
    nodes[0].until(|what| matches!(what, EventKind::Recovered { .. }).then_some(()));
    nodes[1].signal(Signal::SIGTERM);
    assert_eq!(ends(nodes), ["led: Ok(Stopped(Terminate))", "followed: Ended(Stopped { signal: Terminate })"]);
}

#[test]
fn the_workers_of_a_successor_stay_where_they_are() {
    // Whoever takes over prepares for a while.
    let (_dir, mut nodes) = nodes(&["a", "b", "c"], 2, &["max=3", "prepare=1"], WORK);
    all_ready(&mut nodes[0], 6);
    let mut others = workers_beside(&nodes[0], "a");
    nodes[0].signal(Signal::SIGKILL);
    drop(nodes.remove(0));
    let leader = successor(&mut nodes);
    let mut seats = leader.all(|what| match what {
        EventKind::SeatTaken { round, pid, spare: false, .. } => Some((round.0, *pid)),
        _ => None,
    });
    seats.sort_unstable();
    others.sort_unstable();
    assert_eq!(seats, others.into_iter().map(|pid| (1, pid)).collect::<Vec<_>>());
    leader.signal(Signal::SIGTERM);
    assert_eq!(leader.end(), "took over: Ok(Stopped(Terminate))");
    assert_eq!(ends(nodes), ["followed: Ended(Stopped { signal: Terminate })"]);
}

#[test]
fn the_lead_changes_as_often_as_the_leader_dies() {
    let (_dir, mut nodes) = nodes(&["a", "b", "c", "d"], 1, &["max=4"], WORK);
    all_ready(&mut nodes[0], 4);
    drop(nodes.remove(0));
    let second = successor(&mut nodes);
    drop(second);
    let third = successor(&mut nodes);
    third.signal(Signal::SIGINT);
    assert_eq!(third.end(), "took over: Ok(Stopped(Interrupt))");
    assert_eq!(ends(nodes), ["followed: Ended(Stopped { signal: Interrupt })"]);
}

#[test]
fn a_leader_that_is_drained_leaves_the_lead_to_another_node() {
    let (dir, mut nodes) = nodes(&["a", "b", "c"], 1, &["max=3"], WORK);
    all_ready(&mut nodes[0], 3);
    asked(dir.path(), &Request::Drain { node: Some("a".into()) }).unwrap();
    assert_eq!(nodes.remove(0).end(), "led: Ok(HandedOff)");
    // Its workers end; nothing failed.
    let deadline = Instant::now() + WAIT_MAX;
    let worlds = loop {
        for node in &mut nodes {
            while node.event_within(Duration::from_millis(5)).is_ok() {}
        }
        let world = |what: &EventKind| match what {
            EventKind::RoundStarted { world_size, .. } => Some(*world_size),
            EventKind::RoundFailed { .. } => Some(0),
            _ => None,
        };
        let worlds: Vec<u32> = nodes.iter().flat_map(|node| node.all(world)).collect();
        if !worlds.is_empty() {
            break worlds;
        }
        assert!(Instant::now() < deadline, "{:#?}", nodes.iter().map(|node| &node.seen).collect::<Vec<_>>());
    };
    assert_eq!(worlds, [2]);
    asked(dir.path(), &Request::Stop {}).unwrap();
    let mut ends = ends(nodes);
    ends.sort_unstable();
    assert_eq!(ends, ["followed: Ended(Stopped { signal: Interrupt })", "took over: Ok(Stopped(Interrupt))"]);
}

#[test]
fn a_drained_leader_whose_worker_stays_ahead_of_the_others_leaves_after_one_more_round() {
    // Unlike workers that train, these do not step together.
    let script = "0.0=hello,ready,halt:9;0.*=hello,ready,halt:3;*.0=ready,halt:9;*.*=ready,halt:3";
    let (dir, mut nodes) = nodes(&["a", "b", "c"], 1, &["max=3"], script);
    all_ready(&mut nodes[0], 3);
    asked(dir.path(), &Request::Drain { node: Some("a".into()) }).unwrap();
    assert_eq!(nodes.remove(0).end(), "led: Ok(HandedOff)");
}

#[test]
fn a_second_signal_kills_the_workers_of_a_node_that_prepares_to_lead() {
    let (_dir, mut nodes) = nodes(&["a", "b", "c"], 1, &["max=3", "prepare=3"], WORK);
    all_ready(&mut nodes[0], 3);
    let others = workers_beside(&nodes[0], "a");
    drop(nodes.remove(0));
    nodes[0].until(|what| matches!(what, EventKind::Warned { .. }).then_some(()));
    for _ in 0..2 {
        nodes.iter().for_each(|node| node.signal(Signal::SIGTERM));
        std::thread::park_timeout(Duration::from_millis(300));
    }
    let others: Vec<i32> = others.into_iter().map(u32::cast_signed).collect();
    assert!(enn_tests::agent::gone_within(&others, Duration::from_secs(2)), "they live while one prepares");
    let ended = ends(nodes);
    assert!(ended.iter().all(|end| end.contains("Terminate")), "{ended:?}");
}
