//! What a launcher asks for.

use crate::{
    leader::Fence,
    node_agent::{AgentError, settings::NodeSettings},
    rendezvous::{NodeId, Rendezvous},
    supervisor::{
        effect::{RunEnd, RunOutcome},
        settings::{Contract, RunJob, SupervisorSettings},
    },
};
use enn_common::config::train::Recovery;
use enn_process::{Guard, STOP_SIGNALS, Signals, WorkerSpec, run_dir::LockWitness};
use nix::sys::signal::Signal;
use std::{path::PathBuf, rc::Rc, time::Duration};

/// Longest silence of the agent of another node whose connection stands: its disk may be slow.
pub(super) const AGENT_SILENCE_MAX: Duration = Duration::from_secs(60);

/// A run of workers.
#[derive(Debug, Clone)]
pub struct AgentSpec {
    /// How to start one worker.
    pub worker: WorkerSpec,
    /// How workers learn of their seats.
    pub contract: Contract,
    /// Workers of this node when none is missing.
    pub workers: u32,
    /// Workers with which a round goes on at once; 1 to `workers`.
    pub workers_min: u32,
    /// Workers that the machine has room for: the run may be resized up to there.
    pub workers_max: u32,
    /// Reaction to a failure. Only training re-forms.
    pub on_failure: Recovery,
    /// Spare processes of each node; only under `Recovery::Reform`.
    pub spares: u32,
    /// Whether a worker that the others wait for loses its seat to a warm spare.
    pub evict_stragglers: bool,
    /// Time between two looks at who waits for whom.
    pub straggler_window: Duration,
    /// Time that workers have to leave a round together when they are asked to: they finish a step first.
    pub regroup_wait: Duration,
    /// Time without progress of any worker after which one is taken for dead.
    pub hang_timeout: Option<Duration>,
    /// Host name of this node.
    pub host: String,
    /// Run directory, absolute; logs go into it.
    pub run_dir: PathBuf,
    /// Lock of the run directory, where this process holds it: checkpoints are written only while it does.
    pub lock: Option<LockWitness>,
    /// Number of the first round: 0, or one more than the last round of the run that is resumed.
    pub first_round: u64,
    /// Task of the workers.
    pub job: RunJob,
    /// Maximum number of recoveries: without a step between them under `Reform`, in all under `Restart`.
    pub max_restarts: u32,
    /// Time to finish the step and save after the first signal.
    pub grace: Duration,
    /// Short directory for the broker's socket, e.g. /tmp.
    pub socket_parent: PathBuf,
    /// Whether SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 stop the run. A program with handlers of its own says no.
    pub handle_signals: bool,
}

/// A node that takes part in a run which another node leads.
#[derive(Debug, Clone)]
pub struct FollowerSpec {
    /// How to start one worker.
    pub worker: WorkerSpec,
    /// Workers of this node when none is missing.
    pub workers: u32,
    /// Workers that the machine has room for.
    pub workers_max: u32,
    /// Nodes needed, and wanted.
    pub nodes: NodeCounts,
    /// Host name of this node.
    pub host: String,
    /// Short directory for the broker's socket, e.g. /tmp.
    pub socket_parent: PathBuf,
    /// Whether SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 stop the run.
    pub handle_signals: bool,
}

/// Number of nodes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCounts {
    /// Smallest number of nodes.
    pub min: u32,
    /// Largest number of nodes.
    pub max: u32,
}

impl NodeCounts {
    pub(super) const ONE: Self = Self { min: 1, max: 1 };

    /// Returns whether a run goes on with fewer nodes than are wanted. Then two sides of a broken network may both go on.
    pub(super) fn is_elastic(self) -> bool {
        self.min < self.max
    }
}

/// Membership service of the first leader of several nodes.
#[derive(Debug)]
pub struct Membership {
    /// Started before the rendezvous.
    pub guard: Guard,
    /// This node leads it and has joined it.
    pub rendezvous: Rc<Rendezvous>,
    pub nodes: NodeCounts,
}

impl AgentSpec {
    /// Returns the settings of the supervisor. `store`: where the workers meet, for the journal.
    pub(super) fn supervisor(
        &self,
        own: NodeId,
        members: Option<(&Rendezvous, NodeCounts)>,
        store: String,
    ) -> SupervisorSettings {
        let nodes = members.map_or(NodeCounts::ONE, |(_, nodes)| nodes);
        let silence_max = members.map_or(Duration::ZERO, |(rendezvous, _)| rendezvous.silence_max());
        SupervisorSettings {
            contract: self.contract,
            own,
            host: self.host.clone(),
            several_nodes: members.is_some(),
            nodes_min: nodes.min,
            nodes_max: nodes.max,
            workers_min: self.workers_min,
            workers: self.workers,
            on_failure: self.on_failure,
            max_restarts: self.max_restarts,
            restart_window: None,
            backoff: Duration::ZERO,
            retry_early: false,
            spares: self.spares,
            evict_stragglers: self.evict_stragglers,
            straggler_window: self.straggler_window,
            regroup_wait: self.regroup_wait,
            hang_timeout: self.hang_timeout,
            grace: self.grace,
            agent_silence_max: AGENT_SILENCE_MAX + silence_max,
            first_round: self.first_round,
            // Unique among all launches that use this run directory one after the other.
            launch: format!("{:x}", std::process::id()),
            run_dir: self.run_dir.clone(),
            store,
            device: self.worker.device_name(),
            threads: self.worker.threads,
            job: self.job.clone(),
        }
    }

    /// Returns the settings of the leader's own node agent.
    pub(super) fn node(&self, nodes: NodeCounts) -> NodeSettings {
        NodeSettings {
            host: self.host.clone(),
            workers: self.workers,
            workers_max: self.workers_max,
            leads: true,
            pages_period: NodeSettings::pages_period(nodes.max),
            programs: None,
        }
    }

    /// Begins the term of this leader.
    pub(super) fn fence(&self) -> Result<Fence, AgentError> {
        let fence = self.lock.clone().map(|lock| Fence::begin(&self.run_dir, lock)).transpose();
        let fence =
            fence.map_err(|source| AgentError::System { what: "begin to lead in the run directory", source })?;
        Ok(fence.unwrap_or_default())
    }
}

impl FollowerSpec {
    /// Returns the settings of the node agent.
    pub(super) fn node(&self) -> NodeSettings {
        NodeSettings {
            host: self.host.clone(),
            workers: self.workers,
            workers_max: self.workers_max,
            leads: false,
            pages_period: NodeSettings::pages_period(self.nodes.max),
            programs: None,
        }
    }
}

/// Takes over the signals that stop a run, where that is wanted.
pub(super) fn signals(wanted: bool) -> Result<Option<Signals>, AgentError> {
    let handled = [&STOP_SIGNALS[..], &[Signal::SIGUSR1]].concat();
    let installed = if wanted { Signals::install(&handled) } else { Ok(None) };
    installed.map_err(|source| AgentError::System { what: "handle signals", source })
}

/// Returns the outcome, or the error of a run whose checkpoints cannot be used.
pub(super) fn usable(outcome: RunOutcome) -> Result<RunOutcome, AgentError> {
    match outcome.end {
        RunEnd::CheckpointsUnusable { error, none_whole } => Err(AgentError::Checkpoints { error, none_whole }),
        RunEnd::Finished | RunEnd::Stopped(_) | RunEnd::Failed { .. } | RunEnd::HandedOff => Ok(outcome),
    }
}
