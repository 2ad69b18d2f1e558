//! Failures of a collective of this group, as small values that are passed between threads and ranks.

use super::super::CommError;
use std::time::Duration;
use tch::TchError;

/// State of a rank in the group, as the others read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RankState {
    Member,
    /// The rank left after its last collective.
    Left,
    Aborted,
    /// The rank gave the group up because of a fault of this rank.
    GaveUp(u32),
}

impl RankState {
    const GAVE_UP: u32 = 3;

    pub(super) fn word(self) -> u32 {
        match self {
            Self::Member => 0,
            Self::Left => 1,
            Self::Aborted => 2,
            Self::GaveUp(about) => Self::GAVE_UP + about,
        }
    }

    pub(super) fn read(word: u32) -> Self {
        match word {
            0 => Self::Member,
            1 => Self::Left,
            2 => Self::Aborted,
            gave_up => Self::GaveUp(gave_up - Self::GAVE_UP),
        }
    }
}

/// Description of a collective call, which must be equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CollectiveCall {
    /// Operation, kind and root, packed.
    pub(super) what: u64,
    pub(super) bytes: u64,
    /// Position of the tensor in shared regions; 0 if it is in none.
    pub(super) at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The process of `peer` is gone.
    Died { peer: u32 },
    /// `peer` left after what it thought was the last collective.
    Left { peer: u32 },
    /// The process of `peer` was told to cut the group.
    PeerAborted { peer: u32 },
    /// Another rank gave up because of `peer`.
    GivenUp { peer: u32 },
    /// `peer` did not come in time.
    Silent { peer: u32 },
    /// `peer` called something else.
    OutOfStep { peer: u32, mine: CollectiveCall, theirs: CollectiveCall },
    /// This process was told to cut the group.
    Aborted,
}

impl Fault {
    /// Returns the state that this rank publishes after the fault.
    pub(super) fn state(self) -> RankState {
        match self {
            Self::Died { peer }
            | Self::Left { peer }
            | Self::PeerAborted { peer }
            | Self::GivenUp { peer }
            | Self::Silent { peer }
            | Self::OutOfStep { peer, .. } => RankState::GaveUp(peer),
            Self::Aborted => RankState::Aborted,
        }
    }
}

/// Context of a collective's errors.
#[derive(Debug, Clone, Copy)]
pub(super) struct CollectiveContext {
    pub(super) operation: &'static str,
    pub(super) rank: u32,
    pub(super) size: u32,
    /// Longest time of one collective.
    pub(super) timeout: Duration,
}

impl CollectiveContext {
    pub(super) fn error(self, fault: Fault) -> CommError {
        let Self { operation, rank, size, timeout } = self;
        let lost = |peer, what| CommError::PeerLost { operation, rank, size, peer, what };
        match fault {
            Fault::Died { peer } => lost(peer, "died"),
            Fault::Left { peer } => lost(peer, "left the group after fewer collectives"),
            Fault::PeerAborted { peer } => lost(peer, "ended the group"),
            Fault::GivenUp { peer } => lost(peer, "was given up by another rank"),
            Fault::Silent { peer } => CommError::PeerSilent { operation, rank, size, peer, timeout },
            Fault::OutOfStep { peer, mine, theirs } => {
                CommError::OutOfStep { rank, size, peer, mine: mine.to_string(), theirs: theirs.to_string() }
            }
            Fault::Aborted => CommError::Aborted { operation, rank, size },
        }
    }

    pub(super) fn failed(self, error: &TchError) -> CommError {
        let Self { operation, rank, size, .. } = self;
        CommError::Collective { operation, rank, size, message: error.to_string() }
    }

    pub(super) fn timed_out(self, timeout: Duration) -> CommError {
        let Self { operation, rank, size, .. } = self;
        CommError::TimedOut { operation, rank, size, timeout }
    }
}
