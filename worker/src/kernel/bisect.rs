//! The search for the cause of a step that was not finite: the step's operations once more, each through the plain reference
//! and beside it through the kernel that ran it.
//!
//! It is a [`Launcher`]: run the step again with it, over the same leaves, and ask for the finding. The first operation where
//! the kernel is not finite and the reference is accuses the kernel; where the reference is not finite either, the data or the
//! optimisation is at fault.
//!
//! **Invariant:** results are the plain reference's throughout. It waits for the device at every operation.

use super::Launcher;
use super::compare;
use super::manager::Manager;
use super::shadow::{Copied, effects};
use crate::backend::Outs;
use crate::error::OpErrorKind;
use crate::op::Op;
use crate::op::row::{Kernel, Launch, PLAIN};
use enn_common::kernels::{Fault, KernelFault};
use std::cell::{Cell, RefCell};
use tch::Tensor;

/// Rows that are named.
const ROWS_MAX: usize = 8;

/// Who is to blame for one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blame {
    /// A kernel, which is in quarantine from now on.
    Kernel(KernelFault),
    /// An operand that is not finite: data, a weight, or what came in from outside.
    Operand {
        /// Position of the operand.
        operand: usize,
        /// The first rows of it, along its first axis, that are not finite.
        rows: Vec<i64>,
        /// Number of such rows.
        rows_total: u64,
    },
    /// The operands are finite and their result is not: the numbers have grown too large.
    Result,
}

/// The first operation that went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Number of the operation's record in the program of the replay.
    pub record: usize,
    /// Operation.
    pub op: &'static str,
    /// Who is to blame.
    pub blame: Blame,
}

/// The launcher of a replay.
pub struct Bisect<'m> {
    manager: &'m Manager,
    calls: Cell<usize>,
    /// What settles the question: a NaN.
    settled: RefCell<Option<Finding>>,
    /// What may be the cause when nothing settles it: a result beyond its tolerance, or infinite.
    suspect: RefCell<Option<Finding>>,
}

impl<'m> Bisect<'m> {
    /// A search among the kernels that `manager` chose.
    pub fn new(manager: &'m Manager) -> Self {
        Self { manager, calls: Cell::new(0), settled: RefCell::new(None), suspect: RefCell::new(None) }
    }

    /// What was found; none when the replay was finite throughout.
    pub fn finding(&self) -> Option<Finding> {
        self.settled.borrow().clone().or_else(|| self.suspect.borrow().clone())
    }

    /// Looks at one operation after the reference ran; `before` are operands as they were.
    fn judge(
        &self,
        op: &Op,
        l: &Launch<'_>,
        outs: &[Tensor],
        before: Option<(&'static Kernel, Copied)>,
    ) -> Result<(), OpErrorKind> {
        let plain = effects(op, outs, l.ins);
        let finite = compare::all_finite(&plain)?;
        if let (true, Some((kernel, copied))) = (finite, before) {
            let ins = copied.operands(l);
            // A kernel that cannot be launched gives no wrong numbers.
            if let Ok(found) = (kernel.launch)(op, &Launch { ins: &ins }) {
                if let Some(fault) = compare::fault(kernel.tolerance, &effects(op, &found, &ins), &plain)? {
                    let settled = fault == Fault::NonFinite;
                    let fault = self.manager.failed(kernel, op, l.ins, fault);
                    self.note(op, Blame::Kernel(fault), settled);
                }
            }
            return Ok(());
        }
        if !finite {
            let nan = has_nan(&plain)?;
            self.note(op, blame(op, l)?, nan);
        }
        Ok(())
    }

    fn note(&self, op: &Op, blame: Blame, settled: bool) {
        let place = if settled { &self.settled } else { &self.suspect };
        let finding = Finding { record: self.calls.get(), op: op.name(), blame };
        place.borrow_mut().get_or_insert(finding);
    }
}

impl Launcher for Bisect<'_> {
    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind> {
        let search = self.settled.borrow().is_none();
        let kernel = if search { self.manager.chosen(op, l) } else { None };
        let before = match kernel {
            Some(kernel) => Some((kernel, Copied::of(op, l)?)),
            None => None,
        };
        let outs = (op.row().launch)(op, l)?;
        if search {
            self.judge(op, l, &outs, before)?;
        }
        self.calls.set(self.calls.get() + 1);
        Ok((outs, PLAIN))
    }
}

fn has_nan(tensors: &[&Tensor]) -> Result<bool, OpErrorKind> {
    for tensor in tensors.iter().filter(|tensor| tensor.is_floating_point()) {
        if tensor.f_isnan()?.f_any()?.f_int64_value(&[])? != 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The first operand that is not finite, or the result. What the operation writes is part of its result.
fn blame(op: &Op, l: &Launch<'_>) -> Result<Blame, OpErrorKind> {
    for (operand, tensor) in l.ins.iter().enumerate().filter(|(operand, _)| !op.writes(*operand)) {
        if !compare::all_finite(&[tensor])? {
            let bad = tensor.f_isfinite()?.f_logical_not()?;
            let rows = if bad.dim() == 0 {
                bad.f_view(1)?
            } else {
                bad.f_reshape([bad.size()[0], -1])?.f_any_dim(1, false)?
            };
            let rows = Vec::<i64>::try_from(rows.f_nonzero()?.f_view(-1)?)?;
            let rows_total = rows.len() as u64;
            return Ok(Blame::Operand { operand, rows: rows.into_iter().take(ROWS_MAX).collect(), rows_total });
        }
    }
    Ok(Blame::Result)
}
