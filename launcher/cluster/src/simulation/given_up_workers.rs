//! What a supervisor alone does about workers and leaders that it had given up, input by input.

use super::run_plan::RunPlan;
use crate::{
    rendezvous::NodeId,
    supervisor::{Supervisor, effect::Effect, input::Input},
};
use enn_common::{
    id::WorkerId,
    kernels::KernelBook,
    wire::node_agent::{
        Epoch, Inventory, LivingSeat, LivingWorker, NodeCommand, NodeEvent, RunSnapshot, WorkerEvidence,
    },
};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// A worker that the supervisor has given up, or will.
const OLD: WorkerId = WorkerId(77);

fn epoch_of(number: u64) -> Epoch {
    Epoch { number, leader: NodeId(1) }
}

fn successor() -> Supervisor {
    let settings = RunPlan::for_tests(2).supervisor(NodeId(1), "n1", "1".to_owned());
    Supervisor::take_over(settings, KernelBook::default(), RunSnapshot::default())
}

/// Feeds a batch of inputs.
fn feed(supervisor: &mut Supervisor, inputs: Vec<Input>) -> Vec<Effect> {
    let mut effects = Vec::new();
    inputs.into_iter().for_each(|input| supervisor.on(SECOND, input, &mut effects));
    supervisor.settle(SECOND, &mut effects);
    effects
}

fn formed(number: u64) -> Input {
    Input::MembershipFormed { epoch: epoch_of(number), members: vec![NodeId(1), NodeId(2)] }
}

/// A node is here; it still has the old worker, or has none.
fn inventory(number: u64, node: u64, has_old: bool) -> Input {
    let seat = Some(LivingSeat { round: 0, rank: 1, halted: None, share: None });
    let old = LivingWorker {
        worker: OLD,
        pid: 1077,
        local_rank: 0,
        seat,
        connected: true,
        warm: false,
        stateful: true,
        ending: false,
    };
    let inventory = Inventory {
        epoch: epoch_of(number),
        host: format!("n{node}"),
        workers: 1,
        workers_max: 1,
        living: if has_old { vec![old] } else { Vec::new() },
        snapshot: None,
        stop: None,
    };
    Input::Node { node: NodeId(node), event: NodeEvent::Inventory(Box::new(inventory)) }
}

fn kills_old(effects: &[Effect]) -> bool {
    let kill = NodeCommand::Stop { workers: vec![OLD], kill_after: Duration::ZERO };
    effects.contains(&Effect::Send { node: NodeId(2), command: kill })
}

fn begins(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Send { command: NodeCommand::BeginRound { .. }, .. }))
}

#[test]
fn successors_in_different_memberships_give_different_names() {
    let term = |number| {
        let mut supervisor = successor();
        feed(&mut supervisor, vec![formed(number)]);
        supervisor.snapshot().term
    };
    assert_ne!(term(2), term(3));
}

#[test]
fn the_device_of_a_worker_that_was_given_up_is_free_when_it_has_settled() {
    let settings = RunPlan::for_tests(2).supervisor(NodeId(1), "n1", "1".to_owned());
    let mut supervisor = Supervisor::new(settings, KernelBook::default());
    let effects = feed(&mut supervisor, vec![formed(1), inventory(1, 1, false), inventory(1, 2, true)]);
    assert!(kills_old(&effects), "{effects:?}");
    feed(&mut supervisor, vec![Input::CheckpointFound(Ok(None))]);
    let effects = feed(&mut supervisor, vec![Input::LogDirMade { round: 0, error: None }]);
    assert!(!begins(&effects), "{effects:?}");
    let event = NodeEvent::Settled { worker: OLD, evidence: Box::new(WorkerEvidence::default()) };
    let effects = feed(&mut supervisor, vec![Input::Node { node: NodeId(2), event }]);
    assert!(begins(&effects), "{effects:?}");
}

#[test]
fn a_successor_gives_up_the_workers_of_a_node_that_it_lost() {
    let mut supervisor = successor();
    let effects = feed(&mut supervisor, vec![formed(2), inventory(2, 1, false), inventory(2, 2, true)]);
    assert!(!kills_old(&effects), "{effects:?}");
    let lost = Input::NodeLost { node: NodeId(2), host: "n2".to_owned(), reason: "nothing was heard of it".to_owned() };
    feed(&mut supervisor, vec![lost, Input::MembershipReopened]);
    let effects = feed(&mut supervisor, vec![formed(3), inventory(3, 1, false), inventory(3, 2, true)]);
    assert!(kills_old(&effects), "{effects:?}");
}
