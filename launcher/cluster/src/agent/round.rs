//! What is known of the round under way, and what the agent as a whole is doing about it.
//!
//! ```text
//!             a failure                    all have left               all seats are given
//! Working ───────────────► Halting ─────────────────────► (the verdict) ────────────────► Working, the next round
//!    │  ▲ └─► Regrouping ──────┴─ a wish, not a failure ───────┘ │
//!    │  │                                                         ▼
//!    │  └───── Paused, until it is continued ◄──────────────────┤
//!    └─────────────────────────────────────► Ending, Closing ─► Killed ─► nobody is left: the run is over, or all start again
//! ```

use super::{shards::Shards, staged::Staged};
use enn_common::id::{Rank, Round, WorkerId};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Time that a worker has to leave a round that is over. Who does not is killed.
pub(super) const HALT_WAIT_MAX: Duration = Duration::from_secs(10);
/// Time between TERM and KILL for all workers when nothing of theirs is needed.
pub(super) const FAILED_GRACE: Duration = Duration::from_millis(500);

/// What the agent is doing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mode {
    /// The nodes of the run have to agree who takes part; nobody has state.
    Gathering,
    /// The round's workers work.
    Working,
    /// They were asked to leave it at the same step, by then.
    Regrouping(Instant),
    /// The round is over; those who live say so, by then. `None`: those who did not were killed.
    Halting(Option<Instant>),
    /// All stand and wait, since then, for the run to be continued.
    Paused(Instant),
    /// Everybody ends because a worker failed: TERM, and KILL then.
    Ending(Instant),
    /// The work is done; who is left has until then.
    Closing(Instant),
    /// Everybody got KILL.
    Killed,
}

impl Mode {
    /// Whether everybody is to end.
    pub(super) fn is_last(self) -> bool {
        matches!(self, Self::Ending(_) | Self::Closing(_) | Self::Killed)
    }

    /// Whether the round's workers work, or soon leave by themselves.
    pub(super) fn is_under_way(self) -> bool {
        matches!(self, Self::Working | Self::Regrouping(_))
    }

    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Gathering | Self::Working | Self::Paused(_) | Self::Killed => None,
            Self::Halting(at) => at,
            Self::Regrouping(at) | Self::Ending(at) | Self::Closing(at) => Some(at),
        }
    }
}

/// The round under way.
#[derive(Debug)]
pub(super) struct RoundState {
    pub(super) round: Round,
    pub(super) mode: Mode,
    /// Name of this attempt, in which its workers write checkpoints.
    pub(super) attempt: String,
    /// The step at which it began.
    pub(super) base: u64,
    /// The furthest step that any worker that is gone had done.
    pub(super) reached: u64,
    /// Any worker was ready.
    pub(super) ready: bool,
    /// Any worker kept the state when it began.
    pub(super) survivors: bool,
    /// Workers that did their work and ended.
    pub(super) finished: u32,
    /// One of them ended because it was asked to.
    pub(super) stopped: bool,
    /// Who failed first.
    pub(super) culprit: Option<WorkerId>,
    /// Why: the first failure's sentence.
    pub(super) cause: Option<String>,
    /// When the first failure was noticed.
    pub(super) failed_at: Option<Instant>,
    /// Into so many each micro-batch is cut.
    pub(super) split: u32,
    /// Checkpoints of which not all ranks have written their share.
    pub(super) shards: Shards,
    /// Shares that workers of this node left in memory, by step.
    pub(super) staged: BTreeMap<u64, Vec<Staged>>,
    /// Who loses its seat when the round is left, if a spare is there.
    pub(super) evicted: Option<WorkerId>,
    /// Why it is left without a failure.
    pub(super) wish: Option<String>,
    /// The checkpoint that a worker found damaged when it was to begin from it, and the file that is.
    pub(super) damaged: Option<(PathBuf, Option<PathBuf>)>,
}

impl RoundState {
    pub(super) fn new(round: Round, attempt: String, base: u64, survivors: bool) -> Self {
        Self {
            round,
            mode: Mode::Working,
            attempt,
            base,
            reached: 0,
            ready: false,
            survivors,
            finished: 0,
            stopped: false,
            culprit: None,
            cause: None,
            failed_at: None,
            split: 1,
            shards: Shards::new(0),
            staged: BTreeMap::new(),
            evicted: None,
            wish: None,
            damaged: None,
        }
    }

    /// Notes who failed first, and when. Others may fail because of it.
    pub(super) fn suspect(&mut self, worker: WorkerId, now: Instant) {
        self.culprit.get_or_insert(worker);
        self.failed_at.get_or_insert(now);
    }
}

/// From a failure to the first step after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Recovering {
    /// When the failure was noticed.
    pub(super) since: Instant,
    /// Steps that must be done again.
    pub(super) lost_steps: u64,
    /// Who had the state; `None`: the checkpoint.
    pub(super) from_rank: Option<Rank>,
}
