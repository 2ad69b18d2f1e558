//! Which kernel runs an operation, and what to do when it does not: the manager, the check beside the plain reference, and the
//! search for the cause of a step that is not finite.
//!
//! **Invariant:** every way ends in the row's plain reference, which takes everything the shape rule takes.

mod bisect;
mod choice;
mod compare;
mod ledger;
mod manager;
mod names;
mod pace;
mod policy;
mod shadow;
mod sig;
mod small;
mod state;

pub use bisect::{Bisect, Blame, Finding, Rows};
pub use manager::{Manager, News, Settings};
pub use names::KernelNameError;
pub use sig::{Sig, words};
pub(crate) use small::alone;

use crate::backend::Outs;
use crate::error::OpErrorKind;
use crate::op::Op;
use crate::op::row::{Kernel, Launch, PLAIN};
use enn_common::wire::control::Intent;

/// What the door asks to run an operation.
pub trait Launcher {
    /// Runs `op` and names the kernel that did.
    ///
    /// # Errors
    /// When the plain reference fails too.
    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind>;

    /// The kernel of an operation by its name, for whoever runs a record again.
    fn kernel(&self, op: &Op, id: &str) -> Option<&'static Kernel> {
        op.row().kernels.iter().find(|kernel| kernel.id == id)
    }

    /// A number that changes when a kernel chosen before may not be chosen again: records hold such choices and are void then.
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

/// Where it is written that a kernel is about to run for the first time on such operands, so that it is known if the process
/// does not survive it.
pub trait Intents {
    /// It is about to run.
    fn open(&self, intent: &Intent);
    /// It ran, and the device says so.
    fn close(&self);
}

/// Nobody reads intents: a process without a launcher.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoIntents;

impl Intents for NoIntents {
    fn open(&self, _intent: &Intent) {}

    fn close(&self) {}
}

/// The first kernel that fits and can be launched, without memory or checks.
#[derive(Debug, Clone, Copy, Default)]
pub struct FirstFit;

impl Launcher for FirstFit {
    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind> {
        let row = op.row();
        let _alone = alone(op, l);
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

/// The plain reference, always.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

impl Launcher for Reference {
    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind> {
        let _alone = alone(op, l);
        Ok(((op.row().launch)(op, l)?, PLAIN))
    }
}

#[cfg(test)]
mod tests;
