//! Optimizer updates as operations: no gradient, written in place, every number on the device.
//!
//! **Invariant:** nothing here reads a number from a device. On the CPU a refused step is seen at once and costs nothing.

use super::cuda_optim as cuda;
use super::infer::{Inferred, Metas, float, mismatch, one, wrong};
use super::row::{Export, Kernel, Launch, Launched, OpRow, Tolerance, elements};
use super::value::Meta;
use super::{F64Bits, Op};
use crate::backend::torch::safe::{adamw, average, average_share, global_norm, zero};
use crate::error::OpErrorKind;
use smallvec::{SmallVec, smallvec};
use tch::{Device, Kind, TchError, Tensor as Raw};

const NOT_EXPORTED: Export = Export::no(
    "the optimizer is not part of the model",
    "parameters as they are: what changes them is the optimizer's, after the forward pass",
);

/// Elements per pass on the CPU: temporaries of this length stay in the cache. Measured on one core for 1.9 M weights: 4.7 ms
/// with 64 Ki elements, 6.5 ms with 16 Ki, 15 ms without division.
const CHUNK_ELEMENTS: i64 = 1 << 16;
/// Numbers whose norm the plain reference takes at once.
const NORM_PIECE: i64 = 1 << 24;
/// Added to the norm before dividing, as torch's clip_grad_norm_ does.
const CLIP_EPS: f64 = 1e-6;

/// Numbers of [`Op::StepScalars`]' first result, by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// Multiplies the summed gradient: 1/count, clip; 0 when the step is refused.
    Gradient,
    /// 1 − β₁, or 0 when the step is refused.
    First,
    /// 1 − β₂, or 0.
    Second,
    /// 1 − lr·wd, or 1 when the step is refused.
    Shrink,
    /// −lr/(1 − β₁ᵗ), or 0.
    Update,
    /// 1/√(1 − β₂ᵗ).
    Spread,
}

/// How many there are.
pub const SCALARS: i64 = 6;
/// Operations that make them, with clipping.
const SCALARS_FLOPS: u64 = 28;

/// GlobalNorm, StepScalars, AdamW, Average, Zero.
///
/// | operation | operands | results |
/// |---|---|---|
/// | GlobalNorm | any number of arrays; the first may be the norm of others, f64 of 0 axes | √Σx², f64, 0 axes |
/// | StepScalars | norm, count, rate, steps (written), skipped (written); f64, 0 axes | six f32 ([`Scalar`]); norm of the mean gradient; 1 if the step is taken, else 0; f64, 0 axes |
/// | AdamW | the six numbers; if it averages, the counts of Average; then weight, gradient, first and second moment of each segment, the weight's low-precision copy if `shadows`, and its average; all but the gradient written | none |
/// | Average | updates so far (f64, 0 axes, written); 1, or 0 where nothing is to change (f64, 0 axes); then average (written) and weights of each array | none |
/// | Zero | any number of arrays, written | none |
pub static ROWS: [OpRow; 5] = [
    OpRow::backward("global_norm", shape_norm, launch_norm)
        .kernels(&[cuda::GLOBAL_NORM, CPU_NORM])
        .flops(|_, ins, _| 2 * elements(ins, 1))
        .export(NOT_EXPORTED),
    OpRow::backward("step_scalars", shape_scalars, launch_scalars)
        .kernels(&[cuda::STEP_SCALARS])
        .flops(|_, _, _| SCALARS_FLOPS)
        .export(NOT_EXPORTED),
    OpRow::backward("adamw", shape_adamw, launch_adamw)
        .kernels(&[cuda::ADAMW, CPU])
        .flops(flops_adamw)
        .export(NOT_EXPORTED),
    OpRow::backward("average", shape_average, launch_average)
        .kernels(&[cuda::AVERAGE, CPU_AVERAGE])
        .flops(|_, ins, _| 3 * elements(&ins[2..], 2))
        .export(NOT_EXPORTED),
    OpRow::backward("zero", |_, _| Ok(Metas::new()), launch_zero)
        .kernels(&[cuda::ZERO, CPU_ZERO])
        .flops(super::row::free)
        .export(NOT_EXPORTED),
];

