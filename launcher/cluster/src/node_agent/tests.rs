//! Rules of the node state in virtual time.

use super::{
    effect::{EndSignal, NodeEffect, NodeEnd},
    input::NodeInput,
    settings::NodeSettings,
    state::NodeState,
};
use crate::{rendezvous::NodeId, supervisor::MembershipEnd};
use enn_broker::BrokerEvent;
use enn_common::{
    checkpoint::table::ShardTable,
    event::EventKind,
    id::{Round, WorkerId},
    kernels::Quarantined,
    wire::{
        message::{Assignment, FromWorker, StagedShard, WorkerTask},
        node_agent::{
            Epoch, Inventory, LivingSeat, NodeCommand, NodeEvent, RunEnding, RunFacts, RunSnapshot, SeatFacts,
            StateShare, StopSignal, WorkerEvidence, WorkerExit, WorkerFlag, WorkerProgress, WriteFailure,
        },
    },
};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const WORKER: WorkerId = WorkerId(7);

/// A node with its clock.
struct Node {
    state: NodeState,
    now: Duration,
    epoch: u64,
}

impl Node {
    fn new(leads: bool) -> Self {
        let pages_period = NodeSettings::pages_period(2);
        let settings =
            NodeSettings { host: "n1".into(), workers: 2, workers_max: 4, leads, pages_period, programs: None };
        Self { state: NodeState::new(settings, Duration::ZERO), now: Duration::ZERO, epoch: 0 }
    }

    /// A follower whose leader said which run it is.
    fn in_run() -> Self {
        let mut node = Self::new(false);
        node.on(NodeInput::LeaderFound { epoch: epoch_of(0) });
        node.command(NodeCommand::JoinRun(Box::new(facts())));
        node.on(NodeInput::RunSeen(Ok(())));
        node
    }

    /// The same with one worker that has a seat in round 3.
    fn at_work() -> Self {
        let mut node = Self::in_run();
        node.start(WORKER);
        node.on(NodeInput::Broker(BrokerEvent::Joined { worker: WORKER, pid: 70 }));
        let seats = BTreeMap::from([(WORKER, assignment())]);
        let snapshot = Box::new(RunSnapshot { round: 3, ..RunSnapshot::default() });
        node.command(NodeCommand::BeginRound { round: 3, seats, snapshot });
        node
    }

    fn on(&mut self, input: NodeInput) -> Vec<NodeEffect> {
        let mut effects = Vec::new();
        self.state.on(self.now, input, &mut effects);
        effects.retain(|effect| *effect != NodeEffect::ReadPages);
        effects
    }

    fn command(&mut self, command: NodeCommand) -> Vec<NodeEffect> {
        self.on(NodeInput::Command { epoch: epoch_of(self.epoch), command })
    }

    fn start(&mut self, worker: WorkerId) {
        let seat = SeatFacts {
            round: 3,
            rank: 1,
            local_rank: 1,
            world: 2,
            local_world: 2,
            node_rank: 0,
            nodes: 1,
            restarts: 0,
        };
        let seat = Some(seat);
        self.command(NodeCommand::Start { worker, seat, standby: None, logs: PathBuf::from("/logs") });
        self.on(NodeInput::Spawned { worker, pid: 70, forked: false });
    }

    fn says(&mut self, message: FromWorker) -> Vec<NodeEffect> {
        self.on(NodeInput::Broker(BrokerEvent::Reported { round: Some(Round(3)), worker: WORKER, message }))
    }

    fn exits(&mut self, worker: WorkerId) -> Vec<NodeEffect> {
        let exit = WorkerExit { code: None, signal: Some(9), late: Duration::ZERO, page: page(worker, 5) };
        self.on(NodeInput::Exited { worker, exit })
    }

    /// The broker and the disk answer after the end of a worker.
    fn settles(&mut self, worker: WorkerId) -> Vec<NodeEffect> {
        self.on(NodeInput::Broker(BrokerEvent::Synced { token: worker.0.into() }));
        self.on(NodeInput::Evidence { worker, evidence: WorkerEvidence::default(), gpu: None })
    }

    /// Time passes; what it leads to, without signs of life.
    fn wait(&mut self, time: Duration) -> Vec<NodeEffect> {
        let until = self.now + time;
        let mut effects = Vec::new();
        while let Some(at) = self.state.deadline().filter(|at| *at <= until) {
            self.now = at;
            effects.extend(self.on(NodeInput::Tick));
        }
        self.now = until;
        effects.retain(|effect| *effect != NodeEffect::Report(NodeEvent::Progress(Vec::new())));
        effects
    }

