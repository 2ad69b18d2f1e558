//! What a launcher asks of this package: workers on one node, over several nodes that this one leads, or on a node that another one
//! leads until it is gone; and any programs (`programs`, and `scripts` where workers are replaced), on one node or several.
//!
//! `owner_loop` drives the machines; `membership` makes inputs of what the nodes agree on; `take_over` is the thread that prepares a
//! node to lead.

mod membership;
mod owner_loop;
mod programs;
mod scripts;
mod spec;
mod take_over;

pub use crate::{
    leader::{AskError, Asker, CheckpointFailure, CheckpointStore, Checkpoints, Known, Then, ask, retention_rule},
    node_agent::{
        AgentError,
        effect::NodeEnd,
        programs::{Command, GroupSpec, ReplaceSpec},
        settings::NodeSpec,
    },
    supervisor::{
        CompleteCheckpoint, GroupLimits,
        effect::{PredictedChunk, RunEnd, RunOutcome},
        input::{CommittedCheckpoint, FoundCheckpoint},
        settings::{Contract, RunJob, RunSettings},
    },
};
pub use enn_common::wire::node_agent::{RunEnding, RunFacts, StopSignal};
pub use enn_process::WorkerSpec;
pub use programs::{GroupOutcome, run_programs};
pub use spec::{AgentSpec, Membership, NodeCounts};
pub use take_over::{TakeOver, succeed};

use crate::{
    leader::Journal,
    node_agent::{environment::StoreAddress, input::NodeInput, state::NodeState, worker_shell::WorkerShell},
    rendezvous::Rendezvous,
    supervisor::input::Input,
};
use enn_broker::tcpstore;
use enn_common::{config::train::Recovery, event::EventKind, wire::node_agent::Epoch};
use enn_process::Guard;
use owner_loop::{LoopEnd, OwnerLoop};
use spec::ONLY_NODE;
use std::{
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    time::Duration,
};

/// Epoch of the only membership of a run on one node.
const ONLY_EPOCH: Epoch = Epoch { number: 1, leader: ONLY_NODE };

/// Starts the process that ends all workers when this one is killed. Call it before anything is opened that it must not inherit.
///
/// # Errors
/// The machine refuses it.
pub fn guard() -> Result<Guard, AgentError> {
    Guard::start(None, None).map_err(|source| AgentError::System { what: "start the guard process", source })
}

/// Runs workers on this node until their work is done, a signal stops them, or restarts are used up. Every event goes to `emit`.
///
/// The calling thread must live until this returns: workers die with the thread that forked them.
///
/// # Errors
/// The machine refuses something that the launcher needs, or the checkpoints cannot be used; a worker's failure is an outcome.
pub fn run(
    spec: &AgentSpec,
    checkpoints: Box<dyn Checkpoints>,
    emit: &mut dyn FnMut(EventKind),
) -> Result<RunOutcome, AgentError> {
    let guard = guard()?;
    let may_grow = spec.run.on_failure == Recovery::Reform && spec.node.workers_max > 1;
    let meets = matches!(spec.run.job, RunJob::Train { .. }) && (spec.node.workers > 1 || may_grow);
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let store = meets.then(|| tcpstore::serve(any, tcpstore::Limits::default())).transpose()?;
    let address = store.as_ref().map(|store| (store.addr().ip().to_string(), store.addr().port()));
    let mut owner = first_leader(spec, guard, None, NodeCounts::ONE, address)?;
    owner.lead_run(spec.clone(), None, Journal::Direct(emit), checkpoints, spec.fence()?)?;
    owner.to_leader.push(Input::MembershipFormed { epoch: ONLY_EPOCH, members: vec![ONLY_NODE] });
    owner.to_node.push(NodeInput::LeaderFound { epoch: ONLY_EPOCH });
    led(owner.run()?)
}

/// Does the same over all nodes that meet in the membership service, which this node leads.
///
/// # Errors
/// Those of [`run`].
pub fn lead(
    spec: &AgentSpec,
    checkpoints: Box<dyn Checkpoints>,
    emit: &mut dyn FnMut(EventKind),
    membership: Membership,
) -> Result<RunOutcome, AgentError> {
    let Membership { guard, rendezvous, nodes } = membership;
    let mut owner = first_leader(spec, guard, Some(rendezvous), nodes, None)?;
    owner.lead_run(spec.clone(), None, Journal::Direct(emit), checkpoints, spec.fence()?)?;
    led(owner.run()?)
}

/// Returns the loop of a node that leads from the beginning. Its node agent shows nothing by itself, and its leader is there.
fn first_leader<'a>(
    spec: &AgentSpec,
    guard: Guard,
    rendezvous: Option<Rc<Rendezvous>>,
    nodes: NodeCounts,
    store: Option<StoreAddress>,
) -> Result<OwnerLoop<'a, WorkerShell>, AgentError> {
    let run_dir = Some(spec.run.run_dir.clone());
    let shell = WorkerShell::new(&spec.node, guard, rendezvous.clone(), store, run_dir)?;
    OwnerLoop::new(NodeState::new(spec.node.settings(true, nodes.max), Duration::ZERO), shell, rendezvous, nodes)
}

fn led(end: LoopEnd) -> Result<RunOutcome, AgentError> {
    match end {
        LoopEnd::Led(outcome) => spec::usable(outcome),
        LoopEnd::Followed(_) | LoopEnd::NotPrepared => Err(AgentError::LeadLost),
    }
}

/// How a run ended for a node that did not lead it from the beginning.
#[derive(Debug)]
pub enum FollowerEnd<R> {
    /// Another node led.
    Ended(NodeEnd),
    /// This node took over: what `lead` returned.
    Led(R),
}

/// Takes part in a run that another node leads, until that is over for this node. When the leader is gone and this node is to lead, `lead`
/// is called in a thread of its own; it prepares what a leader needs, which may take its time, and calls [`succeed`]. The workers stay
/// where they are, owned by the calling thread, which must live until this returns. The guard and the rendezvous of `membership` are this
/// node's, which does not host it.
///
/// # Errors
/// The machine refuses something that the launcher needs.
pub fn take_part<R: Send>(
    spec: &NodeSpec,
    membership: Membership,
    emit: &mut dyn FnMut(EventKind),
    lead: impl FnOnce(TakeOver) -> R + Send,
) -> Result<FollowerEnd<R>, AgentError> {
    let Membership { guard, rendezvous, nodes } = membership;
    let shell = WorkerShell::new(spec, guard, Some(Rc::clone(&rendezvous)), None, None)?;
    let state = NodeState::new(spec.settings(false, nodes.max), Duration::ZERO);
    std::thread::scope(|scope| {
        let mut lead = Some(lead);
        let mut thread = None;
        // The rendezvous lasts until `lead` has returned: the other nodes may not have heard of the end.
        let mut owner = OwnerLoop::new(state, shell, Some(Rc::clone(&rendezvous)), nodes)?;
        owner.emit = Box::new(emit);
        owner.begin_lead = Box::new(|order| thread = lead.take().map(|lead| scope.spawn(move || lead(order))));
        let end = owner.run();
        let led = thread.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        match (end?, led) {
            (LoopEnd::Followed(end), _) => Ok(FollowerEnd::Ended(end)),
            (LoopEnd::Led(_) | LoopEnd::NotPrepared, Some(led)) => Ok(FollowerEnd::Led(led)),
            (LoopEnd::Led(_) | LoopEnd::NotPrepared, None) => Err(AgentError::LeadLost),
        }
    })
}
