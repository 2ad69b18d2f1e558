//! Errors of a worker's shard.

use enn_common::{
    checkpoint::{CommitError, ReadError, ShardError},
    fs::FileError,
};
use std::path::PathBuf;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum CheckpointError {
    #[error("{fqn} is of kind {kind}, which checkpoints do not hold")]
    Kind { fqn: String, kind: String },
    #[error("failed to copy {fqn}")]
    Copy {
        fqn: String,
        #[source]
        source: tch::TchError,
    },
    #[error("failed to copy the state out of the device's memory")]
    Device(#[from] enn_core::backend::torch::ShimError),
    #[error(
        "{}: checkpoint of another model: {differences}\n  hint: use the configuration the checkpoint was trained with (its manifest.json)",
        path.display()
    )]
    OtherModel {
        path: PathBuf,
        /// The first differences and their number.
        differences: String,
    },
    #[error("{needed} of memory are needed for a snapshot, {available} are available, half of which stay free")]
    Memory { needed: String, available: String },
    #[error(transparent)]
    Shard(#[from] ShardError),
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Read(#[from] ReadError),
}