    fn loses_leader(&mut self) -> Vec<NodeEffect> {
        self.on(NodeInput::LeaderLost { reason: "closed".into() })
    }

    /// A leader of this epoch is there; what the node tells it about itself.
    fn finds_leader(&mut self, epoch: u64) -> Inventory {
        self.epoch = epoch;
        let effects = self.on(NodeInput::LeaderFound { epoch: epoch_of(epoch) });
        match effects.as_slice() {
            [NodeEffect::Report(NodeEvent::Inventory(inventory)), ..] => (**inventory).clone(),
            other => panic!("{other:?}"),
        }
    }
}

/// An epoch of the only leader.
fn epoch_of(number: u64) -> Epoch {
    Epoch { number, leader: NodeId(1) }
}

fn facts() -> RunFacts {
    RunFacts { run_dir: "/run".into(), config: "c0ffee".into(), staged: "/staged".into() }
}

fn page(worker: WorkerId, step: u64) -> WorkerProgress {
    WorkerProgress { worker, phase: 2, step, waited: Duration::ZERO, idle: Duration::ZERO }
}

fn assignment() -> Assignment {
    Assignment {
        round: 3,
        rank: 1,
        world_size: 2,
        local_rank: 0,
        local_world_size: 1,
        store_host: String::new(),
        store_port: 0,
        device: "cpu".into(),
        threads: 1,
        run_dir: "/run".into(),
        kernels: Quarantined::default(),
        split: 1,
        task: WorkerTask::Init { meta: "/m".into(), attempt: "a".into() },
    }
}

fn staged_shard(ticket: u64) -> FromWorker {
    FromWorker::ShardStaged(Box::new(StagedShard {
        step: 5,
        epoch: 0,
        dir: "/run/checkpoints/x".into(),
        metric: None,
        ticket,
        at: 0,
        boxes: Vec::new(),
        blake3: false,
        blocked: 0.0,
        must: false,
    }))
}

fn signal(worker: WorkerId, signal: EndSignal) -> NodeEffect {
    NodeEffect::Signal { worker, signal }
}

fn ready() -> FromWorker {
    FromWorker::Ready { device: "cpu".into(), backend: "gloo".into(), libtorch: "2".into() }
}

#[test]
fn a_worker_is_started_when_the_node_sees_the_run() {
    let mut node = Node::new(false);
    node.on(NodeInput::LeaderFound { epoch: epoch_of(0) });
    assert_eq!(node.command(NodeCommand::JoinRun(Box::new(facts()))), [NodeEffect::LookAtRun(facts())]);
    let start = |worker| NodeCommand::Start { worker, seat: None, standby: None, logs: "/logs".into() };
    assert_eq!(node.command(start(WORKER)), []);
    assert_eq!(node.command(start(WorkerId(8))), []);
    // One of them is not wanted any more before the disk answers.
    let error = "it was stopped before it was started".to_owned();
    let failed = NodeEffect::Report(NodeEvent::StartFailed { worker: WorkerId(8), error });
    assert_eq!(node.command(NodeCommand::Stop { workers: vec![WorkerId(8)], kill_after: SECOND }), [failed]);
    let admit = NodeEffect::Admit { worker: WORKER, standby: None };
    let spawn = NodeEffect::Spawn { worker: WORKER, seat: None, local_rank: 0, logs: "/logs".into() };
    assert_eq!(node.on(NodeInput::RunSeen(Ok(()))), [admit, spawn]);
    let started = NodeEffect::Report(NodeEvent::Started { worker: WORKER, pid: 70, forked: false });
    assert_eq!(node.on(NodeInput::Spawned { worker: WORKER, pid: 70, forked: false }), [started]);
    // The next leader says the same, and nobody looks again.
    assert_eq!(node.command(NodeCommand::JoinRun(Box::new(facts()))), []);
}

#[test]
fn a_node_that_does_not_see_the_run_says_why_and_ends() {
    let mut node = Node::new(false);
    node.on(NodeInput::LeaderFound { epoch: epoch_of(0) });
    node.command(NodeCommand::JoinRun(Box::new(facts())));
    let effects = node.on(NodeInput::RunSeen(Err("/run/run.json: not found".into())));
    let [NodeEffect::Report(NodeEvent::Unfit { reason }), NodeEffect::Journal(EventKind::GaveUp { .. }), end] =
        effects.as_slice()
    else {
        panic!("{effects:?}")
    };
    assert!(reason.contains("n1 does not see the run directory /run") && reason.contains("not found"), "{reason}");
    assert_eq!(*end, NodeEffect::End(NodeEnd::Failed(reason.clone())));
    assert!(node.state.is_over() && node.state.deadline().is_none());
}

