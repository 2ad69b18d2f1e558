//! State of a round, and of the recovery from a failure.

use super::{hang::Pulse, input::Time, seating::NodeIndex};
use enn_common::id::{Rank, Round, WorkerId};
use std::{collections::BTreeSet, path::PathBuf};

/// The round under way, or the last one.
#[derive(Debug, Default)]
pub(super) struct RoundState {
    pub(super) number: Round,
    /// Name of the attempt, in which its workers write checkpoints.
    pub(super) attempt: String,
    /// Number of its seats.
    pub(super) world: usize,
    /// Step at which the round began.
    pub(super) base: u64,
    /// Furthest step that a worker that is gone had done.
    pub(super) reached: u64,
    /// A worker was ready.
    pub(super) ready: bool,
    /// Workers kept the state when the round began.
    pub(super) survivors: bool,
    /// Workers that did their work and ended.
    pub(super) finished: u32,
    /// One of them ended because it was asked to.
    pub(super) stopped: bool,
    /// Worker that failed first. Others may fail because of it.
    pub(super) first_failure: Option<WorkerId>,
    /// Sentence of the first failure.
    pub(super) cause: Option<String>,
    /// Time when the first failure was noticed.
    pub(super) failed_at: Option<Time>,
    /// Its end is in the journal.
    pub(super) ended: bool,
    /// Number of parts of each micro-batch.
    pub(super) split: u32,
    /// Workers that leave sit in it once more, for they had what the others lacked.
    pub(super) with_leavers: bool,
    /// Worker that loses its seat when the round is left, if a spare is there.
    pub(super) evicted: Option<WorkerId>,
    /// Why the round is left without a failure.
    pub(super) regroup_reason: Option<String>,
    /// The workers' pages ask them to leave the round.
    pub(super) regroup_flag: bool,
    /// A worker found the checkpoint damaged from which the round was to begin.
    pub(super) damaged: Option<DamagedCheckpoint>,
    /// Time of the last sign of progress of any worker.
    pub(super) progress_at: Time,
    /// Time when the pages are looked at for a worker that hangs.
    pub(super) hang_check: Time,
    /// A worker that hangs, while the nodes look at what all workers do.
    pub(super) inquiry: Option<HangInquiry>,
}

/// A worker that hangs, before it is taken for dead.
#[derive(Debug)]
pub(super) struct HangInquiry {
    pub(super) hung: Pulse,
    /// End of the wait for stacks.
    pub(super) until: Time,
    /// Nodes that have not written them.
    pub(super) awaited: BTreeSet<NodeIndex>,
    pub(super) stacks: Option<PathBuf>,
}

/// A checkpoint that a worker could not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DamagedCheckpoint {
    pub(super) path: PathBuf,
    /// File that shows it.
    pub(super) file: Option<PathBuf>,
}

impl RoundState {
    pub(super) fn new(number: Round, attempt: String, now: Time) -> Self {
        Self { number, attempt, split: 1, progress_at: now, hang_check: now, ..Self::default() }
    }

    /// Notes which worker failed first, and when.
    pub(super) fn note_failure(&mut self, worker: WorkerId, now: Time) {
        self.first_failure.get_or_insert(worker);
        self.failed_at.get_or_insert(now);
    }

    /// Forgets the failures: what follows from them is decided.
    pub(super) fn forget_failure(&mut self) {
        self.first_failure = None;
        self.cause = None;
        self.failed_at = None;
    }
}

/// From a failure to the first step after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RecoveryClock {
    /// Time when the failure was noticed.
    pub(super) since: Time,
    /// Steps that must be done again.
    pub(super) lost_steps: u64,
    /// Rank that had the state; `None`: the checkpoint.
    pub(super) from_rank: Option<Rank>,
}
