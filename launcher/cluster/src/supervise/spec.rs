//! What a launcher asks for.

use crate::{
    leader::Fence,
    node_agent::{AgentError, settings::NodeSpec},
    rendezvous::{NodeId, Rendezvous},
    supervisor::{
        effect::{RunEnd, RunOutcome},
        settings::{RunSettings, SupervisorSettings},
    },
};
use enn_process::{Guard, run_dir::LockWitness};
use std::{rc::Rc, time::Duration};

pub(super) const ONLY_NODE: NodeId = NodeId(0);
/// Longest silence of the agent of another node whose connection stands: its disk may be slow.
pub(super) const AGENT_SILENCE_MAX: Duration = Duration::from_secs(60);

/// A run of workers that this node leads.
#[derive(Debug, Clone)]
pub struct AgentSpec {
    pub node: NodeSpec,
    pub run: RunSettings,
    /// Lock of the run directory, where this process holds it: checkpoints are written only while it does.
    pub lock: Option<LockWitness>,
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
    /// Returns the settings of the supervisor, on the node `own`.
    pub(super) fn supervisor(
        &self,
        own: NodeId,
        rendezvous: Option<&Rendezvous>,
        nodes: NodeCounts,
    ) -> SupervisorSettings {
        let silence_max = rendezvous.map_or(Duration::ZERO, Rendezvous::silence_max);
        let store = rendezvous.map(Rendezvous::store);
        SupervisorSettings {
            run: self.run.clone(),
            own,
            host: self.node.host.clone(),
            several_nodes: rendezvous.is_some(),
            nodes_min: nodes.min,
            workers: self.node.workers,
            agent_silence_max: AGENT_SILENCE_MAX + silence_max,
            // Unique among all launches that use this run directory one after the other.
            launch: format!("{:x}", std::process::id()),
            store: store.map_or_else(String::new, |(host, port)| format!("{host}:{port}")),
            device: self.node.worker.device_name(),
            threads: self.node.worker.threads,
        }
    }

    /// Begins the term of this leader.
    pub(super) fn fence(&self) -> Result<Fence, AgentError> {
        let fence = self.lock.clone().map(|lock| Fence::begin(&self.run.run_dir, lock)).transpose();
        let fence =
            fence.map_err(|source| AgentError::System { what: "begin to lead in the run directory", source })?;
        Ok(fence.unwrap_or_default())
    }
}

/// Returns the outcome, or the error of a run whose checkpoints cannot be used.
pub(super) fn usable(outcome: RunOutcome) -> Result<RunOutcome, AgentError> {
    match outcome.end {
        RunEnd::CheckpointsUnusable { error, none_whole } => Err(AgentError::Checkpoints { error, none_whole }),
        RunEnd::Finished | RunEnd::Stopped(_) | RunEnd::Failed { .. } | RunEnd::HandedOff => Ok(outcome),
    }
}