#[test]
fn a_start_that_fails_is_reported_once() {
    let mut node = Node::in_run();
    node.command(NodeCommand::Start { worker: WORKER, seat: None, standby: None, logs: "/logs".into() });
    let effects = node.on(NodeInput::SpawnFailed { worker: WORKER, error: "no".into() });
    let failed = NodeEffect::Report(NodeEvent::StartFailed { worker: WORKER, error: "no".into() });
    assert_eq!(effects, [NodeEffect::Disconnect { worker: WORKER }, failed]);
    assert_eq!(node.on(NodeInput::SpawnFailed { worker: WORKER, error: "no".into() }), []);
}

#[test]
fn the_end_of_a_worker_is_told_at_once_and_settled_when_all_is_read() {
    let mut node = Node::at_work();
    let effects = node.exits(WORKER);
    assert!(matches!(&effects[0], NodeEffect::Report(NodeEvent::Exited { exit, .. }) if exit.page.step == 5));
    assert_eq!(effects[1..], [NodeEffect::SyncBroker { worker: WORKER }]);
    // Its last words count.
    let message = Box::new(FromWorker::Failed { error: "x".into() });
    let words = NodeEffect::Report(NodeEvent::WorkerMessage { worker: WORKER, round: Some(3), message });
    assert_eq!(node.says(FromWorker::Failed { error: "x".into() }), [words]);
    let synced = NodeInput::Broker(BrokerEvent::Synced { token: 7 });
    assert_eq!(node.on(synced), [NodeEffect::ReadEvidence { worker: WORKER }]);
    let evidence = WorkerEvidence { stderr: "panic".into(), first_launch: None };
    let settled = NodeEvent::Settled { worker: WORKER, evidence: Box::new(evidence.clone()) };
    let done =
        [NodeEffect::Report(settled), NodeEffect::Disconnect { worker: WORKER }, NodeEffect::Forget { worker: WORKER }];
    assert_eq!(node.on(NodeInput::Evidence { worker: WORKER, evidence, gpu: None }), done);
    // Nothing of it comes after that.
    assert_eq!(node.says(FromWorker::Warm), []);
    assert_eq!(node.settles(WORKER), []);
}

#[test]
fn a_hung_disk_or_broker_delays_the_end_of_a_worker_no_longer_than_ten_seconds() {
    for synced in [false, true] {
        let mut node = Node::at_work();
        node.exits(WORKER);
        if synced {
            node.on(NodeInput::Broker(BrokerEvent::Synced { token: 7 }));
        }
        assert_eq!(node.wait(10 * SECOND - MILLISECOND), []);
        let effects = node.wait(MILLISECOND);
        let evidence = Box::new(WorkerEvidence::default());
        assert_eq!(effects[0], NodeEffect::Report(NodeEvent::Settled { worker: WORKER, evidence }));
    }
}

#[test]
fn term_is_followed_by_kill_and_kill_by_a_report() {
    let mut node = Node::at_work();
    let dismiss = NodeCommand::Dismiss { worker: WORKER, kill_after: SECOND / 2 };
    let end = [NodeEffect::Disconnect { worker: WORKER }, signal(WORKER, EndSignal::Terminate)];
    assert_eq!(node.command(dismiss), end);
    assert!(node.finds_leader(1).living[0].ending);
    assert_eq!(node.wait(SECOND / 2 - MILLISECOND), []);
    assert_eq!(node.wait(MILLISECOND), [signal(WORKER, EndSignal::Kill)]);
    assert_eq!(node.wait(10 * SECOND - MILLISECOND), []);
    let unkillable = NodeEffect::Report(NodeEvent::Unkillable { worker: WORKER, pid: 70 });
    assert_eq!(node.wait(MILLISECOND), std::slice::from_ref(&unkillable));
    assert_eq!(node.wait(100 * SECOND), []);
    // A leader that has not heard of it does, and nobody waits for it.
    node.loses_leader();
    node.epoch = 2;
    assert!(node.on(NodeInput::LeaderFound { epoch: epoch_of(2) }).contains(&unkillable));
    let over = node.command(NodeCommand::EndRun(RunEnding::Finished));
    assert_eq!(over.last(), Some(&NodeEffect::End(NodeEnd::Ended(RunEnding::Finished))));
}

#[test]
fn a_shorter_time_to_end_counts_and_none_is_kill() {
    let mut node = Node::at_work();
    let stop = |kill_after| NodeCommand::Stop { workers: vec![WORKER, WorkerId(99)], kill_after };
    assert_eq!(node.command(stop(30 * SECOND)), [signal(WORKER, EndSignal::Terminate)]);
    assert_eq!(node.command(stop(SECOND)), [signal(WORKER, EndSignal::Terminate)]);
    assert_eq!(node.wait(SECOND), [signal(WORKER, EndSignal::Kill)]);
    let mut node = Node::at_work();
    assert_eq!(node.command(stop(Duration::ZERO)), [signal(WORKER, EndSignal::Kill)]);
    assert_eq!(node.command(stop(SECOND)), []);
}

