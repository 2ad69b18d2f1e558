//! The floor that runs computations and does nothing else: it keeps no record, knows no gradient and chooses no kernel.
//!
//! **Invariant:** `backend` imports no other part of the worker; `op` says which of these an operation is.

pub mod artifact;
pub mod copier;
pub mod cuda;
pub mod event;
pub mod graph;
pub mod host;
pub mod lined;
pub mod link;
pub mod locked;
pub mod torch;

use smallvec::SmallVec;

/// A copy of a tensor in memory of its own, laid out alike and without a gradient's history.
///
/// # Errors
/// What libtorch says, e.g. no memory.
pub fn duplicate(tensor: &tch::Tensor) -> Result<tch::Tensor, tch::TchError> {
    tch::no_grad(|| {
        let mut copy = tensor.f_empty_like()?;
        copy.f_copy_(tensor)?;
        Ok(copy)
    })
}

/// Tensors an operation made.
pub type Outs = SmallVec<[tch::Tensor; 2]>;
