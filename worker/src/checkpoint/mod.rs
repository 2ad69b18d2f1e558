//! The worker's side of a checkpoint: named tensors, their division over the ranks, this rank's shard, and loading.
//!
//! Every rank plans alone and arrives at the same division, so that saving needs no collective; the launcher commits what all
//! ranks wrote. Knows names and tensors, not what they mean.

pub mod dtype;
pub mod error;
pub mod load;
pub mod save;
pub mod staging;
mod sys;
pub mod whole;

pub use crate::backend::host::{host_bytes, host_bytes_mut};
pub use enn_common::checkpoint::Draft;
pub use error::CheckpointError;
pub use load::{Shared, Wanted, load, load_into, load_over, load_part, load_with};
pub use save::{Share, write_share};
pub use whole::{latest, save_whole};

/// A tensor under its fully qualified name.
#[derive(Debug)]
pub struct Named {
    /// Name in the checkpoint, e.g. "model.fuser.latents".
    pub fqn: String,
    /// The tensor; on any device, any strides.
    pub tensor: tch::Tensor,
}

/// A box of a tensor that only this rank has.
#[derive(Debug)]
pub struct Placed {
    /// Name of the tensor.
    pub fqn: String,
    /// Shape of the tensor.
    pub global: Vec<i64>,
    /// Where the box begins.
    pub offsets: Vec<i64>,
    /// The box.
    pub tensor: tch::Tensor,
}

impl Named {
    /// A name and a view of a tensor.
    pub fn of(fqn: impl Into<String>, tensor: &tch::Tensor) -> Self {
        Self { fqn: fqn.into(), tensor: tensor.shallow_clone() }
    }
}