#[test]
fn a_worker_that_is_stopped_while_it_is_started_is_signalled_then() {
    let mut node = Node::in_run();
    let start = NodeCommand::Start { worker: WORKER, seat: None, standby: None, logs: "/logs".into() };
    node.command(start.clone());
    assert_eq!(node.command(NodeCommand::Stop { workers: vec![WORKER], kill_after: Duration::ZERO }), []);
    let effects = node.on(NodeInput::Spawned { worker: WORKER, pid: 70, forked: false });
    assert_eq!(effects[1..], [signal(WORKER, EndSignal::Kill)]);
    // One whose start hangs is given up, and killed should it come to life.
    let mut node = Node::in_run();
    node.command(start);
    node.command(NodeCommand::Stop { workers: vec![WORKER], kill_after: Duration::ZERO });
    let effects = node.wait(10 * SECOND);
    assert!(matches!(&effects[..], [_, NodeEffect::Report(NodeEvent::StartFailed { .. })]), "{effects:?}");
    assert_eq!(
        node.on(NodeInput::Spawned { worker: WORKER, pid: 70, forked: false }),
        [signal(WORKER, EndSignal::Kill)]
    );
    assert_eq!(node.exits(WORKER), [NodeEffect::Forget { worker: WORKER }]);
}

#[test]
fn a_lost_leader_ends_the_round_at_once_and_only_once() {
    let mut node = Node::at_work();
    let effects = node.loses_leader();
    let [NodeEffect::Journal(EventKind::Warned { message }), NodeEffect::EndRound { reason }] = effects.as_slice()
    else {
        panic!("{effects:?}")
    };
    assert!(message.contains("out of reach: closed") && reason.contains("is gone: closed"));
    assert_eq!(node.state.round(), None);
    // Its commands are void, and nothing is told to nobody.
    assert_eq!(node.command(NodeCommand::EndRound { round: 3, reason: "x".into() }), []);
    assert_eq!(node.says(FromWorker::Halted { round: 3, step: 9, kept: true }), []);
    assert_eq!(node.wait(100 * SECOND), []);
    // The next one hears where the worker stands.
    let inventory = node.finds_leader(1);
    let seat = LivingSeat { round: 3, rank: 1, halted: Some(9), share: None };
    assert_eq!(inventory.living[0].seat, Some(seat));
    assert!(inventory.living[0].connected && !inventory.living[0].stateful);
}

#[test]
fn a_drained_leader_that_leaves_ends_no_round() {
    let mut node = Node::at_work();
    let snapshot = RunSnapshot { round: 3, requests: 1, drained: Some("n0".into()), ..RunSnapshot::default() };
    node.command(NodeCommand::ReplicateSnapshot(Box::new(snapshot)));
    assert_eq!(node.loses_leader(), []);
}

#[test]
fn commands_of_another_leader_are_dropped() {
    let mut node = Node::at_work();
    let end = |round| NodeCommand::EndRound { round, reason: "x".into() };
    // A command that this leader sent before it knew of the next membership counts.
    node.on(NodeInput::MembershipReopened);
    node.on(NodeInput::LeaderFound { epoch: epoch_of(4) });
    assert_eq!(node.command(end(2)), []);
    assert_eq!(node.command(end(3)), [NodeEffect::EndRound { reason: "x".into() }]);
    assert_eq!(node.command(end(3)), []);
    node.loses_leader();
    node.on(NodeInput::LeaderFound { epoch: epoch_of(5) });
    let flag = NodeCommand::SetFlag { workers: vec![WORKER, WorkerId(99)], flag: WorkerFlag::Stop, on: true };
    assert_eq!(node.on(NodeInput::Command { epoch: epoch_of(4), command: flag.clone() }), []);
    let set = NodeEffect::SetFlag { worker: WORKER, flag: WorkerFlag::Stop, on: true };
    // A leader that was cut off may have used the number of its successor.
    let cut_off = Epoch { leader: NodeId(9), ..epoch_of(5) };
    assert_eq!(node.on(NodeInput::Command { epoch: cut_off, command: flag.clone() }), []);
    assert_eq!(node.on(NodeInput::Command { epoch: epoch_of(5), command: flag }), [set]);
}

