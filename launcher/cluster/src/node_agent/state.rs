//! What a node agent decides: a pure machine. It obeys the leader and has few rules of its own.

use super::{effect::NodeEffect, input::NodeInput, settings::NodeSettings};
use enn_common::{
    id::WorkerId,
    wire::node_agent::{Epoch, LivingWorker, RunSnapshot},
};
use std::time::Duration;

/// Time since the machines of this process were made.
type Time = Duration;

/// State of a node.
#[derive(Debug)]
pub struct NodeState {
    settings: NodeSettings,
    now: Time,
}

impl NodeState {
    /// Makes the state of a node that has no workers and knows no leader.
    pub fn new(settings: NodeSettings, now: Time) -> Self {
        Self { settings, now }
    }

    /// Handles an input, and does what is due by `now`.
    pub fn on(&mut self, now: Time, input: NodeInput, effects: &mut Vec<NodeEffect>) {
        let _ = (&self.settings, self.now, now, input, effects);
    }

    /// Returns the time of the next `Tick`.
    pub fn deadline(&self) -> Option<Time> {
        None
    }

    /// Returns the epoch of the membership in which the leader was last found; `None` while nobody leads.
    pub fn epoch(&self) -> Option<Epoch> {
        None
    }

    /// Returns whether this node leads.
    pub fn is_leading(&self) -> bool {
        false
    }

    /// Returns the newest snapshot of the run.
    pub fn snapshot(&self) -> Option<&RunSnapshot> {
        None
    }

    /// Returns the round that the node's workers were seated in and were not told to leave.
    pub fn round(&self) -> Option<u64> {
        None
    }

    /// Returns the workers whose processes live, as an inventory lists them.
    pub fn living(&self) -> Vec<LivingWorker> {
        Vec::new()
    }

    /// Returns the snapshots in memory that are neither written nor released.
    pub fn kept_snapshots(&self) -> Vec<(WorkerId, u64)> {
        Vec::new()
    }

    /// Returns whether `End` was the last effect.
    pub fn is_over(&self) -> bool {
        false
    }
}
