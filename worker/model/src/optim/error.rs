//! Errors of optimizer steps and of restoring optimizer state.

use tch::TchError;

/// An optimizer step or a restore that failed.
#[derive(Debug, thiserror::Error)]
pub enum OptimError {
    /// libtorch refused an operation of the update.
    #[error("failed to {doing}: {source}")]
    Torch {
        /// Name of the action that failed.
        doing: &'static str,
        #[source]
        source: TchError,
    },
    /// Saved state that lacks an entry, or has one of another shape.
    #[error(
        "optimizer state {name} has shape {found:?}, expected {expected:?}\nhint: is this a checkpoint of another model?"
    )]
    State {
        /// Full name of the entry.
        name: String,
        /// Shape in the checkpoint; `None` when the entry is missing.
        found: Option<Vec<i64>>,
        expected: Vec<i64>,
    },
}

/// Returns a conversion that adds the name of the action to an error of libtorch.
pub(super) fn failed(doing: &'static str) -> impl Fn(TchError) -> OptimError {
    move |source| OptimError::Torch { doing, source }
}
