//! Errors of a worker's shard.

use enn_common::{
    checkpoint::{CommitError, ReadError, ShardError},
    fs::FileError,
};
use std::path::PathBuf;
use thiserror::Error;

/// Failures of writing or loading.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// A tensor of a kind that checkpoints do not hold.
    #[error("{fqn} is of kind {kind}, which checkpoints do not hold")]
    Kind {
        fqn: String,
        /// Name of the kind in libtorch.
        kind: String,
    },
    /// Libtorch failed to copy the values.
    #[error("failed to copy {fqn}")]
    Copy {
        fqn: String,
        #[source]
        source: tch::TchError,
    },
    /// The device did not copy a snapshot.
    #[error("failed to copy the state out of the device's memory")]
    Device(#[from] enn_core::backend::torch::ShimError),
    /// The tensors in the checkpoint differ from the expected ones.
    #[error(
        "{}: checkpoint of another model: {differences}\n  hint: use the configuration the checkpoint was trained with (its manifest.json)",
        path.display()
    )]
    OtherModel {
        path: PathBuf,
        /// The first differences and their number.
        differences: String,
    },
    /// There is too little memory for a snapshot.
    #[error("{needed} of memory are needed for a snapshot, {available} are available, half of which stay free")]
    Memory {
        /// Memory that the snapshot needs.
        needed: String,
        available: String,
    },
    /// The shard could not be written.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The shard could not be committed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The checkpoint could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}
