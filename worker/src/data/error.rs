//! Errors between the staged arrays and a batch.

use thiserror::Error;

#[derive(Debug, Error)]
pub enum DataError {
    #[error(
        "staged array {array} has {found} values, expected {expected} ({rows} rows of {width})\n  hint: delete the staged directory and stage again"
    )]
    Length { array: &'static str, found: usize, expected: usize, rows: usize, width: usize },
    #[error("failed to make a batch of {rows} rows of {width} values")]
    Tensor {
        rows: usize,
        width: usize,
        #[source]
        source: tch::TchError,
    },
    #[error("the thread that reads batches ahead ended without delivering epoch {epoch}, step {step}")]
    Ended { epoch: u64, step: u64 },
    #[error("failed to start the thread that reads batches ahead")]
    Thread(#[source] std::io::Error),
}
