//! The worker's part of checkpoints: named tensors, their division over the ranks, the shard of this rank, and loading.
//!
//! Every rank computes the same division alone, so that saving needs no collective; the launcher commits the shards of
//! all ranks. The module knows names and tensors, not their meaning.

pub mod dtype;
pub mod error;
pub mod load;
pub mod save;
pub mod staging;
mod sys;
pub mod whole;

pub use enn_common::checkpoint::Draft;
pub use enn_core::backend::host::{host_bytes, host_bytes_mut};
pub use error::CheckpointError;
pub use load::{ExpectedTensor, ShardedTensors, load, load_into, load_over, load_part, load_with};
pub use save::{ShardContent, write_share};
pub use whole::{latest, save_whole};

/// A tensor under its fully qualified name.
#[derive(Debug)]
pub struct Named {
    /// Name in the checkpoint, e.g. "model.fuser.latents".
    pub fqn: String,
    /// Tensor on any device, with any strides.
    pub tensor: tch::Tensor,
}

/// A box of a tensor that only this rank has.
#[derive(Debug)]
pub struct Placed {
    pub fqn: String,
    pub global: Vec<i64>,
    /// Offset of the box in the tensor.
    pub offsets: Vec<i64>,
    pub tensor: tch::Tensor,
}

impl Named {
    /// Creates an entry with a view of a tensor.
    pub fn of(fqn: impl Into<String>, tensor: &tch::Tensor) -> Self {
        Self { fqn: fqn.into(), tensor: tensor.shallow_clone() }
    }
}