/// The row of an operation of this family.
pub(super) fn row(op: &Op) -> &'static OpRow {
    match op {
        Op::GlobalNorm => &ROWS[0],
        Op::StepScalars { .. } => &ROWS[1],
        Op::AdamW { .. } => &ROWS[2],
        Op::Average { .. } => &ROWS[3],
        Op::Zero => &ROWS[4],
        _ => unreachable!("an operation of another family"),
    }
}

/// One pass over the arrays, of `shim/cpu_kernels.cpp`.
const CPU: Kernel = Kernel {
    id: "cpu.adamw",
    fits: fits_cpu,
    launch: launch_adamw_cpu,
    tolerance: Tolerance::Reduction,
    deterministic: true,
};

/// All arrays in one pass.
const CPU_NORM: Kernel = Kernel {
    id: "cpu.global_norm",
    fits: |_, l| dense(l.ins),
    launch: |_, l| Ok(smallvec![Raw::from(global_norm(l.ins)?)]),
    ..CPU
};

/// One pass over the arrays, as [`CPU`].
const CPU_AVERAGE: Kernel =
    Kernel { id: "cpu.average", fits: |_, l| dense(&l.ins[2..]), launch: launch_average_cpu, ..CPU };

/// Without reading.
const CPU_ZERO: Kernel = Kernel {
    id: "cpu.zero",
    fits: |_, l| dense(l.ins),
    launch: |_, l| Ok(zero(l.ins).map(|()| SmallVec::new())?),
    tolerance: Tolerance::Exact,
    ..CPU
};

/// Decay of the average that AdamW moves.
pub(super) fn averages(op: &Op) -> Option<f64> {
    let Op::AdamW { average, .. } = op else { return None };
    average.map(F64Bits::get)
}

/// 14 per weight, one more where weights decay, and three where they are averaged.
fn flops_adamw(op: &Op, ins: &[&Meta], _: &[Meta]) -> u64 {
    let Op::AdamW { decays, average, .. } = op else { unreachable!("row of another operation") };
    let segments = ins[head(op)..].chunks_exact(arrays_of(op)).zip(decays);
    let each = |decays: &i64| 14 + u64::from(*decays != 0) + 3 * u64::from(average.is_some());
    segments.map(|(arrays, decays)| each(decays) * elements(&arrays[..1], 1)).sum()
}

/// Operands of AdamW before its segments.
fn head(op: &Op) -> usize {
    if averages(op).is_some() { 3 } else { 1 }
}

/// Arrays of a segment of AdamW.
fn arrays_of(op: &Op) -> usize {
    4 + usize::from(matches!(op, Op::AdamW { shadows: true, .. })) + usize::from(averages(op).is_some())
}

/// Whether operand `i` of AdamW or Average is written.
pub(super) fn writes(op: &Op, i: usize) -> bool {
    match op {
        Op::AdamW { .. } if i < head(op) => i == 1,
        Op::AdamW { .. } => (i - head(op)) % arrays_of(op) != 1,
        _ => i.is_multiple_of(2),
    }
}

/// The arrays of AdamW, by segment.
pub(super) fn segments<'a>(op: &Op, l: &Launch<'a>) -> impl Iterator<Item = Segment<'a>> + use<'a> {
    let shadows = matches!(op, Op::AdamW { shadows: true, .. });
    let averages = averages(op).is_some();
    l.ins[head(op)..].chunks_exact(arrays_of(op)).map(move |arrays| Segment {
        weight: arrays[0],
        grad: arrays[1],
        first: arrays[2],
        second: arrays[3],
        shadow: shadows.then(|| arrays[4]),
        average: averages.then(|| arrays[arrays.len() - 1]),
    })
}

/// One segment of AdamW; all but the gradient are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment<'a> {
    pub weight: &'a Raw,
    pub grad: &'a Raw,
    pub first: &'a Raw,
    pub second: &'a Raw,
    /// The weight's low-precision copy.
    pub shadow: Option<&'a Raw>,
    pub average: Option<&'a Raw>,
}