#[test]
fn what_the_next_leader_must_know_of_workers_is_kept() {
    let mut node = Node::at_work();
    let living = |node: &Node| node.state.living()[0].clone();
    assert_eq!(living(&node).local_rank, 0, "that of the seat, not of the start");
    node.says(ready());
    assert!(living(&node).stateful && !living(&node).warm);
    // Of another round.
    node.says(FromWorker::ShareKept { round: 2, share: 1, of: 2 });
    assert_eq!(living(&node).seat.unwrap().share, None);
    node.says(FromWorker::ShareKept { round: 3, share: 1, of: 2 });
    node.says(FromWorker::Halted { round: 3, step: 8, kept: true });
    let seat = living(&node).seat.unwrap();
    assert_eq!((seat.share, seat.halted), (Some(StateShare { index: 1, of: 2 }), Some(8)));
    assert!(living(&node).stateful);
    // In the next round it has no seat.
    let snapshot = Box::new(RunSnapshot { round: 4, ..RunSnapshot::default() });
    node.command(NodeCommand::BeginRound { round: 4, seats: BTreeMap::new(), snapshot });
    assert_eq!(living(&node).seat, None);
    node.says(FromWorker::Warm);
    node.says(FromWorker::Halted { round: 3, step: 8, kept: false });
    assert!(living(&node).warm && !living(&node).stateful);
    node.on(NodeInput::Broker(BrokerEvent::Left { worker: WORKER, error: None }));
    assert!(!living(&node).connected);
}

#[test]
fn workers_that_the_old_leader_had_ordered_and_nobody_lists_die() {
    let mut node = Node::in_run();
    node.command(NodeCommand::Start { worker: WORKER, seat: None, standby: None, logs: "/logs".into() });
    node.loses_leader();
    assert_eq!(node.finds_leader(1).living, []);
    let effects = node.on(NodeInput::Spawned { worker: WORKER, pid: 70, forked: false });
    assert_eq!(effects.last(), Some(&signal(WORKER, EndSignal::Kill)));
}

#[test]
fn the_newest_snapshot_is_kept_and_a_stop_is_never_lost() {
    let mut node = Node::at_work();
    let snapshot = |requests, round| Box::new(RunSnapshot { requests, round, ..RunSnapshot::default() });
    let acked = NodeEffect::Report(NodeEvent::SnapshotAcked { requests: 5 });
    assert_eq!(node.command(NodeCommand::ReplicateSnapshot(snapshot(5, 3))), [acked]);
    node.command(NodeCommand::ReplicateSnapshot(snapshot(4, 9)));
    assert_eq!(node.state.snapshot(), Some(&*snapshot(5, 3)));
    // A signal of this node is in the next one, too, which was under way then.
    let event = NodeEvent::Signal { signal: StopSignal::TimeLimit, second: false };
    let effects = node.on(NodeInput::Signal(StopSignal::TimeLimit));
    assert!(matches!(&effects[0], NodeEffect::Journal(EventKind::StopRequested { second: false, .. })));
    assert_eq!(effects[1..], [NodeEffect::Report(event)]);
    node.command(NodeCommand::ReplicateSnapshot(snapshot(6, 3)));
    assert_eq!(node.state.snapshot().unwrap().stop, Some(StopSignal::TimeLimit));
    assert_eq!(node.state.snapshot().unwrap().requests, 6);
    assert_eq!(node.finds_leader(1).stop, Some(StopSignal::TimeLimit));
}

#[test]
fn a_second_signal_kills_and_one_after_the_time_limit_is_none() {
    let mut node = Node::at_work();
    node.on(NodeInput::Signal(StopSignal::TimeLimit));
    assert!(!node.on(NodeInput::Signal(StopSignal::Terminate)).contains(&signal(WORKER, EndSignal::Kill)));
    let mut node = Node::at_work();
    node.on(NodeInput::Signal(StopSignal::Terminate));
    let effects = node.on(NodeInput::Signal(StopSignal::Interrupt));
    let event = NodeEvent::Signal { signal: StopSignal::Interrupt, second: true };
    assert_eq!(effects[1..], [NodeEffect::Report(event), signal(WORKER, EndSignal::Kill)]);
}

#[test]
fn a_node_without_a_part_in_the_run_leaves_at_a_signal() {
    let mut node = Node::new(false);
    let effects = node.on(NodeInput::Signal(StopSignal::Interrupt));
    let leave = NodeEffect::LeaveMembership { why: "SIGINT".into() };
    assert_eq!(effects[1..], [leave, NodeEffect::End(NodeEnd::Stopped(StopSignal::Interrupt))]);
}

