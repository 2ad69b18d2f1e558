//! One call: the kernel known for its operands, or the first that fits and agrees with the reference; behind all of them the
//! plain reference.
//!
//! **Invariant:** a kernel that was never compared gives no result; a failed launch is told only when the reference ran.

use super::Launcher;
use super::manager::Manager;
use super::policy::Standing;
use super::shadow::{self, FirstUse, Unsettled};
use super::sig::Sig;
use super::state::Known;
use crate::backend::Outs;
use crate::error::OpErrorKind;
use crate::op::Op;
use crate::op::row::{Kernel, Launch, PLAIN};
use enn_common::kernels::Fault;
use smallvec::{SmallVec, smallvec};
use std::rc::Rc;

/// Comparisons of a signature that may be with zeros only, before the kernel is taken for right.
const EMPTY_MAX: u32 = 16;
/// Comparisons of a signature that may differ on numbers that are not finite, before the reference runs alone for a while.
const ODD_MAX: u32 = 16;
/// Steps after which a choice is made anew that a comparison could not settle.
const UNSETTLED_STEPS: u64 = 64;

/// One call's choice.
enum Choice {
    Plain,
    Checked(&'static Kernel),
    Unchecked(&'static Kernel),
}

/// What one try gave.
enum Try {
    Ran(Outs, &'static str),
    Failed(OpErrorKind),
}

impl Manager {
    fn choose(&self, op: &Op, l: &Launch<'_>, sig: Sig, failed: &[&'static Kernel]) -> Choice {
        let row = op.row();
        let step = self.step.get();
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if failed.is_empty()
            && let Some(known) = state.known.get_mut(&sig)
            && step < known.until
        {
            known.calls += 1;
            return known.kernel.map_or(Choice::Plain, Choice::Checked);
        }
        let tried = state.tried.entry(row.name).or_insert_with(|| {
            let kernels = self.candidates(op, row);
            let order = kernels.iter().map(|kernel| kernel.id).chain([PLAIN]).map(str::to_owned).collect();
            state.ledger.ordered(row.name, order, self.wanted(row.name).is_some());
            kernels.into()
        });
        let tried = Rc::clone(tried);
        let mut known = Known { op: row.name, kernel: None, calls: 1, passed_over: SmallVec::new(), until: u64::MAX };
        for kernel in tried.iter() {
            if failed.iter().any(|other| std::ptr::eq(*other, *kernel)) {
                continue;
            }
            let fits = (kernel.fits)(op, l);
            let standing = state.standing(kernel.id, row.name, sig, step);
            let reason = match (fits, standing) {
                (Err(reason), _) => reason,
                (Ok(()), _) if self.settings.deterministic && !kernel.deterministic => "not deterministic",
                (Ok(()), Standing::Open(retry)) => {
                    known.until = known.until.min(retry.unwrap_or(u64::MAX));
                    "in quarantine"
                }
                (Ok(()), _) => return Choice::Unchecked(kernel),
            };
            known.passed_over.push((kernel.id, reason));
        }
        if failed.is_empty() {
            state.remember(sig, known);
        } else {
            state.ledger.ran(row.name, PLAIN, 1);
        }
        Choice::Plain
    }

    /// The first launch on such operands, beside the reference.
    fn first_use(&self, kernel: &'static Kernel, op: &Op, l: &Launch<'_>, sig: Sig) -> Result<Try, OpErrorKind> {
        // A clock would not say the same each time, and who configured an order knows of another.
        let free = !self.settings.deterministic && self.wanted(op.name()).is_none();
        let clock = self.clock.get().filter(|_| free);
        match shadow::first_use(kernel, op, l, sig, self.intents.as_ref(), clock)? {
            FirstUse::Right(outs) => {
                self.passed(kernel, op, sig, 1);
                Ok(Try::Ran(outs, kernel.id))
            }
            FirstUse::Slow(fault, outs) => {
                self.slow(kernel, op, l.ins, fault);
                Ok(Try::Ran(outs, kernel.id))
            }
            FirstUse::Faulty(fault, outs) => {
                self.failed(kernel, op, l.ins, fault);
                self.state.borrow_mut().ledger.ran(op.name(), PLAIN, 1);
                Ok(Try::Ran(outs, PLAIN))
            }
            FirstUse::Unsettled(why, outs) => {
                self.unsettled(kernel, op, sig, why);
                Ok(Try::Ran(outs, PLAIN))
            }
            FirstUse::NotLaunched(error) => Ok(Try::Failed(error)),
            FirstUse::NoRoom => {
                let outs = (op.row().launch)(op, l)?;
                let passed_over = smallvec![(kernel.id, "there is no memory to compare it")];
                let known = Known { op: op.name(), kernel: None, calls: 1, passed_over, until: u64::MAX };
                self.state.borrow_mut().remember(sig, known);
                Ok(Try::Ran(outs, PLAIN))
            }
        }
    }

    /// A comparison that said nothing: the next call compares again, but not for ever.
    fn unsettled(&self, kernel: &'static Kernel, op: &Op, sig: Sig, why: Unsettled) {
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
            state.remember(sig, Known { op: op.name(), kernel: None, calls: 0, passed_over, until: again });
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
        let _alone = super::alone(op, l);
        if !self.has_choice(row) {
            return Ok(((row.launch)(op, l)?, PLAIN));
        }
        let sig = Sig::of(op, l.ins);
        let mut failed: SmallVec<[&'static Kernel; 2]> = SmallVec::new();
        let mut errors: SmallVec<[OpErrorKind; 2]> = SmallVec::new();
        let ran = loop {
            let (kernel, tried) = match self.choose(op, l, sig, &failed) {
                Choice::Plain => break ((row.launch)(op, l)?, PLAIN),
                Choice::Checked(kernel) => match (kernel.launch)(op, l) {
                    Ok(outs) => (kernel, Try::Ran(outs, kernel.id)),
                    Err(error) => (kernel, Try::Failed(error)),
                },
                Choice::Unchecked(kernel) => (kernel, self.first_use(kernel, op, l, sig)?),
            };
            match tried {
                Try::Ran(outs, id) => break (outs, id),
                // That says nothing of the kernel: the step is done again in smaller parts.
                Try::Failed(error) if error.is_out_of_memory() => return Err(error),
                Try::Failed(error) => {
                    failed.push(kernel);
                    errors.push(error);
                }
            }
        };
        // Only now: where the reference fails too, the operands are at fault and no kernel is.
        for (kernel, error) in failed.into_iter().zip(errors) {
            let error = error.to_string();
            self.state.borrow_mut().ledger.passed_over(row.name, kernel.id, "launch failed", 1);
            self.failed(kernel, op, l.ins, Fault::Launch { error });
        }
        Ok(ran)
    }
}