fn scalar_of(meta: &Meta) -> Meta {
    Meta { shape: SmallVec::new(), kind: Kind::Double, device: meta.device }
}

fn shape_norm(_: &Op, ins: &[&Meta]) -> Inferred {
    let Some(first) = ins.first() else {
        return Err(OpErrorKind::Attribute { name: "number of arrays", found: 0.0, expected: "at least one" });
    };
    ins.iter().enumerate().try_for_each(|(i, meta)| float(i, meta))?;
    one(scalar_of(first))
}

fn launch_norm(_: &Op, l: &Launch<'_>) -> Launched {
    // In f64: libtorch's sum of 12 million squares is a thousandth off in f32. A piece at a time, for it is copied.
    let norm = |flat: &&Raw| {
        let pieces = flat.f_flatten(0, -1)?.f_split(NORM_PIECE, 0)?;
        let norms =
            pieces.iter().map(|piece| piece.f_to_kind(Kind::Double)?.f_norm()).collect::<Result<Vec<_>, _>>()?;
        Raw::f_stack(&norms, 0)?.f_norm()
    };
    let norms = l.ins.iter().map(norm).collect::<Result<Vec<_>, _>>()?;
    Ok(smallvec![Raw::f_stack(&norms, 0)?.f_norm()?])
}

fn shape_scalars(_: &Op, ins: &[&Meta]) -> Inferred {
    for (i, meta) in ins.iter().enumerate() {
        if meta.kind != Kind::Double || meta.rank() != 0 {
            return Err(wrong(i, meta, "an f64 scalar"));
        }
    }
    let numbers = Meta { shape: smallvec![SCALARS], kind: Kind::Float, device: ins[0].device };
    Ok(smallvec![numbers, ins[0].clone(), ins[0].clone()])
}

fn launch_scalars(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::StepScalars { beta1, beta2, decay, clip } = op else { unreachable!("row of another operation") };
    let count = l.at(1);
    let rate = l.at(2);
    let mut steps = l.at(3).shallow_clone();
    let mut skipped = l.at(4).shallow_clone();
    let inverse = count.f_clamp_min(1.0)?.f_reciprocal()?;
    let norm = l.at(0).f_mul(&inverse)?;
    let taken = norm.f_isfinite()?.f_to_kind(Kind::Double)?;
    let _ = steps.f_add_(&taken)?;
    let _ = skipped.f_add_(&taken.f_neg()?.f_add_scalar(1.0)?)?;
    // max() keeps 0/0 away while no step has been taken.
    let power = |beta: f64| {
        let falling = steps.f_full_like(beta)?.f_pow(&steps)?.f_neg()?.f_add_scalar(1.0)?;
        falling.f_clamp_min(f64::MIN_POSITIVE)
    };
    let gradient = if clip.get() > 0.0 {
        let ratio = norm.f_add_scalar(CLIP_EPS)?.f_reciprocal()?.f_mul_scalar(clip.get())?;
        ratio.f_clamp_max(1.0)?.f_mul(&inverse)?
    } else {
        inverse
    };
    let gated = taken.f_mul(rate)?.f_neg()?;
    let numbers = [
        // 0 when the step is refused: a factor made of a norm that is not finite is none either.
        gradient.f_nan_to_num(0.0, 0.0, 0.0)?.f_mul(&taken)?,
        taken.f_mul_scalar(1.0 - beta1.get())?,
        taken.f_mul_scalar(1.0 - beta2.get())?,
        gated.f_mul_scalar(decay.get())?.f_add_scalar(1.0)?,
        gated.f_div(&power(beta1.get())?)?,
        power(beta2.get())?.f_rsqrt()?,
    ];
    Ok(smallvec![Raw::f_stack(&numbers, 0)?.f_to_kind(Kind::Float)?, norm, taken])
}

