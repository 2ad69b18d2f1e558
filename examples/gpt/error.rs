//! Errors that end this program, one sentence each.

use enn_worker::{
    checkpoint::CheckpointError, comm::CommError, error::OpError, optim::OptimError, session::SessionError,
    tch::TchError,
};
use std::path::PathBuf;

/// Failures of the example.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GptError {
    /// A flag has an invalid value.
    #[error("{what} is {found}, expected {expected}")]
    Setting {
        /// Name of the flag.
        what: &'static str,
        found: String,
        expected: &'static str,
    },
    /// The batch cannot be divided among the ranks.
    #[error("--batch is {batch}, expected a multiple of ranks times --accumulation, here {parts}")]
    Batch {
        /// Windows per step.
        batch: u64,
        /// Ranks times micro-batches.
        parts: u64,
    },
    /// The text is shorter than one batch.
    #[error("{}: {windows} windows of {context} bytes, expected at least --batch {batch}", path.display())]
    Short {
        /// Text file.
        path: PathBuf,
        /// Windows in the text.
        windows: usize,
        /// Windows per step.
        batch: u64,
        /// Bytes of a window.
        context: usize,
    },
    /// A step has no micro-batches, and so no loss.
    #[error("--accumulation is 0, expected at least 1")]
    NoLoss,
    /// A weight is infinite or no number: every later step would be rejected.
    #[error(
        "weight {weight} is not finite after step {step}, expected finite ones\n  hint: a smaller --lr; training goes on from the newest \
         checkpoint"
    )]
    NotFinite {
        /// Name of the weight.
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
        /// Rejected steps in a row.
        refused: u64,
        /// Steps done.
        step: u64,
        /// Limit on rejected steps in a row.
        limit: u64,
    },
    /// The ranks see different checkpoints.
    #[error(
        "rank {rank} would resume from step {found}, rank 0 from {expected}\n  hint: --checkpoints must be one folder that all nodes see"
    )]
    Resume {
        rank: u32,
        /// Step of this rank's checkpoint.
        found: u64,
        /// Step of rank 0's checkpoint.
        expected: u64,
    },
    /// The text cannot be mapped.
    #[error(transparent)]
    File(#[from] enn_worker::data::FileError),
    /// The ranks cannot be joined.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A collective failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The model failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The optimizer failed.
    #[error(transparent)]
    Optim(#[from] OptimError),
    /// A checkpoint cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Libtorch failed outside of the model.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
    /// Standard output is closed.
    #[error("failed to print: {0}")]
    Print(#[from] std::io::Error),
}
