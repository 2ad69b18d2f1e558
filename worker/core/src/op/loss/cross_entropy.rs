//! Cross entropy of classes: the sum over rows of log Σ exp(logits) − logit of the target.
//!
//! **Invariant:** a row whose target is the ignored id contributes exactly 0 to the value and to the gradient, whatever
//! its logits hold. Sums are never kept in less than f32.

use super::not_exported;
use crate::backend::cuda::cross_entropy as cuda;
use crate::op::prelude::*;

attributes! {
    /// Operands: logits (R, C), targets (R) of 64-bit ids. Results: the sum over rows, 0 axes, and log Σ exp(logits) (R) as saved
    /// intermediate; both f32, or f64 for f64 logits.
    CrossEntropy {
        /// Id of targets that do not count.
        ignore: i64,
    } => CROSS_ENTROPY;
    /// The reverse. Operands: gradient, logits, targets, log Σ exp(logits).
    CrossEntropyBackward { ignore: i64 } => CROSS_ENTROPY_BACKWARD;
}

const CROSS_ENTROPY: OpRow<CrossEntropy> = OpRow::forward("cross_entropy", shape, launch, vjp, samples)
    .saves(0b11, 0b10)
    .kernels(&[Kernel::new("cuda.cross_entropy", |_, l| classes_fit(l.at(0)), launch_cuda)])
    .class(Class::Inside)
    .per_operand(4)
    .export(not_exported());

const CROSS_ENTROPY_BACKWARD: OpRow<CrossEntropyBackward> =
    OpRow::backward("cross_entropy_backward", |_, ins| one(ins[1].clone()), launch_backward)
        .kernels(&[Kernel::new("cuda.cross_entropy_backward", |_, l| classes_fit(l.at(1)), launch_backward_cuda)])
        .per_result(3);

fn shape(_: &CrossEntropy, ins: &[&Meta]) -> Inferred {
    let logits = ins[0];
    let targets = ins[1];
    float(0, logits)?;
    if logits.rank() != 2 {
        return Err(wrong(0, logits, "logits of shape (rows, classes)"));
    }
    if targets.kind != Kind::Int64 {
        return Err(OpErrorKind::Kind { operand: 1, found: targets.kind, expected: "Int64 ids" });
    }
    if targets.shape.as_slice() != [logits.shape[0]] {
        return Err(mismatch(&logits.shape, &targets.shape, "one target per row of logits"));
    }
    let like = Meta { kind: wide(logits.kind), ..logits.clone() };
    Ok(smallvec![like.with_shape([].as_slice()), like.with_shape([logits.shape[0]].as_slice())])
}

/// Targets with 0 in place of the ignored id, and where it was.
fn safe_targets(targets: &Raw, ignore: i64) -> Result<(Raw, Raw), OpErrorKind> {
    let ignored = targets.f_eq(ignore)?;
    Ok((targets.f_masked_fill(&ignored, 0)?, ignored))
}

fn launch(op: &CrossEntropy, l: &Launch<'_>) -> Launched {
    let logits = l.at(0);
    let (targets, ignored) = safe_targets(l.at(1), op.ignore)?;
    let wide_logits = logits.f_to_kind(wide(logits.kind()))?;
    let lse = wide_logits.f_logsumexp(1i64, false)?;
    let hit = wide_logits.f_gather(1, &targets.f_unsqueeze(1)?, false)?.f_squeeze_dim(1)?;
    let sum = lse.f_sub(&hit)?.f_masked_fill_(&ignored, 0.0)?.f_sum(None)?;
    Ok(smallvec![sum, lse])
}

fn vjp(op: &CrossEntropy, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let ins = [v.g()?, v.input(0)?, v.input(1)?, v.output(1)?];
    Ok(smallvec![Some(v.call(CrossEntropyBackward { ignore: op.ignore }, &ins)?), None])
}

fn launch_backward(op: &CrossEntropyBackward, l: &Launch<'_>) -> Launched {
    let g = l.at(0);
    let logits = l.at(1);
    let lse = l.at(3);
    let (targets, ignored) = safe_targets(l.at(2), op.ignore)?;
    let mut p = logits.f_to_kind(wide(logits.kind()))?.f_sub(&lse.f_unsqueeze(1)?)?.f_exp_()?;
    let at = targets.f_unsqueeze(1)?;
    let _ = p.f_scatter_add_(1, &at, &Raw::f_full(at.size(), -1.0, (p.kind(), p.device()))?)?;
    let _ = p.f_mul_(g)?.f_masked_fill_(&ignored.f_unsqueeze(1)?, 0.0)?;
    Ok(smallvec![p.f_to_kind(logits.kind())?])
}

fn classes_fit(logits: &Raw) -> Fit {
    if logits.size().get(1).is_none_or(|classes| *classes == 0) {
        return Err("takes at least one class");
    }
    on_device(logits)
}

fn launch_cuda(op: &CrossEntropy, l: &Launch<'_>) -> Launched {
    let [loss, lse] = cuda::cross_entropy(l.at(0), l.at(1), op.ignore)?;
    Ok(smallvec![loss.f_sum(None)?, lse])
}

fn launch_backward_cuda(op: &CrossEntropyBackward, l: &Launch<'_>) -> Launched {
    let logits = l.at(1);
    let targets = l.at(2);
    let lse = l.at(3);
    let call = cuda::CrossEntropyBackward { g: l.at(0), logits, targets, lse, ignored: op.ignore, in_place: false };
    Ok(smallvec![cuda::cross_entropy_backward(&call)?])
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let rows = d.size(8, 11);
    let classes = d.size(3, 6);
    let op = |ignore| CrossEntropy { ignore };
    vec![
        sample(op(-100), [normal(&[rows, classes]), ids(&[rows], classes)]),
        sample(op(1), [normal(&[rows, classes]).transposed(), ids(&[rows], classes).strided()]),
        sample(op(0), [normal(&[rows, classes]).strided(), ids(&[rows], classes)]),
        sample(op(0), [normal(&[rows, classes]), ids(&[rows], 1)]),
        sample(op(-100), [normal(&[0, classes]), ids(&[0], classes)]),
    ]
}