fn shape_adamw(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::AdamW { decays, .. } = op else { unreachable!("row of another operation") };
    let head = head(op);
    let each = arrays_of(op);
    if ins.len() != head + each * decays.len() || ins[0].shape.as_slice() != [SCALARS] {
        let expected = "six numbers, two counts if it averages, then four arrays for each segment, one more for each of copies and averages";
        return Err(wrong(0, ins[0], expected));
    }
    for segment in ins[head..].chunks(each) {
        for other in &segment[1..] {
            if other.shape != segment[0].shape {
                return Err(mismatch(
                    &segment[0].shape,
                    &other.shape,
                    "weight, gradient, moments, copy and average of one shape",
                ));
            }
        }
    }
    Ok(Metas::new())
}

fn launch_adamw(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::AdamW { eps, decays, .. } = op else { unreachable!("row of another operation") };
    let numbers = l.at(0);
    let on_cpu = numbers.device() == Device::Cpu;
    if on_cpu && numbers.f_double_value(&[Scalar::First as i64])? == 0.0 {
        return Ok(SmallVec::new());
    }
    let share = averages(op).map(|decay| share(l.at(1), l.at(2), decay)).transpose()?;
    for (segment, decays) in segments(op, l).zip(decays) {
        let len = segment.weight.numel() as i64;
        let piece = if on_cpu { CHUNK_ELEMENTS } else { len.max(1) };
        let mut start = 0;
        while start < len {
            let cut = |raw: &Raw| raw.f_narrow(0, start, piece.min(len - start));
            let arrays = [cut(segment.weight)?, cut(segment.grad)?, cut(segment.first)?, cut(segment.second)?];
            let weight = arrays[0].shallow_clone();
            update(arrays, numbers, (*decays != 0, !on_cpu), eps.get())?;
            if let Some(copy) = segment.shadow {
                cut(copy)?.f_copy_(&weight)?;
            }
            if let (Some(average), Some(share)) = (segment.average, &share) {
                let _ = cut(average)?.f_lerp_tensor_(&weight, &share.f_to_kind(average.kind())?)?;
            }
            start += piece;
        }
    }
    Ok(SmallVec::new())
}

fn fits_cpu(op: &Op, l: &Launch<'_>) -> Result<(), &'static str> {
    if matches!(op, Op::AdamW { shadows: true, .. }) {
        return Err("weights with low-precision copies");
    }
    if averages(op).is_some() { dense(&l.ins[3..]) } else { dense(l.ins) }
}

fn dense(arrays: &[&Raw]) -> Result<(), &'static str> {
    let fits = |x: &Raw| x.device() == Device::Cpu && x.kind() == Kind::Float && x.is_contiguous();
    if arrays.iter().all(|x| fits(x)) { Ok(()) } else { Err("not dense f32 on the CPU") }
}

fn launch_adamw_cpu(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::AdamW { eps, decays, .. } = op else { unreachable!("row of another operation") };
    let numbers = l.at(0);
    if numbers.f_double_value(&[Scalar::First as i64])? != 0.0 {
        let share = averages(op).map(|decay| average_share(l.at(1), l.at(2), decay)).transpose()?.unwrap_or(0.0);
        for (of, decays) in segments(op, l).zip(decays) {
            let arrays = [of.weight, of.grad, of.first, of.second];
            adamw(arrays, of.average.map(|average| (average, share)), numbers, *decays != 0, eps.get())?;
        }
    }
    Ok(SmallVec::new())
}

/// One pass over weight, gradient, first and second moment; the gradient is only read. `clear` makes it safe for a refused gradient.
fn update(arrays: [Raw; 4], numbers: &Raw, (decays, clear): (bool, bool), eps: f64) -> Result<(), TchError> {
    let [mut weight, mut grad, mut first, mut second] = arrays;
    let at = |which: Scalar| numbers.f_select(0, which as i64);
    if clear {
        // NaN · 0 is NaN: a refused gradient must be cleared, or the gates of 0 below would let it through.
        grad = grad.f_nan_to_num(0.0, 0.0, 0.0)?;
    }
    let grad = grad.f_mul(&at(Scalar::Gradient)?)?;
    if decays {
        let _ = weight.f_mul_(&at(Scalar::Shrink)?)?;
    }
    let _ = first.f_lerp_tensor_(&grad, &at(Scalar::First)?)?;
    let _ = second.f_lerp_tensor_(&grad.f_square()?, &at(Scalar::Second)?)?;
    let mut denominator = second.f_sqrt()?;
    let _ = denominator.f_mul_(&at(Scalar::Spread)?)?.f_add_scalar_(eps)?;
    let _ = weight.f_addcdiv_(&first.f_mul(&at(Scalar::Update)?)?, &denominator)?;
    Ok(())
}

