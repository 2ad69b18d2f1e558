//! The floor that runs operations and does nothing else: it keeps no record, knows no gradient and chooses no kernel.
//!
//! **Invariant:** `backend` imports no other part of the worker. The operation type is a parameter, so that the
//! arrow points from `op` to here.

pub mod cuda;
pub mod torch;

use smallvec::SmallVec;

/// Tensors an operation made.
pub type Outs = SmallVec<[tch::Tensor; 2]>;

/// Numbers that key the counter-based random generator of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepKey {
    /// Seed of the run.
    pub seed: u64,
    /// Global optimizer step.
    pub step: u64,
    /// Position of this rank's first row in the global batch, so that masks do not depend on the world size.
    pub first_row: u64,
    /// Rows of the local batch; 0 when unknown (then `first_row` is not used).
    pub rows: u64,
}

/// Runs operations of type `O`.
pub trait Backend<O> {
    /// Error of a launch.
    type Error;

    /// Stable name, part of the program's hash.
    fn name(&self) -> &'static str;

    /// Runs `op` on `ins`; writes in place only where the operation says so.
    fn launch(&self, op: &O, ins: &[&tch::Tensor], key: &StepKey) -> Result<Outs, Self::Error>;
}
