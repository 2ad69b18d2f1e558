//! State of a run of programs.

use super::group_budget::GroupBudget;
use crate::rendezvous::NodeId;
use enn_common::{failure::Failure, id::WorkerId};
use std::collections::BTreeSet;

/// What the supervisor knows of a run of programs besides its nodes and workers.
#[derive(Debug, Default)]
pub(super) struct ProgramRun {
    pub(super) budget: GroupBudget,
    /// Members of the present membership, by rank.
    pub(super) members: Vec<NodeId>,
    /// Workers of the round whose start is not reported.
    pub(super) unstarted: BTreeSet<WorkerId>,
    /// First failure of the round, until it is known whether its program had met the others in the store.
    pub(super) failure: Option<Box<Failure>>,
    /// The membership was told that the round is over.
    pub(super) is_closed: bool,
}
