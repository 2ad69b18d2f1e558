//! The search for the cause of a step that was not finite. Every operation of the step runs again through the plain reference
//! and, for comparison, through the kernel that ran it.
//!
//! It is a [`Launcher`]: run the step again with it, over the same leaves, and ask for the finding. A kernel that is not finite
//! where the reference is, is at fault. Where the reference is not finite either, the search goes back from the loss through
//! operands that are not finite to the operation or leaf where it began; a NaN that a mask removes is not on that path.
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
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use tch::Tensor;

/// Most rows that are listed.
const ROWS_MAX: usize = 1024;

/// Rows of a tensor, along its first axis, that hold values which are not finite.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NonfiniteRows {
    /// Indices of the first such rows, at most [`ROWS_MAX`].
    pub first: Vec<i64>,
    /// Number of such rows.
    pub total: u64,
    /// Number of rows of the tensor.
    pub of: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// A kernel, which is in quarantine from now on.
    Kernel(KernelFault),
    /// A leaf that is not finite: data or a weight.
    Operand { operand: usize, rows: NonfiniteRows },
    /// The operands are finite and the result is not: the numbers have grown too large.
    Result {
        /// Such rows of the result.
        rows: NonfiniteRows,
    },
}

/// The operation where the first value that is not finite appeared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Number of the operation's record in the program of the replay.
    pub record: usize,
    pub op: &'static str,
    pub cause: Cause,
}

#[derive(Debug)]
struct NonfiniteOp {
    op: &'static str,
    /// Operands that are not finite, before what it writes.
    ins: SmallVec<[(usize, NonfiniteRows); 2]>,
    outs: NonfiniteRows,
}

pub struct Bisect<'m> {
    manager: &'m Manager,
    calls: Cell<usize>,
    bad: RefCell<BTreeMap<usize, NonfiniteOp>>,
    /// The first kernel that was not finite.
    kernel: RefCell<Option<Finding>>,
    /// The first kernel beyond its tolerance: the cause if nothing else is.
    suspect: RefCell<Option<Finding>>,
}

impl<'m> Bisect<'m> {
    /// Searches among the kernels that `manager` chose.
    pub fn new(manager: &'m Manager) -> Self {
        let calls = Cell::new(0);
        let bad = RefCell::default();
        Self { manager, calls, bad, kernel: RefCell::new(None), suspect: RefCell::new(None) }
    }

    /// Returns the cause. `ends` are records whose results must be finite, the most important first; `producers` returns for each operand
    /// of a record the record that made it, `None` for a leaf.
    pub fn finding(
        &self,
        ends: impl IntoIterator<Item = usize>,
        producers: impl Fn(usize) -> Vec<Option<usize>>,
    ) -> Option<Finding> {
        let bad = self.bad.borrow();
        let kernel = self.kernel.borrow().clone();
        let end = || ends.into_iter().find(|end| bad.contains_key(end));
        kernel.or_else(|| end().map(|end| origin(&bad, end, producers))).or_else(|| self.suspect.borrow().clone())
    }

    /// Compares one operation with its kernel after the reference ran. `before` holds copies of the operands that are written.
    fn check_operation(
        &self,
        op: &Op,
        l: &Launch<'_>,
        outs: &[Tensor],
        before: Option<(&'static Kernel, Copied)>,
    ) -> Result<(), OpErrorKind> {
        let plain = effects(op, outs, l.ins);
        if !compare::all_finite(&plain)? {
            self.bad.borrow_mut().insert(self.calls.get(), bad(op, l, &plain)?);
            return Ok(());
        }
        let Some((kernel, copied)) = before else { return Ok(()) };
        let ins = copied.operands(l);
        if !compare::all_finite(&ins)? {
            // A NaN operand that a mask removes later is no fault of this kernel.
            return Ok(());
        }
        // A kernel that cannot be launched gives no wrong numbers.
        let Ok(found) = (kernel.launch)(op, &Launch { ins: &ins }) else { return Ok(()) };
        if let Some(fault) = compare::fault(kernel.tolerance, &effects(op, &found, &ins), &plain, &ins)? {
            let place = if fault == Fault::NonFinite { &self.kernel } else { &self.suspect };
            let cause = Cause::Kernel(self.manager.failed(kernel, op, l.ins, fault));
            place.borrow_mut().get_or_insert(Finding { record: self.calls.get(), op: op.name(), cause });
        }
        Ok(())
    }
}

impl Launcher for Bisect<'_> {
    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind> {
        let before = match self.manager.chosen(op, l) {
            Some(kernel) => Some((kernel, Copied::of(op, l)?)),
            None => None,
        };
        let outs = (op.row().launch)(op, l)?;
        self.check_operation(op, l, &outs, before)?;
        self.calls.set(self.calls.get() + 1);
        Ok((outs, PLAIN))
    }
}

/// Walks back from `end` as long as an operand is not finite.
fn origin(bad: &BTreeMap<usize, NonfiniteOp>, end: usize, producers: impl Fn(usize) -> Vec<Option<usize>>) -> Finding {
    let mut record = end;
    loop {
        let here = &bad[&record];
        let made = producers(record);
        let mut leaf = None;
        let mut earlier = None;
        for (operand, rows) in &here.ins {
            match made.get(*operand).copied().flatten().filter(|maker| *maker < record && bad.contains_key(maker)) {
                Some(maker) => earlier = earlier.or(Some(maker)),
                None => leaf = leaf.or(Some((*operand, rows.clone()))),
            }
        }
        match (earlier, leaf) {
            (Some(maker), _) => record = maker,
            (None, Some((operand, rows))) => {
                return Finding { record, op: here.op, cause: Cause::Operand { operand, rows } };
            }
            (None, None) => {
                return Finding { record, op: here.op, cause: Cause::Result { rows: here.outs.clone() } };
            }
        }
    }
}

fn bad(op: &Op, l: &Launch<'_>, effects: &[&Tensor]) -> Result<NonfiniteOp, OpErrorKind> {
    let mut ins = SmallVec::new();
    // What the operation writes is part of its result.
    for (operand, tensor) in l.ins.iter().enumerate().filter(|(operand, _)| !op.writes(*operand)) {
        let rows = rows(tensor)?;
        if rows.total > 0 {
            ins.push((operand, rows));
        }
    }
    let mut outs = NonfiniteRows::default();
    for tensor in effects {
        outs = rows(tensor)?;
        if outs.total > 0 {
            break;
        }
    }
    Ok(NonfiniteOp { op: op.name(), ins, outs })
}

fn rows(tensor: &Tensor) -> Result<NonfiniteRows, OpErrorKind> {
    if !tensor.is_floating_point() || tensor.numel() == 0 {
        return Ok(NonfiniteRows::default());
    }
    let bad = tensor.f_isfinite()?.f_logical_not()?;
    let per_row = match bad.size().first() {
        None => bad.f_view(1)?,
        Some(rows) => bad.f_reshape([*rows, -1])?.f_any_dim(1, false)?,
    };
    let of = per_row.numel() as i64;
    let rows = Vec::<i64>::try_from(per_row.f_nonzero()?.f_view(-1)?)?;
    let total = rows.len() as u64;
    Ok(NonfiniteRows { first: rows.into_iter().take(ROWS_MAX).collect(), total, of })
}
