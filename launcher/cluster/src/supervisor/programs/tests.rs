//! Rounds of programs, failures, hangs, and nodes that come and go, as the supervisor sees them.

use super::*;
use crate::{
    rendezvous::NodeId,
    supervisor::{
        GroupLimits,
        input::Input,
        settings::{RunJob, RunSettings, SupervisorSettings},
    },
};
use enn_common::{
    config::train::Recovery,
    kernels::KernelBook,
    wire::node_agent::{NodeEvent, RunSnapshot, WorkerExit, WorkerProgress},
};
use std::time::Duration;

fn at(seconds: u64) -> Time {
    Duration::from_secs(seconds)
}

fn epoch_of(number: u64) -> Epoch {
    Epoch { number, leader: NodeId(1) }
}

/// A supervisor, and what it asked for last.
struct Rig {
    supervisor: Supervisor,
    now: Time,
    effects: Vec<Effect>,
}

impl Rig {
    fn new(max_restarts: u32, hang_timeout: Option<Duration>) -> Self {
        let run = RunSettings {
            contract: Contract::Env(GroupLimits { window: None, backoff: at(1), retry_early: false }),
            workers_min: 1,
            on_failure: Recovery::Restart,
            max_restarts,
            spares: 0,
            spares_are_bound: false,
            evict_stragglers: false,
            straggler_window: at(5),
            regroup_wait: at(5),
            hang_timeout,
            grace: at(30),
            first_round: 0,
            run_dir: "/run".into(),
            job: RunJob::Program,
        };
        let settings = SupervisorSettings {
            run,
            own: NodeId(1),
            host: "n1".into(),
            several_nodes: true,
            nodes_min: 1,
            workers: 2,
            agent_silence_max: at(60),
            launch: "1".into(),
            store: String::new(),
            device: "cpu",
            threads: 1,
        };
        let supervisor = Supervisor::new(settings, KernelBook::default());
        Self { supervisor, now: Time::ZERO, effects: Vec::new() }
    }

    /// Hands over inputs and returns what was decided on them, apart from what is journaled and replicated.
    fn on(&mut self, inputs: Vec<Input>) -> Vec<Effect> {
        self.effects.clear();
        for input in inputs {
            self.supervisor.on(self.now, input, &mut self.effects);
        }
        self.supervisor.settle(self.now, &mut self.effects);
        let is_decision = |effect: &&Effect| match effect {
            Effect::Journal(_) => false,
            Effect::Send { command, .. } => !matches!(command, NodeCommand::ReplicateSnapshot(_)),
            _ => true,
        };
        self.effects.iter().filter(is_decision).cloned().collect()
    }

    fn inventory(epoch: u64, node: u64) -> Input {
        let inventory = Inventory {
            epoch: epoch_of(epoch),
            host: format!("n{node}"),
            workers: 2,
            workers_max: 2,
            living: Vec::new(),
            snapshot: None,
            stop: None,
        };
        Input::Node { node: NodeId(node), event: NodeEvent::Inventory(Box::new(inventory)) }
    }

    /// The nodes meet; returns the workers of each, in the order of the nodes.
    fn meet(&mut self, epoch: u64, nodes: &[u64]) -> Vec<(u64, u32, Vec<WorkerId>)> {
        let members = nodes.iter().map(|node| NodeId(*node)).collect();
        let mut inputs = vec![Input::MembershipFormed { epoch: epoch_of(epoch), members }];
        inputs.extend(nodes.iter().map(|node| Self::inventory(epoch, *node)));
        let begun = |effect: Effect| match effect {
            Effect::Send { node, command: NodeCommand::BeginGroup { round, restarts, workers, .. } } => {
                assert_eq!(round + 1, epoch);
                Some((node.0, restarts, workers))
            }
            _ => None,
        };
        self.on(inputs).into_iter().filter_map(begun).collect()
    }

    fn failure(&mut self, node: u64, round: u64, early: bool, seen: u64) -> Vec<Effect> {
        let failure = Box::new(Failure { round, code: Some(1), early, ..Failure::default() });
        let event = NodeEvent::GroupFailed { round, failure };
        let asked = self.on(vec![Input::Node { node: NodeId(node), event }]);
        assert!(asked.is_empty() || asked == [Effect::CountStoreClients], "{asked:?}");
        self.on(vec![Input::StoreClients { seen }])
    }

