//! Whoever times a step sees every operation begin and end, and then the program they made.
//!
//! **Invariant:** an observer changes nothing of what is computed, and costs one branch per operation when there is none.

use super::program::Program;

/// Sees one step.
pub trait Observe {
    /// An operation is launched now.
    fn begin(&self);
    /// It was launched, or failed to be.
    fn end(&self);
    /// The step is over. Record i of `program` is the i-th operation that began.
    fn step(&self, program: &Program);
}
