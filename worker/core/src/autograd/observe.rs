//! The interface of a profiler: every operation's begin and end, and the program of the step.
//!
//! **Invariant:** an observer does not change results. Without one the cost is one branch per operation.

use super::program::Program;

/// Observes the operations of a step.
pub trait Observe {
    /// Called before an operation is launched.
    fn begin(&self);
    /// Called after the launch, whether it failed or not.
    fn end(&self);
    /// Called at the end of the step. Record i of `program` is the i-th operation that began.
    fn step(&self, program: &Program);
}
