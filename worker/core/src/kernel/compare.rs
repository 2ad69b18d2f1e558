//! Compares a kernel's results with those of the plain reference.
//!
//! Tensors are compared piece by piece, so that the intermediate results of many passes stay in the processor's cache.
//!
//! **Invariant:** operands are only read. A comparison waits for the device and must not run during a capture.

use crate::error::OpErrorKind;
use crate::op::row::Tolerance;
use enn_common::kernels::Fault;
use std::cell::OnceCell;
use tch::{Device, Kind, TchError, Tensor};

/// Units in the last place for results that are rounded once or twice.
const ROUNDING_UNITS: f64 = 4.0;
/// Units for long sums in f32 and f64, whose order of summation is free.
const REDUCTION_UNITS: f64 = 4096.0;
/// Units for long sums whose results have 16 bits: the reference itself rounds at each step.
const REDUCTION_UNITS_HALF: f64 = 16.0;

/// Units of the largest operand that a long sum may be off by, because of cancellation. In 16 bits one such unit is enough, as the
/// results' own units are wide.
const OPERAND_UNITS: f64 = 64.0;
const OPERAND_UNITS_HALF: f64 = 1.0;

/// Tolerance for sums of 8-bit products, as a share of the largest result.
const EIGHT_BITS: f64 = 0.02;

/// Elements compared at once on the host, and on a device, where each piece costs a synchronisation.
const PIECE: i64 = 1 << 17;
const PIECE_OF_DEVICE: i64 = 1 << 24;

/// Casts 8-bit floats to f32, since libtorch has no comparisons for them.
fn readable(tensor: &Tensor) -> Result<Tensor, OpErrorKind> {
    match tensor.kind() {
        Kind::Float8e4m3fn | Kind::Float8e5m2 => Ok(tensor.f_to_kind(Kind::Float)?),
        _ => Ok(tensor.shallow_clone()),
    }
}

/// Splits a tensor into flat pieces, in order.
fn pieces(tensor: &Tensor) -> Result<Vec<Tensor>, OpErrorKind> {
    let most = if tensor.device() == Device::Cpu { PIECE } else { PIECE_OF_DEVICE };
    Ok(readable(tensor)?.f_reshape(-1)?.f_split(most, 0)?)
}

/// Returns the fault of the results `found`, given the reference's results `expected` and the operands of both; `None` when all are
/// within the tolerance.
pub(super) fn fault(
    tolerance: Tolerance,
    found: &[&Tensor],
    expected: &[&Tensor],
    operands: &[&Tensor],
) -> Result<Option<Fault>, OpErrorKind> {
    if found.len() != expected.len() {
        let found = format!("{} results, {} expected", found.len(), expected.len());
        return Ok(Some(Fault::Wrong { found }));
    }
    let made_of = ComparedOperands { all: operands, largest: OnceCell::new() };
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        if let Some(fault) = result_fault(tolerance, index, found, expected, &made_of)? {
            return Ok(Some(fault));
        }
    }
    Ok(None)
}

/// Whether two runs gave the same bits; a NaN equals a NaN.
pub(super) fn same(one: &[&Tensor], other: &[&Tensor]) -> Result<bool, OpErrorKind> {
    for (one, other) in one.iter().zip(other) {
        if one.size() != other.size() {
            return Ok(false);
        }
        for (one, other) in pieces(one)?.iter().zip(&pieces(other)?) {
            if one.f_equal(other)? {
                continue;
            }
            if !one.is_floating_point() {
                return Ok(false);
            }
            let either = one.f_eq_tensor(other)?.f_logical_or(&one.f_isnan()?.f_logical_and(&other.f_isnan()?)?)?;
            if !truth(&either.f_all()?)? {
                return Ok(false);
            }
        }
    }
    Ok(one.len() == other.len())
}

