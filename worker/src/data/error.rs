//! Errors between the staged arrays and a batch.

use thiserror::Error;

/// Failures of reading batches.
#[derive(Debug, Error)]
pub enum DataError {
    /// An array is shorter than its row count says: the directory was damaged after staging.
    #[error(
        "staged array {array} has {found} values, expected {expected} ({rows} rows of {width})\n  hint: delete the staged directory and stage again"
    )]
    Length {
        array: &'static str,
        found: usize,
        expected: usize,
        rows: usize,
        /// Number of values per row.
        width: usize,
    },
    /// Libtorch refused to make a tensor, usually for lack of memory.
    #[error("failed to make a batch of {rows} rows of {width} values")]
    Tensor {
        /// Number of rows in the batch.
        rows: usize,
        /// Number of values per row.
        width: usize,
        #[source]
        source: tch::TchError,
    },
    /// The thread that reads ahead ended before the batch was delivered.
    #[error("the thread that reads batches ahead ended without delivering epoch {epoch}, step {step}")]
    Ended {
        /// Epoch of the expected batch.
        epoch: u64,
        /// Step of the expected batch.
        step: u64,
    },
    /// The operating system refused the thread that reads ahead.
    #[error("failed to start the thread that reads batches ahead")]
    Thread(#[source] std::io::Error),
}
