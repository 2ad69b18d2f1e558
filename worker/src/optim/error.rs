//! Why an update or a restored state is refused.

use tch::TchError;

/// An optimizer step or a restore that failed.
#[derive(Debug, thiserror::Error)]
pub enum OptimError {
    /// libtorch refused an operation of the update.
    #[error("failed to {doing}: {source}")]
    Torch {
        /// What was being done.
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
        /// Shape found; `None` when absent.
        found: Option<Vec<i64>>,
        expected: Vec<i64>,
    },
}

/// Names what was being done when libtorch refused.
pub(super) fn failed(doing: &'static str) -> impl Fn(TchError) -> OptimError {
    move |source| OptimError::Torch { doing, source }
}
