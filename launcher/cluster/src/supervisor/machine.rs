//! The supervisor itself.

use super::{
    effect::Effect,
    input::{Input, Time},
    settings::SupervisorSettings,
};
use enn_common::{kernels::KernelBook, wire::node_agent::RunSnapshot};

/// Decides everything about the workers of a run.
#[derive(Debug)]
pub struct Supervisor {
    settings: SupervisorSettings,
}

impl Supervisor {
    /// Makes the supervisor of a run that begins. `kernels` are those that earlier launches of the run quarantined, as far as they
    /// are of the present worker program.
    pub fn new(settings: SupervisorSettings, _kernels: KernelBook) -> Self {
        Self { settings }
    }

    /// Makes the supervisor of a run whose leader is gone, from the newest snapshot that this node has.
    pub fn take_over(settings: SupervisorSettings, _kernels: KernelBook, _snapshot: RunSnapshot) -> Self {
        Self { settings }
    }

    /// Handles one input.
    pub fn on(&mut self, _now: Time, _input: Input, _effects: &mut Vec<Effect>) {}

    /// Decides what follows from the inputs that were handled and from the time. Call it once after each batch of inputs, and once
    /// before the first.
    pub fn settle(&mut self, _now: Time, _effects: &mut Vec<Effect>) {}

    /// Returns the time of the next `Tick`, which is after the last `settle`.
    pub fn deadline(&self) -> Option<Time> {
        None
    }

    /// Returns whether `Finish` was asked for: nothing more happens.
    pub fn is_over(&self) -> bool {
        self.settings.host.is_empty()
    }

    /// Returns the name of the phase, for traces.
    pub fn phase_name(&self) -> &'static str {
        "Gathering"
    }
}

/// Description of a worker for the invariants of a simulation.
#[cfg(test)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkerView {
    pub(crate) worker: enn_common::id::WorkerId,
    pub(crate) node: crate::rendezvous::NodeId,
    pub(crate) local_rank: u32,
    /// Rank in the present round.
    pub(crate) rank: Option<u32>,
    pub(crate) ready: bool,
    /// Whole steps after which it left the round with the state of training.
    pub(crate) keeps: Option<u64>,
    /// Its end was reported and it has not settled.
    pub(crate) exited: bool,
    pub(crate) unkillable: bool,
}

#[cfg(test)]
impl Supervisor {
    pub(crate) fn workers(&self) -> Vec<WorkerView> {
        Vec::new()
    }

    /// Counts again what the tables count; one sentence when they differ.
    pub(crate) fn recount(&self) -> Result<(), String> {
        Ok(())
    }

    /// Number and attempt of the present round.
    pub(crate) fn round(&self) -> (u64, String) {
        (0, String::new())
    }

    /// Snapshot that the next leader would get now.
    pub(crate) fn snapshot(&self) -> RunSnapshot {
        RunSnapshot::default()
    }

    /// The run may go on elsewhere: this side writes nothing more.
    pub(crate) fn is_fenced(&self) -> bool {
        false
    }
}
