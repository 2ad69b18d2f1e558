//! Which kernel runs an operation.
//!
//! **Invariant:** every way ends in the row's plain reference, which takes everything the shape rule takes.

use crate::backend::Outs;
use crate::error::OpErrorKind;
use crate::op::Op;
use crate::op::row::{Launch, PLAIN};

/// What the door asks to run an operation.
pub trait Launcher {
    /// Runs `op` and names the kernel that did.
    ///
    /// # Errors
    /// When the plain reference fails too.
    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind>;
}

/// The first kernel that fits, without memory or checks.
#[derive(Debug, Clone, Copy, Default)]
pub struct FirstFit;

impl Launcher for FirstFit {
    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind> {
        let row = op.row();
        for kernel in row.kernels {
            if (kernel.fits)(op, l).is_ok() {
                return Ok(((kernel.launch)(op, l)?, kernel.id));
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
        Ok(((op.row().launch)(op, l)?, PLAIN))
    }
}
