//! What a program is started for.

use crate::node_agent::{
    effect::ProgramRound,
    environment::{ScriptPlaces, StoreAddress},
    program_ranks::Ranks,
};
use enn_common::{id::WorkerId, wire::node_agent::SeatFacts};

/// A seat in a round, or a place from which a spare waits for one.
#[derive(Debug, Clone)]
pub(super) struct ProgramStart<'a> {
    /// Number of the present round.
    pub(super) round: u64,
    /// Restarts of all workers before it.
    pub(super) restarts: u32,
    /// Store in which the workers of a round meet.
    pub(super) store: StoreAddress,
    /// The ranks of the seat; a spare has only the local rank of the device for which it is prepared.
    pub(super) ranks: Ranks,
    /// Set where the worker may attach.
    pub(super) script: Option<ScriptStart<'a>>,
}

/// A worker that may attach to the broker of its node.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScriptStart<'a> {
    pub(super) worker: WorkerId,
    pub(super) places: ScriptPlaces<'a>,
    pub(super) spare: Option<SpareKind>,
}

/// When a spare learns of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpareKind {
    /// The spare learns of it with its seat.
    Cold,
    /// The spare learns of it when it is started.
    WithDevice,
}

impl ProgramStart<'_> {
    /// Returns the seat of these ranks in a round of programs that cannot attach.
    pub(super) fn of_round(round: &ProgramRound, ranks: Ranks) -> Self {
        Self {
            round: round.plan.round,
            restarts: round.restarts,
            store: round.plan.master.clone(),
            ranks,
            script: None,
        }
    }

    /// Returns whether the worker stands by for a seat.
    pub(super) fn spare(&self) -> Option<SpareKind> {
        self.script.and_then(|script| script.spare)
    }
}

/// Returns the ranks of a seat that the supervisor gave; all workers have the same role.
pub(super) fn ranks_of(seat: &SeatFacts) -> Ranks {
    Ranks {
        local_rank: seat.local_rank,
        local_world: seat.local_world,
        rank: seat.rank,
        world: seat.world,
        role_rank: seat.rank,
        role_world: seat.world,
        node_rank: seat.node_rank,
        nodes: seat.nodes,
    }
}

/// Returns the ranks of a spare, which has none, for the device of `local_rank`.
pub(super) fn ranks_of_spare(local_rank: u32) -> Ranks {
    Ranks {
        local_rank,
        local_world: 0,
        rank: local_rank,
        world: 0,
        role_rank: 0,
        role_world: 0,
        node_rank: 0,
        nodes: 0,
    }
}
