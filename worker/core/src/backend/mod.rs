//! The lowest layer, which only runs computations: it records nothing, knows no gradients and chooses no kernels.
//!
//! **Invariant:** `backend` imports no other part of the worker; `op` chooses which of these functions an operation calls.

pub mod aligned_rows;
pub mod artifact;
pub mod copier;
pub mod cuda;
pub mod event;
pub mod graph;
pub mod host;
pub mod link;
pub mod pinned;
pub mod torch;

use smallvec::SmallVec;

/// Returns a copy of a tensor in memory of its own, with the same layout and without gradient history.
pub fn duplicate(tensor: &tch::Tensor) -> Result<tch::Tensor, tch::TchError> {
    tch::no_grad(|| {
        let mut copy = tensor.f_empty_like()?;
        copy.f_copy_(tensor)?;
        Ok(copy)
    })
}

/// The tensors that an operation returns.
pub type Outs = SmallVec<[tch::Tensor; 2]>;
