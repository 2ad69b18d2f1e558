//! The floor that runs computations and does nothing else: it keeps no record, knows no gradient and chooses no kernel.
//!
//! **Invariant:** `backend` imports no other part of the worker; `op` says which of these an operation is.

pub mod cuda;
pub mod event;
pub mod graph;
pub mod torch;

use smallvec::SmallVec;

/// Tensors an operation made.
pub type Outs = SmallVec<[tch::Tensor; 2]>;