#[test]
fn a_node_that_is_to_stop_leaves_when_nobody_leads_for_twenty_seconds() {
    // The signal comes before the leader is lost, after it, or was told by the leader.
    for case in 0..3 {
        let mut node = Node::at_work();
        match case {
            0 => {
                node.on(NodeInput::Signal(StopSignal::Terminate));
                node.loses_leader();
            }
            1 => {
                node.loses_leader();
                node.on(NodeInput::Signal(StopSignal::Terminate));
            }
            _ => {
                let stop = Some(StopSignal::Terminate);
                let snapshot = RunSnapshot { requests: 1, stop, ..RunSnapshot::default() };
                node.command(NodeCommand::ReplicateSnapshot(Box::new(snapshot)));
                node.loses_leader();
            }
        }
        assert_eq!(node.wait(20 * SECOND - MILLISECOND), []);
        let effects = node.wait(MILLISECOND);
        let leave = NodeEffect::LeaveMembership { why: "SIGTERM".into() };
        assert_eq!(effects, [leave, signal(WORKER, EndSignal::Kill)]);
        node.exits(WORKER);
        let effects = node.settles(WORKER);
        assert_eq!(effects.last(), Some(&NodeEffect::End(NodeEnd::Stopped(StopSignal::Terminate))));
    }
    // A leader that comes in time decides.
    let mut node = Node::at_work();
    node.on(NodeInput::Signal(StopSignal::Terminate));
    node.loses_leader();
    node.wait(19 * SECOND);
    node.finds_leader(1);
    assert_eq!(node.wait(100 * SECOND), []);
}

#[test]
fn a_membership_that_is_over_kills_the_workers() {
    let failed = |fenced| MembershipEnd::Failed { reason: "too few".into(), fenced };
    let stopped = MembershipEnd::Stopped { by: "SIGINT on n0".into() };
    let cases = [
        (MembershipEnd::Finished, NodeEnd::Ended(RunEnding::Finished)),
        (stopped, NodeEnd::Stopped(StopSignal::Interrupt)),
        (failed(false), NodeEnd::Failed("too few".into())),
        (failed(true), NodeEnd::Failed("too few".into())),
    ];
    for (over, expected) in cases {
        let mut node = Node::at_work();
        assert!(node.on(NodeInput::MembershipOver(over)).contains(&signal(WORKER, EndSignal::Kill)));
        node.exits(WORKER);
        // Nobody is told that the work is done: there is no membership.
        let end = [
            NodeEffect::Disconnect { worker: WORKER },
            NodeEffect::Forget { worker: WORKER },
            NodeEffect::End(expected),
        ];
        assert_eq!(node.settles(WORKER), end);
    }
}

#[test]
fn on_the_leader_only_a_fence_kills() {
    for fenced in [false, true] {
        let mut node = Node::new(true);
        node.finds_leader(0);
        node.command(NodeCommand::JoinRun(Box::new(facts())));
        node.start(WORKER);
        let effects = node.on(NodeInput::MembershipOver(MembershipEnd::Failed { reason: "x".into(), fenced }));
        let expected = if fenced { vec![signal(WORKER, EndSignal::Kill)] } else { Vec::new() };
        assert_eq!(effects, expected);
        // The supervisor ends the run, and the membership.
        let effects = node.command(NodeCommand::EndRun(RunEnding::Finished));
        assert_eq!(effects.is_empty(), fenced, "{effects:?}");
        node.exits(WORKER);
        assert_eq!(node.settles(WORKER).last(), Some(&NodeEffect::End(NodeEnd::Ended(RunEnding::Finished))));
    }
}

#[test]
fn the_first_leader_hears_signals_before_there_is_a_membership() {
    let mut node = Node::new(true);
    let event = NodeEvent::Signal { signal: StopSignal::Terminate, second: false };
    assert_eq!(node.on(NodeInput::Signal(StopSignal::Terminate)), [NodeEffect::Report(event)]);
    assert_eq!(node.wait(100 * SECOND), []);
}

