//! What a launcher asks of this package: workers on one node, over several nodes that this one leads, or on a node that another one
//! leads until it is gone; and any programs (`programs`), on one node or several.
//!
//! `owner_loop` drives the machines; `membership` makes inputs of what the nodes agree on; `take_over` is the thread that prepares a
//! node to lead.

mod membership;
mod owner_loop;
mod programs;
mod spec;
mod take_over;

pub use crate::{
    leader::{AskError, Asker, CheckpointFailure, CheckpointStore, Checkpoints, Known, Then, ask, retention_rule},
    node_agent::{
        AgentError,
        effect::NodeEnd,
        programs::{Command, GroupSpec},
    },
    supervisor::{
        CompleteCheckpoint,
        effect::{PredictedChunk, RunEnd, RunOutcome},
        input::{CommittedCheckpoint, FoundCheckpoint},
        settings::{Contract, RunJob},
    },
};
pub use enn_common::wire::node_agent::{RunEnding, RunFacts, StopSignal};
pub use enn_process::WorkerSpec;
pub use programs::{GroupOutcome, run_programs};
pub use spec::{AgentSpec, FollowerSpec, Membership, NodeCounts};
pub use take_over::{TakeOver, succeed};

use crate::{
    leader::{Journal, LeaderParts, read_kernels},
    node_agent::{
        any_shell::AnyShell,
        environment::StoreAddress,
        input::NodeInput,
        shell::{NodeParts, NodeShell},
        state::NodeState,
    },
    rendezvous::{NodeId, Rendezvous},
    supervisor::{Supervisor, input::Input},
};
use enn_broker::{Broker, tcpstore};
use enn_common::{config::train::Recovery, event::EventKind, wire::node_agent::Epoch};
use enn_process::Guard;
use owner_loop::{LoopEnd, LoopParts, OwnerLoop};
use std::{
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    time::{Duration, Instant},
};

/// Name of the only node.
const ONLY_NODE: NodeId = NodeId(0);
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
    let may_grow = spec.on_failure == Recovery::Reform && spec.workers_max > 1;
    let meets = matches!(spec.job, RunJob::Train { .. }) && (spec.workers > 1 || may_grow);
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let store = meets.then(|| tcpstore::serve(any, tcpstore::Limits::default())).transpose()?;
    let address = store.as_ref().map(|store| (store.addr().ip().to_string(), store.addr().port()));
    lead_here(spec, checkpoints, emit, LeaderMeans { guard, store: address, membership: None })
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
    lead_here(spec, checkpoints, emit, LeaderMeans { guard, store: None, membership: Some((rendezvous, nodes)) })
}

/// Possessions of a first leader.
struct LeaderMeans {
    guard: Guard,
    store: Option<StoreAddress>,
    membership: Option<(Rc<Rendezvous>, NodeCounts)>,
}

fn lead_here(
    spec: &AgentSpec,
    checkpoints: Box<dyn Checkpoints>,
    emit: &mut dyn FnMut(EventKind),
    means: LeaderMeans,
) -> Result<RunOutcome, AgentError> {
    let LeaderMeans { guard, store, membership } = means;
    let rendezvous = membership.as_ref().map(|(rendezvous, _)| Rc::clone(rendezvous));
    let nodes = membership.as_ref().map_or(NodeCounts::ONE, |(_, nodes)| *nodes);
    let own = rendezvous.as_ref().map_or(ONLY_NODE, |rendezvous| rendezvous.node());
    let reached = rendezvous.as_ref().map(|rendezvous| rendezvous.store()).or_else(|| store.clone());
    let settings = spec.supervisor(
        own,
        rendezvous.as_deref().map(|rendezvous| (rendezvous, nodes)),
        owner_loop::store_text(reached),
    );
    let shell = NodeShell::new(NodeParts {
        worker: spec.worker.clone(),
        guard,
        signals: spec::signals(spec.handle_signals)?,
        broker: Broker::serve(&spec.socket_parent)?,
        rendezvous: rendezvous.clone(),
        store,
        run_dir: Some(spec.run_dir.clone()),
    })?;
    let kernels = read_kernels(&spec.run_dir, &spec.worker.program);
    let leader = LeaderParts {
        supervisor: Supervisor::new(settings, kernels),
        journal: Journal::Direct(emit),
        checkpoints: Some(checkpoints),
        fence: spec.fence()?,
        run_dir: spec.run_dir.clone(),
        program: spec.worker.program.clone(),
        host: spec.host.clone(),
        own,
        rendezvous: rendezvous.clone(),
    };
    let state = NodeState::new(spec.node(nodes), Duration::ZERO);
    let origin = Instant::now();
    // The node agent of a leader shows nothing by itself, and its leader is there.
    let mut silent = |_| {};
    let mut never = |_| {};
    let emit: &mut dyn FnMut(EventKind) = &mut silent;
    let begin_lead: owner_loop::BeginLead<'_> = &mut never;
    let is_alone = rendezvous.is_none();
    let mut owner = OwnerLoop::new(LoopParts {
        state,
        origin,
        shell: AnyShell::Own(Box::new(shell)),
        rendezvous,
        own,
        nodes,
        emit,
        begin_lead,
        programs: None,
    })?;
    owner.lead(leader)?;
    if is_alone {
        owner.to_leader.push(Input::MembershipFormed { epoch: ONLY_EPOCH, members: vec![own] });
        owner.to_node.push(NodeInput::LeaderFound { epoch: ONLY_EPOCH });
    }
    match owner.run()? {
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
/// where they are, owned by the calling thread, which must live until this returns.
///
/// # Errors
/// The machine refuses something that the launcher needs.
pub fn take_part<R: Send>(
    spec: &FollowerSpec,
    guard: Guard,
    rendezvous: &Rc<Rendezvous>,
    emit: &mut dyn FnMut(EventKind),
    lead: impl FnOnce(TakeOver) -> R + Send,
) -> Result<FollowerEnd<R>, AgentError> {
    let shell = NodeShell::new(NodeParts {
        worker: spec.worker.clone(),
        guard,
        signals: spec::signals(spec.handle_signals)?,
        broker: Broker::serve(&spec.socket_parent)?,
        rendezvous: Some(Rc::clone(rendezvous)),
        store: None,
        run_dir: None,
    })?;
    std::thread::scope(|scope| {
        let mut lead = Some(lead);
        let mut thread = None;
        let mut begin_lead = |order: TakeOver| {
            thread = lead.take().map(|lead| scope.spawn(move || lead(order)));
        };
        let parts = LoopParts {
            state: NodeState::new(spec.node(), Duration::ZERO),
            origin: Instant::now(),
            shell: AnyShell::Own(Box::new(shell)),
            rendezvous: Some(Rc::clone(rendezvous)),
            own: rendezvous.node(),
            nodes: spec.nodes,
            emit,
            begin_lead: &mut begin_lead,
            programs: None,
        };
        let end = OwnerLoop::new(parts).and_then(OwnerLoop::run);
        let led = thread.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        match (end?, led) {
            (LoopEnd::Followed(end), _) => Ok(FollowerEnd::Ended(end)),
            (LoopEnd::Led(_) | LoopEnd::NotPrepared, Some(led)) => Ok(FollowerEnd::Led(led)),
            (LoopEnd::Led(_) | LoopEnd::NotPrepared, None) => Err(AgentError::LeadLost),
        }
    })
}
