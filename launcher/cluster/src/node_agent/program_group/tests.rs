//! A node that runs programs, as the node state sees it: rounds, failures, signals and the end of a run.

use super::*;
use crate::{
    node_agent::{input::NodeInput, settings::NodeSettings, state::NodeState},
    rendezvous::NodeId,
};
use enn_common::wire::node_agent::{NodeCommand, RunSnapshot, WorkerEvidence, WorkerProgress};

const GRACE: Duration = Duration::from_secs(30);

/// Agent that leads.
const LEADER: NodeId = NodeId(1);

fn epoch_of(number: u64) -> Epoch {
    Epoch { number, leader: LEADER }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// One node with two workers, and its time.
struct Rig {
    state: NodeState,
    now: Duration,
}

impl Rig {
    fn new(leads: bool, awaits_fork_server: bool) -> Self {
        let programs = ProgramSettings {
            grace: GRACE,
            restarts_max: 2,
            leave_background: true,
            awaits_fork_server,
            watches_progress: false,
        };
        let settings = NodeSettings {
            host: "n1".into(),
            workers: 2,
            workers_max: 2,
            leads,
            pages_period: at(1),
            programs: Some(programs),
        };
        Self { state: NodeState::new(settings, Duration::ZERO), now: Duration::ZERO }
    }

    fn on(&mut self, input: NodeInput) -> Vec<NodeEffect> {
        let mut effects = Vec::new();
        self.state.on(self.now, input, &mut effects);
        effects
    }

    /// Hands over an input; returns the effects but for what is told to people and reported.
    fn acts(&mut self, input: NodeInput) -> Vec<NodeEffect> {
        let told = |effect: &NodeEffect| matches!(effect, NodeEffect::Journal(_) | NodeEffect::Report(_));
        self.on(input).into_iter().filter(|effect| !told(effect)).collect()
    }

    /// The nodes meet, and the leader begins the round; returns what the node does.
    fn begin(&mut self, round: u64) -> Vec<NodeEffect> {
        let member = |host: &str| Member { host: host.into(), local_world: 2, role: "default".into() };
        let members = vec![member("n0"), member("n1")];
        let plan = RendezvousInfo {
            round,
            node_rank: 1,
            members,
            master: ("n0".into(), 29400),
            leader: LEADER,
            nodes: Vec::new(),
        };
        let epoch = epoch_of(round + 1);
        assert_eq!(self.acts(NodeInput::RoundPlanned(Box::new(plan))), []);
        assert_eq!(self.acts(NodeInput::LeaderFound { epoch }), []);
        self.acts(NodeInput::Command { epoch, command: begin_group(round) })
    }

    /// Both workers start and work.
    fn run(&mut self, round: u64) {
        let starts = self.begin(round);
        assert!(matches!(starts[..], [NodeEffect::StartPrograms(_)]), "{starts:?}");
        for number in [0, 1] {
            let worker = worker(round, number);
            self.on(NodeInput::ProgramSpawned { worker, pid: 100 + number, forked: false });
        }
    }

    /// A worker ends and is settled.
    fn exits(&mut self, round: u64, number: u32, code: Option<i32>) -> Vec<NodeEffect> {
        let worker = worker(round, number);
        let page = WorkerProgress { worker, phase: 0, step: 0, waited: at(0), idle: at(0) };
        let signal = code.is_none().then_some(15);
        let exit = WorkerExit { code, signal, late: at(0), page };
        let mut effects = self.acts(NodeInput::Exited { worker, exit });
        effects.extend(self.acts(NodeInput::Evidence { worker, evidence: WorkerEvidence::default(), gpu: None }));
        let own = |effect: &NodeEffect| {
            matches!(
                effect,
                NodeEffect::ReadEvidence { .. } | NodeEffect::Disconnect { .. } | NodeEffect::Forget { .. }
            )
        };
        effects.retain(|effect| !own(effect));
        effects
    }
}

fn worker(round: u64, number: u32) -> WorkerId {
    WorkerId(u32::try_from(round).unwrap() * 10 + number)
}

fn begin_group(round: u64) -> NodeCommand {
    let workers = vec![worker(round, 0), worker(round, 1)];
    let snapshot = Box::new(RunSnapshot { epoch: epoch_of(round + 1), ..RunSnapshot::default() });
    NodeCommand::BeginGroup { round, restarts: 1, workers, snapshot }
}

fn signal(round: u64, number: u32, signal: EndSignal) -> NodeEffect {
    NodeEffect::Signal { worker: worker(round, number), signal }
}

fn failure(round: u64) -> Box<Failure> {
    Box::new(Failure { round, rank: 2, code: Some(3), ..Failure::default() })
}

const CLEAR: NodeEffect = NodeEffect::ClearGroup { keep_background: false };

fn ended(effects: &[NodeEffect]) -> Option<&GroupEnd> {
    match effects.last() {
        Some(NodeEffect::End(NodeEnd::Group(end))) => Some(end),
        _ => None,
    }
}

#[test]
fn the_first_failure_ends_the_others_unasked_and_the_node_joins_when_none_is_left() {
    let mut rig = Rig::new(false, false);
    rig.run(0);
    assert_eq!(rig.exits(0, 0, Some(3)), [NodeEffect::FindCause]);
    let effects = rig.on(NodeInput::CauseFound(failure(0)));
    let told = NodeEffect::Report(NodeEvent::GroupFailed { round: 0, failure: failure(0) });
    assert_eq!(effects, [told, signal(0, 1, EndSignal::Terminate)]);
    assert_eq!(rig.exits(0, 1, None), [CLEAR], "to join before the round is over would say that it left the next");
    let effects = rig.on(NodeInput::RoundEnded(RoundEnd::Failed(failure(0))));
    let left = effects.iter().find_map(|effect| match effect {
        NodeEffect::Journal(EventKind::RoundFailed { restarting: true, restarts_left, .. }) => Some(*restarts_left),
        _ => None,
    });
    assert_eq!(left, Some(0), "of two, one before and this one");
    assert_eq!(effects.last(), Some(&NodeEffect::RejoinMembership));
    rig.run(1);
}

#[test]
fn workers_that_do_not_end_are_killed_after_the_grace() {
    let mut rig = Rig::new(true, false);
    rig.run(0);
    let lost = RoundEnd::NodeLost { host: "n0".into(), reason: "gone".into() };
    let asked = [0, 1].map(|number| signal(0, number, EndSignal::Terminate));
    assert_eq!(rig.acts(NodeInput::RoundEnded(lost)), asked);
    assert_eq!(rig.state.deadline(), Some(GRACE));
    rig.now = GRACE;
    let killed = [0, 1].map(|number| signal(0, number, EndSignal::Kill));
    assert_eq!(rig.acts(NodeInput::Tick), killed);
    assert_eq!(rig.exits(0, 0, None), []);
    assert_eq!(rig.exits(0, 1, None), [CLEAR, NodeEffect::RejoinMembership]);
}

#[test]
fn a_signal_is_passed_on_and_the_node_leaves_and_a_second_one_kills() {
    let mut rig = Rig::new(true, false);
    rig.run(0);
    let leave = NodeEffect::LeaveMembership { why: "SIGINT".into() };
    let asked = [0, 1].map(|number| signal(0, number, EndSignal::Request(Signal::SIGINT)));
    assert_eq!(rig.acts(NodeInput::ProgramSignal(Signal::SIGINT)), [vec![leave], asked.to_vec()].concat());
    let stopped = RunEnd::Stopped { by: "SIGINT on n1".into() };
    assert_eq!(rig.acts(NodeInput::GroupOver(stopped.clone())), []);
    let killed = [0, 1].map(|number| signal(0, number, EndSignal::Kill));
    assert_eq!(rig.acts(NodeInput::ProgramSignal(Signal::SIGINT)), killed);
    assert_eq!(rig.exits(0, 0, None), []);
    let effects = rig.exits(0, 1, None);
    let end = ended(&effects).expect("the end");
    assert_eq!((&end.end, end.stopped_by, end.is_stopped_twice), (&stopped, Some(Signal::SIGINT), true));
    assert!(rig.state.is_over());
}

#[test]
fn a_signal_after_that_of_the_time_limit_is_no_second_one() {
    let mut rig = Rig::new(true, false);
    rig.run(0);
    rig.acts(NodeInput::ProgramSignal(Signal::SIGUSR1));
    let effects = rig.acts(NodeInput::ProgramSignal(Signal::SIGTERM));
    let asked = [0, 1].map(|number| signal(0, number, EndSignal::Request(Signal::SIGTERM)));
    assert_eq!(effects[1..], asked);
    assert_eq!(rig.acts(NodeInput::ProgramSignal(Signal::SIGUSR1)), [], "the same one, heard from another node");
}

#[test]
fn a_node_that_is_done_waits_for_the_others_and_its_background_lives_on() {
    let mut rig = Rig::new(false, false);
    rig.run(0);
    assert_eq!(rig.exits(0, 0, Some(0)), []);
    assert_eq!(rig.exits(0, 1, Some(0)), [NodeEffect::FinishMembership { epoch: epoch_of(1) }]);
    let effects = rig.acts(NodeInput::GroupOver(RunEnd::Finished));
    assert_eq!(effects[0], NodeEffect::ClearGroup { keep_background: true });
    assert_eq!(ended(&effects).map(|end| (end.end.clone(), end.rounds)), Some((RunEnd::Finished, 1)));
}

#[test]
fn a_failure_elsewhere_restarts_a_node_that_was_done() {
    let mut rig = Rig::new(false, false);
    rig.run(0);
    rig.exits(0, 0, Some(0));
    rig.exits(0, 1, Some(0));
    let effects = rig.acts(NodeInput::RoundEnded(RoundEnd::Failed(failure(0))));
    assert_eq!(effects, [CLEAR, NodeEffect::RejoinMembership]);
    rig.run(1);
}

#[test]
fn the_round_waits_for_the_fork_server_and_a_round_that_is_over_does_not_begin() {
    let mut rig = Rig::new(true, true);
    assert_eq!(rig.begin(0), []);
    let starts = rig.acts(NodeInput::ForkServer { is_loading: false });
    assert!(matches!(starts[..], [NodeEffect::StartPrograms(_)]));
    let mut rig = Rig::new(true, true);
    rig.begin(0);
    let waits = RoundEnd::NodeWaiting { host: "n2".into() };
    assert_eq!(rig.acts(NodeInput::RoundEnded(waits.clone())), [CLEAR, NodeEffect::RejoinMembership]);
    assert_eq!(rig.acts(NodeInput::ForkServer { is_loading: false }), []);
    // The membership ended it before the leader began it.
    let plan = RendezvousInfo {
        round: 1,
        node_rank: 0,
        members: Vec::new(),
        master: ("n0".into(), 1),
        leader: LEADER,
        nodes: Vec::new(),
    };
    rig.on(NodeInput::RoundPlanned(Box::new(plan)));
    rig.on(NodeInput::LeaderFound { epoch: epoch_of(2) });
    assert_eq!(rig.acts(NodeInput::RoundEnded(waits)), [NodeEffect::RejoinMembership]);
    assert_eq!(rig.acts(NodeInput::Command { epoch: epoch_of(2), command: begin_group(1) }), []);
}

#[test]
fn a_program_that_cannot_be_started_is_a_failure() {
    let mut rig = Rig::new(false, false);
    rig.begin(0);
    rig.on(NodeInput::ProgramSpawned { worker: worker(0, 0), pid: 100, forked: true });
    let effects = rig.on(NodeInput::ProgramNotStarted { worker: worker(0, 1), failure: Some(failure(0)) });
    let told = NodeEffect::Report(NodeEvent::GroupFailed { round: 0, failure: failure(0) });
    assert!(effects.contains(&told) && effects.contains(&signal(0, 0, EndSignal::Terminate)), "{effects:?}");
}

#[test]
fn stacks_are_read_before_workers_that_hang_are_ended() {
    let mut rig = Rig::new(true, false);
    rig.run(0);
    let hung = RoundEnd::Hung { idle: at(9) };
    let end = RunEnd::Failed { end: hung, reason: "no restarts are allowed".into() };
    assert_eq!(
        rig.acts(NodeInput::GroupOver(end.clone())),
        [NodeEffect::CollectStacks { round: 0, workers: vec![worker(0, 0), worker(0, 1)], limit: STACKS_MAX }]
    );
    let summary = vec!["rank 0 sleeps".to_owned()];
    let stacks = NodeInput::StacksCollected { round: 0, dir: "/run/stacks/0".into(), summary };
    let effects = rig.on(stacks);
    let told: Vec<&str> = effects
        .iter()
        .filter_map(|effect| match effect {
            NodeEffect::Journal(EventKind::HangDetected { .. }) => Some("hang"),
            NodeEffect::Journal(EventKind::Warned { .. }) => Some("stack"),
            NodeEffect::Journal(EventKind::RoundFailed { restarting: false, .. }) => Some("failed"),
            NodeEffect::Signal { signal: EndSignal::Terminate, .. } => Some("terminate"),
            _ => None,
        })
        .collect();
    assert_eq!(told, ["hang", "stack", "failed", "terminate", "terminate"]);
    rig.exits(0, 0, None);
    assert_eq!(ended(&rig.exits(0, 1, None)).map(|over| over.end.clone()), Some(end));
}

#[test]
fn a_node_takes_over_with_the_restarts_that_it_heard_of() {
    let mut rig = Rig::new(false, false);
    rig.run(0);
    rig.on(NodeInput::RoundEnded(RoundEnd::Failed(failure(0))));
    rig.exits(0, 0, None);
    rig.exits(0, 1, None);
    rig.on(NodeInput::LeaderLost { reason: "it died".into() });
    let members = vec![NodeId(2)];
    let plan = RendezvousInfo {
        round: 1,
        node_rank: 0,
        members: Vec::new(),
        master: ("n1".into(), 1),
        leader: LEADER,
        nodes: Vec::new(),
    };
    rig.on(NodeInput::RoundPlanned(Box::new(plan)));
    let effects = rig.acts(NodeInput::BecameLeader { epoch: epoch_of(2), members });
    let NodeEffect::Lead { snapshot, .. } = &effects[0] else { panic!("{effects:?}") };
    assert_eq!(snapshot.restarts, 1);
    assert!(rig.state.is_leading());
}