    fn started(&mut self, node: u64, workers: &[WorkerId]) {
        let started = |worker: &WorkerId| NodeEvent::Started { worker: *worker, pid: 100 + worker.0, forked: false };
        let inputs = workers.iter().map(|worker| Input::Node { node: NodeId(node), event: started(worker) });
        let effects = self.on(inputs.collect());
        assert_eq!(effects, []);
    }

    fn settled(&mut self, node: u64, worker: WorkerId) {
        let page = WorkerProgress { worker, phase: 0, step: 0, waited: at(0), idle: at(0) };
        let exit = WorkerExit { code: Some(0), signal: None, late: at(0), page };
        let exited = NodeEvent::Exited { worker, exit };
        let settled = NodeEvent::Settled { worker, evidence: Box::default() };
        let input = |event| Input::Node { node: NodeId(node), event };
        assert_eq!(self.on(vec![input(exited), input(settled)]), []);
    }
}

/// The restart that was decided: its number and its wait.
fn restart(effects: &[Effect]) -> Option<(u32, Duration)> {
    match effects {
        [Effect::EndMembershipRound { number, wait, .. }] => Some((*number, *wait)),
        _ => None,
    }
}

/// The reason for which the run ends.
fn gave_up(effects: &[Effect]) -> Option<String> {
    match effects {
        [Effect::EndMembership(GroupRunEnd::Failed { reason, .. })] => Some(reason.clone()),
        _ => None,
    }
}

#[test]
fn all_members_begin_by_rank_and_a_failure_is_a_restart_until_they_are_used_up() {
    let mut rig = Rig::new(1, None);
    // The leader need not be the first.
    let begun = rig.meet(1, &[2, 1]);
    assert_eq!(begun.iter().map(|one| (one.0, one.1, one.2.len())).collect::<Vec<_>>(), [(2, 0, 2), (1, 0, 2)]);
    assert!(begun[0].2[1] < begun[1].2[0], "names rise with ranks");
    let decided = rig.failure(2, 0, false, 4);
    assert_eq!(restart(&decided), Some((1, at(1))));
    assert_eq!(rig.failure(1, 0, false, 4), [], "the first failure is the cause");
    assert_eq!(rig.on(vec![Input::MembershipReopened]), []);
    let again = rig.meet(2, &[1, 2]);
    assert_eq!(again.iter().map(|one| (one.0, one.1)).collect::<Vec<_>>(), [(1, 1), (2, 1)]);
    assert_eq!(rig.failure(1, 0, false, 4), [], "of a round before");
    let last = rig.failure(1, 1, false, 4);
    assert_eq!(gave_up(&last).unwrap(), "all 1 restarts are used up (--max-restarts 1)");
    let over = MembershipEnd::Failed { reason: "worn out".into(), fenced: false };
    rig.on(vec![Input::MembershipOver(over)]);
    again[0].2.iter().for_each(|worker| _ = rig.on(vec![settled_of(1, *worker)]));
    assert!(rig.supervisor.is_over());
}

fn settled_of(node: u64, worker: WorkerId) -> Input {
    Input::Node { node: NodeId(node), event: NodeEvent::Settled { worker, evidence: Box::default() } }
}

#[test]
fn a_start_that_fails_twice_in_the_same_way_ends_the_run_unless_the_workers_had_met() {
    let mut rig = Rig::new(9, None);
    for (round, seen) in [(0, 0), (1, 3), (2, 0)] {
        rig.meet(round + 1, &[1]);
        assert!(restart(&rig.failure(1, round, true, seen)).is_some());
        rig.on(vec![Input::MembershipReopened]);
    }
    rig.meet(4, &[1]);
    let reason = gave_up(&rig.failure(1, 3, true, 0)).unwrap();
    assert_eq!(reason, "two rounds in a row failed in the same way before any worker was ready");
}