/// Whether every element of every floating tensor is finite.
pub(super) fn all_finite(tensors: &[&Tensor]) -> Result<bool, OpErrorKind> {
    for tensor in tensors.iter().filter(|tensor| tensor.is_floating_point()) {
        for piece in pieces(tensor)? {
            if !truth(&piece.f_isfinite()?.f_all()?)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Whether every element is 0, which makes a comparison inconclusive.
pub(super) fn all_zero(tensors: &[&Tensor]) -> Result<bool, OpErrorKind> {
    for tensor in tensors {
        if truth(&readable(tensor)?.f_any()?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn result_fault(
    tolerance: Tolerance,
    index: usize,
    found: &Tensor,
    expected: &Tensor,
    operands: &ComparedOperands<'_>,
) -> Result<Option<Fault>, OpErrorKind> {
    let shape = |t: &Tensor| (t.size(), t.kind());
    if shape(found) != shape(expected) {
        let found = format!("result {index} is {:?}, expected {:?}", shape(found), shape(expected));
        return Ok(Some(Fault::Wrong { found }));
    }
    if found.numel() == 0 {
        return Ok(None);
    }
    let kind = expected.kind();
    let found = &readable(found)?;
    let expected = &readable(expected)?;
    if found.f_equal(expected)? {
        return Ok(None);
    }
    if !expected.is_floating_point() {
        return Ok(Some(Fault::Wrong { found: format!("result {index} has other whole numbers") }));
    }
    let found = pieces(found)?;
    let wanted = pieces(expected)?;
    let pairs = || found.iter().zip(&wanted);
    let mut largest = 0f64;
    let mut sum = 0.0;
    for (found, wanted) in pairs() {
        if let Some(fault) = other_odd(index, found, wanted)? {
            return Ok(Some(fault));
        }
        let size = finite(wanted)?.f_abs()?;
        largest = largest.max(size.f_max()?.f_double_value(&[])?);
        sum += size.f_sum(Kind::Double)?.f_double_value(&[])?;
    }
    let mean = sum / expected.numel() as f64;
    let (share, least) = allowed(tolerance, kind, largest, mean, operands)?;
    let mut worst: Option<(f64, String)> = None;
    let mut begin = 0;
    for (found, wanted) in pairs() {
        let a = finite(found)?;
        let b = finite(wanted)?;
        let room = b.f_abs()?.f_mul_scalar(share)?.f_add_scalar(least)?;
        let excess = a.f_sub(&b)?.f_abs()?.f_sub(&room)?;
        let most = excess.f_max()?.f_double_value(&[])?;
        if most > worst.as_ref().map_or(0.0, |(most, _)| *most) {
            let at = excess.f_argmax(None, false)?.f_int64_value(&[])?;
            let [a, b, room] = [a, b, room].map(|t| t.f_double_value(&[at]));
            let element = begin + at;
            let text = format!("element {element} of result {index} is {:e}, expected {:e} ± {:e}", a?, b?, room?);
            worst = Some((most, text));
        }
        begin += found.numel() as i64;
    }
    Ok(worst.map(|(_, found)| Fault::Wrong { found }))
}

/// Casts to f64 and replaces values that are not finite with 0.
fn finite(tensor: &Tensor) -> Result<Tensor, TchError> {
    tensor.f_to_kind(Kind::Double)?.f_nan_to_num(0.0, 0.0, 0.0)
}

/// Returns a fault if the two differ where one of them is not finite.
fn other_odd(index: usize, found: &Tensor, wanted: &Tensor) -> Result<Option<Fault>, OpErrorKind> {
    let finite = found.f_isfinite()?;
    let is_wanted = wanted.f_isfinite()?;
    let lost = is_wanted.f_logical_and(&finite.f_logical_not()?)?;
    if truth(&lost.f_any()?)? {
        return Ok(Some(Fault::NonFinite));
    }
    // Where the reference is infinite or NaN the kernel must be the same.
    if truth(&is_wanted.f_all()?)? {
        return Ok(None);
    }
    let a = found.f_masked_fill(&is_wanted, 0.0)?;
    let b = wanted.f_masked_fill(&is_wanted, 0.0)?;
    let wrong =
        || Fault::Wrong { found: format!("result {index} is not infinite or not a number where the reference is") };
    Ok((!same(&[&a], &[&b])?).then(wrong))
}

/// Returns the allowed error of a result as a relative and an absolute part, given the largest and the mean magnitude of all results.
fn allowed(
    tolerance: Tolerance,
    kind: Kind,
    largest: f64,
    mean: f64,
    operands: &ComparedOperands<'_>,
) -> Result<(f64, f64), OpErrorKind> {
    // Sums of f32 operands with f64 results are only as exact as f32.
    let narrow = operands.all.iter().any(|operand| operand.kind() == Kind::Float);
    let unit = unit(if kind == Kind::Double && narrow { Kind::Float } else { kind });
    Ok(match tolerance {
        Tolerance::Exact => (0.0, 0.0),
        Tolerance::Rounding => (ROUNDING_UNITS * unit, ROUNDING_UNITS * unit * mean),
        Tolerance::Reduction => {
            let half = matches!(kind, Kind::Half | Kind::BFloat16);
            let (own, theirs) =
                if half { (REDUCTION_UNITS_HALF, OPERAND_UNITS_HALF) } else { (REDUCTION_UNITS, OPERAND_UNITS) };
            (0.0, largest * unit * own + unit * theirs * operands.largest()?)
        }
        Tolerance::EightBits => (0.0, largest * EIGHT_BITS),
    })
}

/// Operands of a call with a cached magnitude: an update of all weights has hundreds of operands and as many results.
struct ComparedOperands<'a> {
    all: &'a [&'a Tensor],
    largest: OnceCell<f64>,
}

impl ComparedOperands<'_> {
    /// Returns the largest finite magnitude among the floating-point operands; 0 without any.
    fn largest(&self) -> Result<f64, OpErrorKind> {
        if let Some(found) = self.largest.get() {
            return Ok(*found);
        }
        let mut found = 0f64;
        for operand in self.all.iter().filter(|operand| operand.is_floating_point() && operand.numel() > 0) {
            for piece in pieces(operand)? {
                let largest = |t: &Tensor| t.f_abs()?.f_max()?.f_double_value(&[]);
                let size = largest(&piece)?;
                found = found.max(if size.is_finite() { size } else { largest(&finite(&piece)?)? });
            }
        }
        Ok(*self.largest.get_or_init(|| found))
    }
}

/// Distance from 1 to the next larger number of a kind.
fn unit(kind: Kind) -> f64 {
    match kind {
        Kind::Double => f64::EPSILON,
        Kind::Half => 2f64.powi(-10),
        Kind::BFloat16 => 2f64.powi(-7),
        Kind::Float8e4m3fn => 2f64.powi(-3),
        Kind::Float8e5m2 => 2f64.powi(-2),
        _ => f64::from(f32::EPSILON),
    }
}

fn truth(scalar: &Tensor) -> Result<bool, OpErrorKind> {
    Ok(scalar.f_int64_value(&[])? != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(kind: Kind) -> Tensor {
        tch::manual_seed(3);
        Tensor::randn([64, 33], (Kind::Double, Device::Cpu)).to_kind(kind)
    }

    fn judged(tolerance: Tolerance, found: &Tensor, expected: &Tensor) -> Option<Fault> {
        fault(tolerance, &[found], &[expected], &[]).unwrap()
    }

    #[test]
    fn rounding_passes_and_one_percent_does_not() {
        for kind in [Kind::Float, Kind::Double] {
            let x = drawn(kind);
            let rounded = &x * (1.0 + unit(kind));
            assert_eq!(judged(Tolerance::Rounding, &rounded, &x), None, "{kind:?}");
            assert!(judged(Tolerance::Exact, &rounded, &x).is_some(), "{kind:?}");
            for tolerance in [Tolerance::Exact, Tolerance::Rounding, Tolerance::Reduction] {
                assert_eq!(judged(tolerance, &x, &x), None);
                let wrong = judged(tolerance, &(&x * 1.01), &x);
                assert!(matches!(&wrong, Some(Fault::Wrong { found }) if found.contains("of result 0")), "{wrong:?}");
            }
        }
        let x = drawn(Kind::BFloat16);
        assert_eq!(judged(Tolerance::Rounding, &(&x * 1.01), &x), None, "a unit of bf16 is 0.8 %");
        assert!(judged(Tolerance::Rounding, &(&x * 1.1), &x).is_some());
    }

    #[test]
    fn the_finite_pattern_must_agree() {
        let x = drawn(Kind::Float);
        let mut nan = x.copy();
        let _ = nan.get(3).get(4).fill_(f64::NAN);
        assert_eq!(judged(Tolerance::Reduction, &nan, &x), Some(Fault::NonFinite));
        assert!(matches!(judged(Tolerance::Reduction, &x, &nan), Some(Fault::Wrong { .. })), "the reference is NaN");
        assert_eq!(judged(Tolerance::Reduction, &nan, &nan), None);
        let infinite = |sign: f64| x.masked_fill(&x.gt(2.0), sign * f64::INFINITY);
        assert_eq!(judged(Tolerance::Exact, &infinite(1.0), &infinite(1.0)), None);
        assert!(judged(Tolerance::Exact, &infinite(-1.0), &infinite(1.0)).is_some());
        let _ = nan.fill_(f64::NAN);
        assert!(!all_finite(&[&x, &nan]).unwrap() && all_finite(&[&x]).unwrap());
    }

    #[test]
    fn shapes_kinds_and_whole_numbers_are_exact() {
        let x = drawn(Kind::Float);
        assert!(judged(Tolerance::Reduction, &x.tr(), &x).is_some());
        assert!(judged(Tolerance::Reduction, &x.to_kind(Kind::Double), &x).is_some());
        let one = Tensor::from_slice(&[1i64, 2]);
        let two = Tensor::from_slice(&[1i64, 3]);
        assert!(judged(Tolerance::Reduction, &one, &two).is_some());
        assert_eq!(judged(Tolerance::Exact, &one, &one), None);
        assert!(same(&[&one], &[&one]).unwrap() && !same(&[&one], &[&two]).unwrap());
        assert!(fault(Tolerance::Exact, &[&x], &[], &[]).unwrap().is_some());
    }

    #[test]
    fn what_cancels_is_measured_by_the_operands_and_f64_sums_of_f32_by_f32() {
        let x = Tensor::from_slice(&[3.0f32, -3.0]);
        let one = Tensor::from_slice(&[1.0f32]);
        let near = |a: f32, b: f32, operands: &[&Tensor]| {
            let a = Tensor::from_slice(&[a]);
            let b = Tensor::from_slice(&[b]);
            fault(Tolerance::Reduction, &[&a], &[&b], operands).unwrap().is_none()
        };
        assert!(near(1.5e-8, -4.5e-8, &[&x]), "a mean of nearly 0");
        assert!(!near(1e-3, -1e-3, &[&x]));
        assert!(!near(1.01, 1.0, &[&one]), "one per cent shows");
        let a = Tensor::from_slice(&[34_654.533_89f64]);
        let b = Tensor::from_slice(&[34_654.533_95f64]);
        assert!(fault(Tolerance::Reduction, &[&a], &[&b], &[&x]).unwrap().is_none());
        assert!(fault(Tolerance::Reduction, &[&a], &[&b], &[]).unwrap().is_some());
    }
}
