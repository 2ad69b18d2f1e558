//! Errors of optimizer steps and of restoring optimizer state.

use tch::TchError;

#[derive(Debug, thiserror::Error)]
pub enum OptimError {
    #[error("failed to {doing}: {source}")]
    Torch {
        doing: &'static str,
        #[source]
        source: TchError,
    },
    #[error(
        "optimizer state {name} has shape {found:?}, expected {expected:?}\nhint: is this a checkpoint of another model?"
    )]
    State {
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