#[test]
fn a_node_takes_over_with_its_newest_snapshot_and_its_workers() {
    let mut node = Node::at_work();
    node.says(ready());
    node.loses_leader();
    node.says(FromWorker::Halted { round: 3, step: 9, kept: true });
    node.on(NodeInput::Signal(StopSignal::Terminate));
    let members = vec![NodeId(1), NodeId(2)];
    let effects = node.on(NodeInput::BecameLeader { epoch: epoch_of(6), members: members.clone() });
    let stop = Some(StopSignal::Terminate);
    let snapshot = Box::new(RunSnapshot { round: 3, stop, ..RunSnapshot::default() });
    assert_eq!(effects[0], NodeEffect::Lead { epoch: epoch_of(6), members: members.clone(), snapshot, facts: facts() });
    let NodeEffect::Report(NodeEvent::Inventory(inventory)) = &effects[1] else { panic!("{effects:?}") };
    assert_eq!(inventory.living[0].seat.unwrap().halted, Some(9));
    assert!(node.state.is_leading());
    // From now on it is the leader's own: it looks at nothing, and the supervisor writes the journal.
    node.epoch = 6;
    assert_eq!(node.command(NodeCommand::JoinRun(Box::new(RunFacts { config: "new".into(), ..facts() }))), []);
    let again = node.on(NodeInput::BecameLeader { epoch: epoch_of(7), members });
    assert!(matches!(&again[..], [NodeEffect::Report(NodeEvent::Inventory(_))]), "{again:?}");
    assert_eq!(node.on(NodeInput::MembershipReopened), []);
    assert_eq!(node.on(NodeInput::Waiting { reason: "x".into() }), []);
    assert_eq!(node.wait(100 * SECOND), []);
}

#[test]
fn a_node_that_had_not_heard_what_the_run_is_cannot_take_over() {
    let mut node = Node::in_run();
    node.loses_leader();
    let effects = node.on(NodeInput::BecameLeader { epoch: epoch_of(6), members: vec![NodeId(1)] });
    let reason = "the leader of the run is gone, and this node had not heard what the run is";
    assert_eq!(effects.last(), Some(&NodeEffect::End(NodeEnd::Failed(reason.into()))));
}

#[test]
fn pages_are_reported_when_they_change_and_every_second() {
    let mut node = Node::at_work();
    let step = 50 * MILLISECOND;
    let report = |pages| vec![NodeEffect::Report(NodeEvent::Progress(pages))];
    let read = |node: &mut Node, pages: Vec<WorkerProgress>| {
        node.now += step;
        let mut effects = Vec::new();
        node.state.on(node.now, NodeInput::Tick, &mut effects);
        assert_eq!(effects, [NodeEffect::ReadPages]);
        node.on(NodeInput::Pages(pages))
    };
    // A worker that has ended meanwhile has no page.
    let pages = vec![page(WORKER, 1), page(WorkerId(99), 1)];
    assert_eq!(read(&mut node, pages), report(vec![page(WORKER, 1)]));
    let idle = |idle| WorkerProgress { idle, ..page(WORKER, 1) };
    for n in 1..20 {
        assert_eq!(read(&mut node, vec![idle(n * step)]), []);
    }
    assert_eq!(read(&mut node, vec![idle(20 * step)]), report(Vec::new()));
    // Signs of progress within a step are told, too, but not all.
    for _ in 0..3 {
        assert_eq!(read(&mut node, vec![idle(Duration::ZERO)]), report(vec![idle(Duration::ZERO)]));
        for _ in 0..3 {
            assert_eq!(read(&mut node, vec![idle(Duration::ZERO)]), []);
        }
    }
    assert_eq!(read(&mut node, vec![page(WORKER, 2)]), report(vec![page(WORKER, 2)]));
    // Another leader has seen nothing.
    node.finds_leader(1);
    assert_eq!(read(&mut node, vec![page(WORKER, 2)]), report(vec![page(WORKER, 2)]));
    // A node without workers lives, too.
    let mut node = Node::in_run();
    node.now += SECOND;
    assert_eq!(node.on(NodeInput::Tick), report(Vec::new()));
}

#[test]
fn a_snapshot_is_written_or_released_once() {
    let mut node = Node::at_work();
    let persist = |ticket| NodeCommand::PersistSnapshot { worker: WORKER, ticket, dir: "/d".into(), rank: 1 };
    let release = |ticket| NodeCommand::ReleaseSnapshot { worker: WORKER, ticket };
    let effects = node.says(staged_shard(1));
    assert!(matches!(&effects[..], [NodeEffect::Keep { .. }, NodeEffect::Report(NodeEvent::WorkerMessage { .. })]));
    let write = NodeEffect::Persist { worker: WORKER, ticket: 1, dir: "/d".into(), rank: 1 };
    assert_eq!(node.command(persist(1)), std::slice::from_ref(&write));
    assert_eq!(node.command(persist(1)), []);
    // The disk was full: it is written again. The worker's end does not matter.
    node.exits(WORKER);
    node.settles(WORKER);
    let full = WriteFailure { error: "full".into(), disk_full: true };
    let failed = NodeInput::SnapshotWritten { worker: WORKER, ticket: 1, result: Err(full.clone()) };
    let reported = |result| NodeEffect::Report(NodeEvent::SnapshotWritten { worker: WORKER, ticket: 1, result });
    assert_eq!(node.on(failed), [reported(Err(full))]);
    assert_eq!(node.command(persist(1)), [write]);
    let written = NodeInput::SnapshotWritten { worker: WORKER, ticket: 1, result: Ok(ShardTable::default()) };
    assert_eq!(node.on(written), [reported(Ok(Box::new(ShardTable::default())))]);
    // Nobody keeps it any more.
    assert!(node.state.kept_snapshots().is_empty());
    assert_eq!(node.command(release(1)), []);
    let effects = node.command(persist(1));
    assert!(matches!(&effects[..], [NodeEffect::Report(NodeEvent::SnapshotWritten { result: Err(_), .. })]));
}

