//! A kernel's first launch on operands of a signature: it is compared with the plain reference, and run twice if it promises equal bits.
//!
//! The kernel works on the call's own operands and the reference on copies of those that are written. The writes of a correct kernel
//! stay, so they have the same bits as at later calls; those of a wrong kernel are replaced.
//!
//! **Invariant:** the intent is open while the kernel may end the process, and stays open when the device does not answer
//! afterwards, so that the launcher can find the cause.

use super::signature::{self, OperandSignature};
use super::{Intents, compare, speed::SpeedTest};
use crate::backend::{Outs, duplicate};
use crate::error::OpErrorKind;
use crate::op::Op;
use crate::op::row::{Kernel, Launch};
use enn_common::kernels::Fault;
use enn_common::wire::control::Intent;
use smallvec::SmallVec;
use tch::{Device, Kind, Tensor};

/// Outcome of a first launch.
pub(super) enum FirstUse {
    /// The kernel is correct. Holds its results.
    Right(Outs),
    /// The comparison is inconclusive. Holds the reference's results.
    Unsettled(Unsettled, Outs),
    /// The kernel is correct but slow. Holds its results.
    Slow(Fault, Outs),
    /// The kernel is wrong. Holds the reference's results.
    Faulty(Fault, Outs),
    /// The launch failed, and its writes are undone.
    NotLaunched(OpErrorKind),
    /// No memory is left for the copies, and nothing was launched.
    NoRoom,
}

/// Why a comparison is inconclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Unsettled {
    /// The reference's results are all zero.
    Zeros,
    /// The results differ, but operands or the reference's own results are not finite. Where a NaN or an infinity appears then
    /// depends on the order of operations, which is free.
    NotFinite,
}

pub(super) struct Copied {
    own: SmallVec<[(usize, Tensor); 4]>,
}

impl Copied {
    pub(super) fn of(op: &Op, l: &Launch<'_>) -> Result<Self, OpErrorKind> {
        let mut own = SmallVec::new();
        for (index, tensor) in l.ins.iter().enumerate().filter(|(index, _)| op.writes(*index)) {
            own.push((index, duplicate(tensor)?));
        }
        Ok(Self { own })
    }

    /// Returns the operands of the call with the written ones replaced by the copies.
    pub(super) fn operands<'a>(&'a self, l: &Launch<'a>) -> SmallVec<[&'a Tensor; 8]> {
        let mut ins: SmallVec<[&Tensor; 8]> = l.ins.iter().copied().collect();
        for (index, copy) in &self.own {
            ins[*index] = copy;
        }
        ins
    }

    pub(super) fn restore(&self, l: &Launch<'_>) -> Result<(), OpErrorKind> {
        for (index, copy) in &self.own {
            l.at(*index).shallow_clone().f_copy_(copy)?;
        }
        Ok(())
    }
}

/// Returns the results of a call, followed by the operands it wrote.
pub(super) fn effects<'a>(op: &Op, outs: &'a [Tensor], ins: &[&'a Tensor]) -> SmallVec<[&'a Tensor; 8]> {
    let written = ins.iter().enumerate().filter(|(index, _)| op.writes(*index)).map(|(_, tensor)| *tensor);
    outs.iter().chain(written).collect()
}

/// Launches `kernel` for the first time on such operands. `clock`, if given, tells whether it is slow.
///
/// # Errors
/// Errors of the reference; or of a device that does not answer any more, in which case the intent stays open.
pub(super) fn first_use(
    kernel: &'static Kernel,
    op: &Op,
    l: &Launch<'_>,
    sig: OperandSignature,
    intents: &dyn Intents,
    clock: Option<SpeedTest>,
) -> Result<FirstUse, OpErrorKind> {
    let copies = Copied::of(op, l).and_then(|reference| {
        let again = kernel.deterministic.then(|| Copied::of(op, l)).transpose()?;
        Ok((reference, again))
    });
    let (reference, again) = match copies {
        // An update of all weights writes most of the memory there is.
        Err(error) if error.is_out_of_memory() => return Ok(FirstUse::NoRoom),
        copies => copies?,
    };
    let op_name = op.name().to_owned();
    let kernel_name = kernel.id.to_owned();
    intents.open(&Intent { op: op_name, kernel: kernel_name, sig: sig.0, operands: signature::words(l.ins) });
    let used = run_and_compare(kernel, op, l, &reference, again.as_ref(), clock);
    match used {
        Err(error) if !answers(l) => Err(error),
        Ok(FirstUse::NotLaunched(error)) if !answers(l) => Err(error),
        used => {
            intents.close();
            used
        }
    }
}