#[test]
fn a_round_without_progress_is_over_once_all_have_started() {
    let mut rig = Rig::new(1, Some(at(10)));
    let begun = rig.meet(1, &[1, 2]);
    rig.now = at(50);
    assert_eq!(rig.on(vec![Input::Tick]), [], "their fork server imports");
    rig.started(1, &begun[0].2);
    rig.started(2, &begun[1].2);
    rig.now = at(65);
    let page = WorkerProgress { worker: begun[1].2[0], phase: 0, step: 0, waited: at(0), idle: at(1) };
    rig.on(vec![Input::Node { node: NodeId(2), event: NodeEvent::Progress(vec![page]) }]);
    assert_eq!(rig.supervisor.deadline(), Some(at(74)));
    rig.now = at(74);
    match &rig.on(vec![Input::Tick])[..] {
        [Effect::EndMembershipRound { end: RoundEnd::Hung { idle }, number: 1, .. }] => assert_eq!(*idle, at(10)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lost_node_and_a_newcomer_cost_no_restart_and_a_node_that_is_done_is_not_missed() {
    let mut rig = Rig::new(0, None);
    let begun = rig.meet(1, &[1, 2, 3]);
    rig.started(1, &begun[0].2);
    begun[2].2.iter().for_each(|worker| rig.settled(3, *worker));
    let lost = |node| Input::NodeLost { node: NodeId(node), host: format!("n{node}"), reason: "gone".into() };
    assert_eq!(rig.on(vec![lost(3)]), []);
    assert_eq!(rig.on(vec![lost(2), Input::MembershipReopened]), []);
    begun[0].2.iter().for_each(|worker| rig.settled(1, *worker));
    let again = rig.meet(2, &[1, 4]);
    assert_eq!(again.iter().map(|one| (one.0, one.1, one.2.len())).collect::<Vec<_>>(), [(1, 0, 2), (4, 0, 2)]);
}

#[test]
fn no_round_begins_while_workers_of_the_one_before_are_left() {
    let mut rig = Rig::new(3, None);
    let begun = rig.meet(1, &[1]);
    rig.failure(1, 0, false, 1);
    rig.on(vec![Input::MembershipReopened]);
    let living = begun[0].2.iter().map(|worker| enn_common::wire::node_agent::LivingWorker {
        worker: *worker,
        pid: 7,
        local_rank: 0,
        seat: None,
        connected: false,
        warm: false,
        stateful: false,
        ending: true,
    });
    let inventory = Inventory {
        epoch: epoch_of(2),
        host: "n1".into(),
        workers: 2,
        workers_max: 2,
        living: living.collect(),
        snapshot: None,
        stop: None,
    };
    let formed = Input::MembershipFormed { epoch: epoch_of(2), members: vec![NodeId(1)] };
    let here = Input::Node { node: NodeId(1), event: NodeEvent::Inventory(Box::new(inventory)) };
    assert_eq!(rig.on(vec![formed, here]), []);
    let unkillable = |worker: &WorkerId| NodeEvent::Unkillable { worker: *worker, pid: 7 };
    let left: Vec<Input> =
        begun[0].2.iter().map(|worker| Input::Node { node: NodeId(1), event: unkillable(worker) }).collect();
    let begins = rig.on(left);
    assert!(matches!(begins[..], [Effect::Send { command: NodeCommand::BeginGroup { round: 1, .. }, .. }]));
}

#[test]
fn a_successor_begins_with_the_restarts_of_the_leader_before() {
    let rig = Rig::new(2, None);
    let snapshot = RunSnapshot { epoch: epoch_of(3), round: 2, restarts: 2, ..RunSnapshot::default() };
    let supervisor = Supervisor::take_over(rig.supervisor.settings.clone(), KernelBook::default(), snapshot);
    let mut rig = Rig { supervisor, ..rig };
    let begun = rig.meet(4, &[1, 2]);
    assert_eq!(begun.iter().map(|one| (one.0, one.1)).collect::<Vec<_>>(), [(1, 2), (2, 2)]);
    assert_eq!(gave_up(&rig.failure(2, 3, false, 1)).unwrap(), "all 2 restarts are used up (--max-restarts 2)");
}