fn shape_average(_: &Op, ins: &[&Meta]) -> Inferred {
    for pair in ins[2..].chunks(2) {
        if pair.len() != 2 || pair[0].shape != pair[1].shape {
            return Err(wrong(2, pair[0], "averages and weights of one shape, in pairs"));
        }
    }
    Ok(Metas::new())
}

/// avg ← avg + w_t (p − avg) with w_t = (1 − d)/(1 − dᵗ), its limit 1/t for d = 1, or 0.
fn launch_average(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::Average { decay } = op else { unreachable!("row of another operation") };
    let share = share(l.at(0), l.at(1), decay.get())?;
    for pair in l.ins[2..].chunks(2) {
        let _ = pair[0].shallow_clone().f_lerp_tensor_(pair[1], &share.f_to_kind(pair[0].kind())?)?;
    }
    Ok(SmallVec::new())
}

/// Counts an update; w_t, which an average moves by.
fn share(updates: &Raw, taken: &Raw, decay: f64) -> Result<Raw, TchError> {
    let mut updates = updates.shallow_clone();
    let _ = updates.f_add_(taken)?;
    let share = if decay < 1.0 {
        let falling = updates.f_full_like(decay)?.f_pow(&updates)?.f_neg()?.f_add_scalar(1.0)?;
        falling.f_reciprocal()?.f_mul_scalar(1.0 - decay)?
    } else {
        updates.f_reciprocal()?
    };
    // Selected: before the first update it is infinite.
    share.f_where_self(&taken.f_gt(0.5)?, &share.f_zeros_like()?)
}

fn launch_average_cpu(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::Average { decay } = op else { unreachable!("row of another operation") };
    average(&l.ins[2..], average_share(l.at(0), l.at(1), decay.get())?)?;
    Ok(SmallVec::new())
}

