//! Chooses the kernel of each operation and handles failures: the manager, the check against the plain reference, and the
//! search for the cause of a step that is not finite.
//!
//! **Invariant:** the last choice is always the row's plain reference, which takes everything the shape rule takes.

mod bisect;
mod choice;
mod compare;
mod event;
mod ledger;
mod manager;
mod names;
mod policy;
mod shadow;
mod signature;
mod single_thread;
mod speed;
mod state;

pub use bisect::{Bisect, Cause, Finding, NonfiniteRows};
pub use event::KernelEvent;
pub use manager::{Manager, Settings};
pub use names::KernelNameError;
pub use signature::{OperandSignature, words};
pub(crate) use single_thread::keep_single_threaded;

use crate::backend::Outs;
use crate::error::OpErrorKind;
use crate::op::Op;
use crate::op::row::{Kernel, Launch, PLAIN};
use enn_common::wire::control::Intent;

/// Runs an operation with a kernel of its choice.
pub trait Launcher {
    /// Runs `op` and names the kernel that did.
    ///
    /// # Errors
    /// When the plain reference fails too.
    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind>;

    /// Returns a kernel of an operation by its name, to replay a record.
    fn kernel(&self, op: &Op, id: &str) -> Option<&'static Kernel> {
        op.row().kernels.iter().find(|kernel| kernel.id == id)
    }

    /// A counter that changes when an earlier choice of a kernel may be invalid. Recorded plans hold such choices and must be dropped then.
    fn generation(&self) -> u64 {
        0
    }
}

/// A kernel that a program built by the user adds to an operation. It is tried before the row's own.
#[derive(Clone, Copy)]
pub struct Extra {
    /// Operation, as in the table of operations.
    pub op: &'static str,
    /// The kernel. `fits` may look at what a signature holds and at nothing else.
    pub kernel: &'static Kernel,
}

impl std::fmt::Debug for Extra {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.kernel.id, self.op)
    }
}

/// Log of first launches: a kernel's first launch on operands of a signature is noted beforehand, so that the cause is known if the
/// process dies.
pub trait Intents {
    fn open(&self, intent: &Intent);
    /// Notes that the kernel ran and that the device still answers.
    fn close(&self);
}

/// Ignores intents, in a process without a launcher.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoIntents;

impl Intents for NoIntents {
    fn open(&self, _intent: &Intent) {}

    fn close(&self) {}
}

/// A launcher that takes the first kernel that fits and can be launched. It remembers and checks nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct FirstFit;

impl Launcher for FirstFit {
    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind> {
        let row = op.row();
        let _alone = keep_single_threaded(op, l);
        for kernel in row.kernels {
            if (kernel.fits)(op, l).is_ok()
                && let Ok(outs) = (kernel.launch)(op, l)
            {
                return Ok((outs, kernel.id));
            }
        }
        Ok(((row.launch)(op, l)?, PLAIN))
    }
}

/// A launcher that always takes the plain reference.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

impl Launcher for Reference {
    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind> {
        let _alone = keep_single_threaded(op, l);
        Ok(((op.row().launch)(op, l)?, PLAIN))
    }
}

#[cfg(test)]
mod tests;
