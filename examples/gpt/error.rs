//! What can end this program: one sentence each.

use enn_worker::{
    checkpoint::CheckpointError, comm::CommError, error::OpError, optim::OptimError, session::SessionError,
    tch::TchError,
};
use std::path::PathBuf;

/// Failures of the example.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GptError {
    /// The command line makes no sense.
    #[error("{what} is {found}, expected {expected}")]
    Setting {
        /// Flag.
        what: &'static str,
        /// Its value.
        found: String,
        /// What is possible.
        expected: &'static str,
    },
    /// The batch cannot be shared out.
    #[error("--batch is {batch}, expected a multiple of ranks times --accumulation, here {parts}")]
    Batch {
        /// Windows per step.
        batch: u64,
        /// Ranks times micro-batches.
        parts: u64,
    },
    /// Less text than one batch.
    #[error("{}: {windows} windows of {context} bytes, expected at least --batch {batch}", path.display())]
    Short {
        /// Text.
        path: PathBuf,
        /// Windows in it.
        windows: usize,
        /// Windows per step.
        batch: u64,
        /// Bytes of a window.
        context: usize,
    },
    /// A step that gave nothing: without micro-batches.
    #[error("--accumulation is 0, expected at least 1")]
    NoLoss,
    /// A weight is infinite or no number: every later step is refused.
    #[error(
        "weight {weight} is not finite after step {step}, expected finite ones\n  hint: a smaller --lr; training goes on from the newest \
         checkpoint"
    )]
    NotFinite {
        /// Weight.
        weight: String,
        /// Steps done.
        step: u64,
    },
    /// Loss or gradient was not finite too often.
    #[error(
        "{refused} steps in a row up to step {step} were refused because loss or gradient was not finite, expected fewer than \
         {limit}\n  hint: a smaller --lr, or --precision fp32"
    )]
    Refused {
        /// How many.
        refused: u64,
        /// Steps done.
        step: u64,
        /// That are too many.
        limit: u64,
    },
    /// The ranks see different checkpoints.
    #[error(
        "rank {rank} would resume from step {found}, rank 0 from {expected}\n  hint: --checkpoints must be one folder that all nodes see"
    )]
    Resume {
        /// This rank.
        rank: u32,
        /// Its step.
        found: u64,
        /// That of rank 0.
        expected: u64,
    },
    /// The text cannot be mapped.
    #[error(transparent)]
    File(#[from] enn_worker::data::FileError),
    /// The place among the other ranks.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A collective.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The model.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The optimizer.
    #[error(transparent)]
    Optim(#[from] OptimError),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Libtorch, outside of the model.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
    /// Standard output is gone.
    #[error("failed to print: {0}")]
    Print(#[from] std::io::Error),
}