fn launch_zero(_: &Op, l: &Launch<'_>) -> Launched {
    for array in l.ins {
        let _ = array.shallow_clone().f_zero_()?;
    }
    Ok(SmallVec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pass_on_the_cpu_is_the_plain_reference() {
        let taken = [0.5_f32, 0.1, 0.01, 0.999, -1e-2, 3.0];
        let cases = [(taken, None), ([0.0, 0.0, 0.0, 1.0, 0.0, 3.0], None), (taken, Some(0.98)), (taken, Some(1.0))];
        let refused = ([0.0, 0.0, 0.0, 1.0, 0.0, 3.0], Some(0.98));
        for (numbers, average) in cases.into_iter().chain([refused]) {
            let average = average.map(F64Bits::from);
            let op = Op::AdamW { eps: 1e-8.into(), decays: smallvec![1, 0], shadows: false, average };
            let counts = [7.0, f64::from(u8::from(numbers[1] != 0.0))].map(Raw::from);
            let found: Vec<Raw> = std::iter::once(Raw::from_slice(&numbers))
                .chain(counts.into_iter().filter(|_| average.is_some()))
                .chain([70_001, 19].into_iter().flat_map(|n| {
                    (0..4 + usize::from(average.is_some())).map(move |_| Raw::rand([n], (Kind::Float, Device::Cpu)))
                }))
                .collect();
            let expected: Vec<Raw> = found.iter().map(Raw::copy).collect();
            let run = |ins: &[Raw], launch: fn(&Op, &Launch<'_>) -> Launched| {
                let ins: Vec<&Raw> = ins.iter().collect();
                fits_cpu(&op, &Launch { ins: &ins }).unwrap();
                tch::no_grad(|| launch(&op, &Launch { ins: &ins })).unwrap();
            };
            run(&found, launch_adamw_cpu);
            run(&expected, launch_adamw);
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!(found.allclose(expected, 1e-6, 1e-7, false), "operand {i}, average {average:?}");
            }
        }
    }

    #[test]
    fn zeros_are_everywhere_in_the_arrays_and_nowhere_else() {
        let around = Raw::ones([70_003], (Kind::Float, Device::Cpu));
        let short = Raw::ones([3], (Kind::Float, Device::Cpu));
        let within = around.narrow(0, 1, 70_001);
        let l = Launch { ins: &[&within, &short] };
        (CPU_ZERO.fits)(&Op::Zero, &l).unwrap();
        tch::no_grad(|| (CPU_ZERO.launch)(&Op::Zero, &l)).unwrap();
        assert_eq!((around.sum(Kind::Double).double_value(&[]), short.sum(Kind::Double).double_value(&[])), (2.0, 0.0));
        assert_eq!((around.double_value(&[0]), around.double_value(&[70_002])), (1.0, 1.0));
    }

    #[test]
    fn the_gate_of_a_device_refuses_without_looking() {
        // The device's way, run on the CPU: a gate of 0 and a gradient of NaN leave every array as it is.
        let scalar = |x: f64| Raw::from(x);
        let op = Op::StepScalars { beta1: 0.9.into(), beta2: 0.99.into(), decay: 0.1.into(), clip: 1.0.into() };
        let steps = scalar(3.0);
        let skipped = scalar(0.0);
        let ins = [&scalar(f64::NAN), &scalar(8.0), &scalar(1e-2), &steps, &skipped];
        let made = tch::no_grad(|| launch_scalars(&op, &Launch { ins: &ins })).unwrap();
        assert_eq!((steps.double_value(&[]), skipped.double_value(&[])), (3.0, 1.0));
        assert_eq!(made[2].double_value(&[]), 0.0);
        let arrays = || [0.5, f64::NAN, 0.25, 0.125].map(|x| Raw::full([5], x, (Kind::Float, Device::Cpu)));
        let before = arrays();
        let after = arrays();
        let handles = [0, 1, 2, 3].map(|i: usize| after[i].shallow_clone());
        tch::no_grad(|| update(handles, &made[0], (true, true), 1e-8)).unwrap();
        for i in [0, 2, 3] {
            assert_eq!(before[i], after[i], "array {i}");
        }
    }

    #[test]
    fn averages_in_one_pass_on_the_cpu_are_the_plain_reference() {
        for (decay, updates, taken) in [(0.98_f64, 0.0, 1.0), (0.98, 7.0, 1.0), (1.0, 3.0, 1.0), (0.98, 7.0, 0.0)] {
            let op = Op::Average { decay: decay.into() };
            let counts = [updates, taken].map(|count: f64| Raw::from(count));
            let arrays = [70_001, 19].map(|n| [0; 2].map(|_| Raw::rand([n], (Kind::Float, Device::Cpu))));
            let found: Vec<Raw> = counts.into_iter().chain(arrays.into_iter().flatten()).collect();
            let expected: Vec<Raw> = found.iter().map(Raw::copy).collect();
            let run = |ins: &[Raw], launch: fn(&Op, &Launch<'_>) -> Launched| {
                let ins: Vec<&Raw> = ins.iter().collect();
                (CPU_AVERAGE.fits)(&op, &Launch { ins: &ins }).unwrap();
                tch::no_grad(|| launch(&op, &Launch { ins: &ins })).unwrap();
            };
            run(&found, launch_average_cpu);
            run(&expected, launch_average);
            assert_eq!(found[0], expected[0], "updates");
            for (found, expected) in found.iter().zip(&expected) {
                assert!(found.allclose(expected, 1e-6, 1e-7, false), "decay {decay}, {updates} updates before");
            }
        }
    }
}
