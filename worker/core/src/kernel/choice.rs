//! The choice for one call: the kernel known for its operands, or the first that fits and agrees with the reference, or else the
//! plain reference.
//!
//! **Invariant:** results of a kernel that was never compared are not used; a failed launch is reported only when the reference ran.

use super::Launcher;
use super::manager::Manager;
use super::policy::BreakerState;
use super::shadow::{self, FirstUse, Unsettled};
use super::signature::OperandSignature;
use super::state::SignatureChoice;
use crate::backend::Outs;
use crate::error::OpErrorKind;
use crate::op::Op;
use crate::op::row::{Kernel, Launch, PLAIN};
use enn_common::kernels::Fault;
use smallvec::{SmallVec, smallvec};
use std::rc::Rc;

/// Comparisons of a signature with all-zero results before the kernel counts as correct.
const EMPTY_MAX: u32 = 16;
/// Comparisons of a signature that differ only where values are not finite, before the kernel is left out for a while.
const ODD_MAX: u32 = 16;
/// Steps after which an inconclusive comparison is repeated.
const UNSETTLED_STEPS: u64 = 64;

enum KernelChoice {
    Plain,
    Checked(&'static Kernel),
    Unchecked(&'static Kernel),
}

enum Attempt {
    Ran(Outs, &'static str),
    Failed(OpErrorKind),
}

impl Manager {
    fn choose(&self, op: &Op, l: &Launch<'_>, sig: OperandSignature, failed: &[&'static Kernel]) -> KernelChoice {
        let row = op.row();
        let step = self.step.get();
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if failed.is_empty()
            && let Some(known) = state.known.get_mut(&sig)
            && step < known.until
        {
            known.calls += 1;
            return known.kernel.map_or(KernelChoice::Plain, KernelChoice::Checked);
        }
        let tried = state.tried.entry(row.name).or_insert_with(|| {
            let kernels = self.candidates(op, row);
            let order = kernels.iter().map(|kernel| kernel.id).chain([PLAIN]).map(str::to_owned).collect();
            state.ledger.ordered(row.name, order, self.wanted(row.name).is_some());
            kernels.into()
        });
        let tried = Rc::clone(tried);
        let mut known = SignatureChoice::new(row.name, None, 1);
        for kernel in tried.iter() {
            if failed.iter().any(|other| std::ptr::eq(*other, *kernel)) {
                continue;
            }
            let fits = (kernel.fits)(op, l);
            let standing = state.state_at(kernel.id, row.name, sig, step);
            let reason = match (fits, standing) {
                (Err(reason), _) => reason,
                (Ok(()), _) if self.settings.deterministic && !kernel.deterministic => "not deterministic",
                (Ok(()), BreakerState::Open(retry)) => {
                    known.until = known.until.min(retry.unwrap_or(u64::MAX));
                    "in quarantine"
                }
                (Ok(()), _) => return KernelChoice::Unchecked(kernel),
            };
            known.passed_over.push((kernel.id, reason));
        }
        if failed.is_empty() {
            state.remember(sig, known);
        } else {
            state.ledger.ran(row.name, PLAIN, 1);
        }
        KernelChoice::Plain
    }

    /// Launches a kernel for the first time on operands of this signature and compares it with the reference.
    fn first_use(
        &self,
        kernel: &'static Kernel,
        op: &Op,
        l: &Launch<'_>,
        sig: OperandSignature,
    ) -> Result<Attempt, OpErrorKind> {
        // Timing is not deterministic, and a configured order takes precedence over it.
        let free = !self.settings.deterministic && self.wanted(op.name()).is_none();
        let clock = self.clock.get().filter(|_| free);
        match shadow::first_use(kernel, op, l, sig, self.intents.as_ref(), clock)? {
            FirstUse::Right(outs) => {
                self.passed(kernel, op, sig, 1);
                Ok(Attempt::Ran(outs, kernel.id))
            }
            FirstUse::Slow(fault, outs) => {
                self.slow(kernel, op, l.ins, fault);
                Ok(Attempt::Ran(outs, kernel.id))
            }
            FirstUse::Faulty(fault, outs) => {
                self.failed(kernel, op, l.ins, fault);
                self.state.borrow_mut().ledger.ran(op.name(), PLAIN, 1);
                Ok(Attempt::Ran(outs, PLAIN))
            }
            FirstUse::Unsettled(why, outs) => {
                self.unsettled(kernel, op, sig, why);
                Ok(Attempt::Ran(outs, PLAIN))
            }
            FirstUse::NotLaunched(error) => Ok(Attempt::Failed(error)),
            FirstUse::NoRoom => {
                let outs = (op.row().launch)(op, l)?;
                let passed_over = smallvec![(kernel.id, "there is no memory to compare it")];
                let known = SignatureChoice { passed_over, ..SignatureChoice::new(op.name(), None, 1) };
                self.state.borrow_mut().remember(sig, known);
                Ok(Attempt::Ran(outs, PLAIN))
            }
        }
    }

    /// Notes an inconclusive comparison. Later calls compare again, a limited number of times.
    fn unsettled(&self, kernel: &'static Kernel, op: &Op, sig: OperandSignature, why: Unsettled) {
        let again = self.step.get() + UNSETTLED_STEPS;
        let mut state = self.state.borrow_mut();
        state.ledger.ran(op.name(), PLAIN, 1);
        let comparisons = state.unsettled.entry((sig, why)).or_default();
        comparisons.seen += 1;
        comparisons.again = again;
        let seen = comparisons.seen;
        if let (Unsettled::NotFinite, ODD_MAX..) = (why, seen) {
            comparisons.seen = 0;
            let passed_over = smallvec![(kernel.id, "differs where numbers are not finite")];
            state.remember(sig, SignatureChoice { op: op.name(), kernel: None, calls: 0, passed_over, until: again });
        }
        drop(state);
        match (why, seen) {
            (Unsettled::Zeros, EMPTY_MAX..) => self.passed(kernel, op, sig, 0),
            _ => self.plan_retry(),
        }
    }
}

impl Launcher for Manager {
    fn generation(&self) -> u64 {
        self.generation.get()
    }

    fn kernel(&self, op: &Op, id: &str) -> Option<&'static Kernel> {
        let row = op.row();
        let extra = || self.extras.iter().filter(|extra| extra.op == row.name).map(|extra| extra.kernel);
        row.kernels.iter().chain(extra()).find(|kernel| kernel.id == id)
    }

    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind> {
        let row = op.row();
        let _alone = super::keep_single_threaded(op, l);
        if !self.has_choice(row) {
            return Ok(((row.launch)(op, l)?, PLAIN));
        }
        let sig = OperandSignature::of(op, l.ins);
        let mut failed: SmallVec<[&'static Kernel; 2]> = SmallVec::new();
        let mut errors: SmallVec<[OpErrorKind; 2]> = SmallVec::new();
        let ran = loop {
            let (kernel, tried) = match self.choose(op, l, sig, &failed) {
                KernelChoice::Plain => break ((row.launch)(op, l)?, PLAIN),
                KernelChoice::Checked(kernel) => match (kernel.launch)(op, l) {
                    Ok(outs) => (kernel, Attempt::Ran(outs, kernel.id)),
                    Err(error) => (kernel, Attempt::Failed(error)),
                },
                KernelChoice::Unchecked(kernel) => (kernel, self.first_use(kernel, op, l, sig)?),
            };
            match tried {
                Attempt::Ran(outs, id) => break (outs, id),
                // Lack of memory is no fault of the kernel: the step is repeated in smaller parts.
                Attempt::Failed(error) if error.is_out_of_memory() => return Err(error),
                Attempt::Failed(error) => {
                    failed.push(kernel);
                    errors.push(error);
                }
            }
        };
        // Reported only after the reference ran: where it fails too, the operands are at fault.
        for (kernel, error) in failed.into_iter().zip(errors) {
            let error = error.to_string();
            self.state.borrow_mut().ledger.passed_over(row.name, kernel.id, "launch failed", 1);
            self.failed(kernel, op, l.ins, Fault::Launch { error });
        }
        Ok(ran)
    }
}