fn run_and_compare(
    kernel: &Kernel,
    op: &Op,
    l: &Launch<'_>,
    reference: &Copied,
    again: Option<&Copied>,
    clock: Option<SpeedTest>,
) -> Result<FirstUse, OpErrorKind> {
    let outs = match (kernel.launch)(op, l) {
        Ok(outs) => outs,
        Err(error) => {
            // The kernel may have failed after it wrote something.
            if answers(l) {
                reference.restore(l)?;
            }
            return Ok(FirstUse::NotLaunched(error));
        }
    };
    let plain_ins = reference.operands(l);
    let plain = (op.row().launch)(op, &Launch { ins: &plain_ins })?;
    let compared = {
        let found = effects(op, &outs, l.ins);
        let expected = effects(op, &plain, &plain_ins);
        compare::fault(kernel.tolerance, &found, &expected, &plain_ins)?
    };
    let fault = match compared {
        None => second_run(kernel, op, l, &outs, again)?,
        wrong => wrong,
    };
    // Zeros are inconclusive, unless zeros were asked for.
    if fault.is_none() && (matches!(op, Op::Zero(_)) || !compare::all_zero(&effects(op, &plain, &plain_ins))?) {
        let slow = clock.map_or(Ok(None), |clock| slow(clock, kernel, op, l, again))?;
        return Ok(match slow {
            Some(fault) => FirstUse::Slow(fault, outs),
            None => FirstUse::Right(outs),
        });
    }
    let proof = matches!(fault, Some(Fault::Unstable | Fault::Launch { .. }))
        || reads_finite(op, l)? && compare::all_finite(&effects(op, &plain, &plain_ins))?;
    reference.restore(l)?;
    Ok(match fault {
        Some(fault) if proof => FirstUse::Faulty(fault, plain),
        Some(_) => FirstUse::Unsettled(Unsettled::NotFinite, plain),
        None => FirstUse::Unsettled(Unsettled::Zeros, plain),
    })
}

/// Whether every operand that is only read is finite. Written operands are left out, as the kernel may have spoilt them.
fn reads_finite(op: &Op, l: &Launch<'_>) -> Result<bool, OpErrorKind> {
    let read: SmallVec<[&Tensor; 8]> =
        l.ins.iter().enumerate().filter(|(index, _)| !op.writes(*index)).map(|(_, tensor)| *tensor).collect();
    compare::all_finite(&read)
}

/// Runs a kernel that promises equal bits a second time, on copies of the original operands.
fn second_run(
    kernel: &Kernel,
    op: &Op,
    l: &Launch<'_>,
    outs: &[Tensor],
    again: Option<&Copied>,
) -> Result<Option<Fault>, OpErrorKind> {
    let Some(again) = again else { return Ok(None) };
    let ins = again.operands(l);
    Ok(match (kernel.launch)(op, &Launch { ins: &ins }) {
        Ok(second) if compare::same(&effects(op, outs, l.ins), &effects(op, &second, &ins))? => None,
        Ok(_) => Some(Fault::Unstable),
        Err(error) => Some(Fault::Launch { error: error.to_string() }),
    })
}

/// Times a correct kernel on copies of the operands, and returns a fault if it is slow.
fn slow(
    clock: SpeedTest,
    kernel: &Kernel,
    op: &Op,
    l: &Launch<'_>,
    again: Option<&Copied>,
) -> Result<Option<Fault>, OpErrorKind> {
    let run = |copies: &Copied| clock(kernel, op, &Launch { ins: &copies.operands(l) });
    let found = match again {
        Some(copies) => run(copies),
        None => Copied::of(op, l).and_then(|copies| run(&copies)),
    };
    match found {
        // A failed measurement says nothing about the kernel, whose results are valid.
        Err(_) if answers(l) => Ok(None),
        found => found,
    }
}

/// Whether the operands' device still executes commands. The CPU always does.
fn answers(l: &Launch<'_>) -> bool {
    let device = l.ins.iter().map(|tensor| tensor.device()).find(|device| matches!(device, Device::Cuda(_)));
    device.is_none_or(|device| {
        let asked = Tensor::f_ones([1], (Kind::Int64, device)).and_then(|one| one.f_int64_value(&[0]));
        matches!(asked, Ok(1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::NoIntents;
    use crate::op::Zero;
    use crate::op::row::Tolerance;

    #[test]
    fn without_memory_for_a_copy_nothing_is_launched() {
        let kernel: &'static Kernel = &Kernel {
            id: "never",
            fits: |_, _| Ok(()),
            launch: |_, _| Err(OpErrorKind::Lost),
            tolerance: Tolerance::Exact,
            deterministic: true,
        };
        let endless = Tensor::zeros([1], (Kind::Float, Device::Cpu)).expand([1 << 46], false);
        let ins = [&endless];
        let used = first_use(kernel, &Op::Zero(Zero), &Launch { ins: &ins }, OperandSignature(0), &NoIntents, None);
        assert!(matches!(used, Ok(FirstUse::NoRoom)));
        let one = Tensor::ones([1], (Kind::Float, Device::Cpu));
        let used = first_use(kernel, &Op::Zero(Zero), &Launch { ins: &[&one] }, OperandSignature(0), &NoIntents, None);
        assert!(matches!(used, Ok(FirstUse::NotLaunched(OpErrorKind::Lost))));
    }
}
