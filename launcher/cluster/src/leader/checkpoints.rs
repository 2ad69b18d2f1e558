//! Checkpoints of a run as its leader sees them.

use super::fence::Fence;
use crate::supervisor::{
    CompleteCheckpoint,
    effect::PredictedChunk,
    input::{CommittedCheckpoint, FoundCheckpoint},
};
use std::path::Path;

/// Cause of a failed operation on checkpoints.
pub type CheckpointFailure = Box<dyn std::error::Error + Send + Sync>;

/// Store of a run's checkpoints. All calls come from one thread.
pub trait Checkpoints: Send {
    /// Takes what says whether this process may still write: it is asked before each rename and each removal. Comes first.
    fn set_fence(&mut self, _fence: Fence) {}

    /// Removes what dead attempts left behind, never a committed checkpoint, and finds the newest committed one. Called before a round
    /// in which nobody has state.
    ///
    /// # Errors
    /// The directory cannot be used, or there are checkpoints and none of them is whole (`FindError`).
    fn prepare(&mut self) -> Result<Option<FoundCheckpoint>, CheckpointFailure>;

    /// Takes a checkpoint that a worker could not read, because of `file`, from those that are found, if it is damaged. Returns what is
    /// wrong with it.
    ///
    /// # Errors
    /// The checkpoint cannot be set aside.
    fn set_aside(&mut self, _path: &Path, _file: Option<&Path>) -> Result<Option<String>, CheckpointFailure> {
        Ok(None)
    }

    /// Makes the shards a checkpoint, whole or not at all, and removes old ones.
    ///
    /// # Errors
    /// No checkpoint was made.
    fn commit(&mut self, shards: &CompleteCheckpoint) -> Result<CommittedCheckpoint, CheckpointFailure>;

    /// Removes now what need not stay when this checkpoint is there, because there was no room for it. Returns whether anything was
    /// removed.
    fn make_room(&mut self, _coming: &CompleteCheckpoint) -> bool {
        false
    }

    /// Removes what the workers of `attempt` wrote of steps before `below` and nobody will commit. Other workers live and may write
    /// elsewhere.
    fn discard(&mut self, _attempt: &str, _below: u64) {}

    /// Notes durably that rows are predicted, so that they need not be predicted again whatever happens.
    fn predicted(&mut self, _chunk: &PredictedChunk) {}
}