#[test]
fn snapshots_that_nobody_wants_any_more_are_released() {
    let mut node = Node::at_work();
    for ticket in 1..4 {
        node.says(staged_shard(ticket));
    }
    let persist = |ticket| NodeCommand::PersistSnapshot { worker: WORKER, ticket, dir: "/d".into(), rank: 1 };
    let release = |ticket| NodeEffect::Release { worker: WORKER, ticket };
    assert_eq!(node.command(NodeCommand::ReleaseSnapshot { worker: WORKER, ticket: 1 }), [release(1)]);
    node.command(persist(2));
    let effects = node.loses_leader();
    assert!(effects.contains(&release(3)) && !effects.contains(&release(2)), "{effects:?}");
    // What is being written is released when that fails; nobody is told.
    node.finds_leader(1);
    let failure = WriteFailure { error: "full".into(), disk_full: true };
    let failed = NodeInput::SnapshotWritten { worker: WORKER, ticket: 2, result: Err(failure) };
    assert_eq!(node.on(failed), [release(2)]);
    node.loses_leader();
    assert_eq!(node.says(staged_shard(4)), [release(4)]);
    assert!(node.state.kept_snapshots().is_empty());
}

#[test]
fn a_broken_broker_ends_a_follower_and_is_reported_by_the_leader() {
    let broke = || NodeInput::Broker(BrokerEvent::Broke { error: "x".into() });
    let fault = NodeEffect::Report(NodeEvent::Fault { reason: "the broker broke: x".into() });
    let mut node = Node::at_work();
    let effects = node.on(broke());
    assert_eq!(effects[0], fault);
    assert_eq!(effects.last(), Some(&signal(WORKER, EndSignal::Kill)));
    // Nothing more is read of its workers' messages.
    assert_eq!(node.exits(WORKER)[1..], [NodeEffect::ReadEvidence { worker: WORKER }]);
    let effects = node.on(NodeInput::Evidence { worker: WORKER, evidence: WorkerEvidence::default(), gpu: None });
    assert_eq!(effects.last(), Some(&NodeEffect::End(NodeEnd::Failed("the broker broke: x".into()))));
    let mut node = Node::new(true);
    node.finds_leader(0);
    assert_eq!(node.on(broke()), [fault]);
    assert!(!node.state.is_ending());
}

#[test]
fn a_run_that_is_over_ends_the_node_when_its_workers_have() {
    let mut node = Node::at_work();
    assert_eq!(node.command(NodeCommand::EndRun(RunEnding::Finished)), [signal(WORKER, EndSignal::Kill)]);
    let late = NodeCommand::Start { worker: WorkerId(8), seat: None, standby: None, logs: "/logs".into() };
    let effects = node.command(late);
    assert!(matches!(&effects[..], [NodeEffect::Report(NodeEvent::StartFailed { .. })]));
    node.exits(WORKER);
    let effects = node.settles(WORKER);
    let end =
        [NodeEffect::FinishMembership { epoch: epoch_of(0) }, NodeEffect::End(NodeEnd::Ended(RunEnding::Finished))];
    assert_eq!(effects[3..], end);
    assert_eq!(node.on(NodeInput::Signal(StopSignal::Interrupt)), []);
}

#[test]
fn a_node_without_work_leaves() {
    let mut node = Node::in_run();
    let effects = node.command(NodeCommand::LeaveRun { why: "drained".into() });
    let leave = NodeEffect::LeaveMembership { why: "drained".into() };
    assert_eq!(effects, [leave, NodeEffect::End(NodeEnd::Drained)]);
}

#[test]
fn a_node_that_is_about_to_end_takes_part_in_nothing_more() {
    let mut node = Node::at_work();
    node.on(NodeInput::Fault { reason: "no descriptors are left".into() });
    assert_eq!(node.on(NodeInput::MembershipReopened), []);
    let unfit = NodeEffect::Report(NodeEvent::Unfit { reason: "no descriptors are left".into() });
    assert_eq!(node.on(NodeInput::LeaderFound { epoch: epoch_of(1) }), [unfit]);
}
