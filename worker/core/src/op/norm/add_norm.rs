//! A residual sum and its normalisation in one operation: x + branch, and the norm of that over the last axis.
//!
//! Two results flow on: the sum, to the next residual connection, and the norm, to the next branch.

use super::{Norm, columns, cpu, cuda, per_element, plain, statistics, stats};
use crate::backend::cuda::norm;
use crate::op::Cast;
use crate::op::prelude::*;

attributes! {
    /// Operands: x, branch of the same shape, weight, and with layer norm a bias. Results: the sum, the norm, then the saved statistics of
    /// the norm. With `low` the branch and the norm have that kind, all else the kind of x: a stream kept in f32 and branches of 16-bit
    /// products need no casts between them.
    AddNorm { layer: bool, eps: F64Bits, low: Option<Kind> } => ADD_NORM;
    /// The reverse. Operands: gradient of the norm, the sum, the statistics, the weight, then the gradient of the sum if `gsum`. Results: the
    /// gradient of x, those of the weights, and with `low` that of the branch, which is the first rounded.
    AddNormBackward { layer: bool, gsum: bool, low: Option<Kind> } => ADD_NORM_BACKWARD;
}

impl AddNorm {
    fn norm(&self) -> Norm {
        Norm { layer: self.layer, affine: true, eps: self.eps.get() }
    }
}

const ADD_NORM: OpRow<AddNorm> = OpRow::<AddNorm>::forward("add_norm", shape, launch, vjp, |d| {
    [true, false].into_iter().flat_map(|layer| samples(d, layer)).collect()
})
.saves(0b100, 0b1101)
.differentiable(|_| 2)
.kernels(&[
    Kernel::new("cuda.add_norm", |_, l| cuda::rows_fit(l.at(0)), launch_cuda),
    cpu::kernel(|op, l| cpu::norm(op.norm(), true, l)),
])
.class(Class::Stream)
// The norm's, and one addition for the sum.
.flops(|op, ins, _| (1 + per_element(op.layer, true)[0]) * count(ins[0]))
.lowers(|op, l| {
    let sum = l.add(l.at(0), l.at(1))?;
    let affine = l.ins[2..].to_vec();
    let normed = super::lower(l, op.layer, sum, &affine, op.eps.get())?;
    Ok(smallvec![sum, normed])
});

const ADD_NORM_BACKWARD: OpRow<AddNormBackward> =
    OpRow::<AddNormBackward>::backward("add_norm_backward", shape_backward, launch_backward)
        .kernels(&[
            Kernel::new("cuda.add_norm_backward", |_, l| cuda::rows_fit(l.at(1)), launch_backward_cuda),
            cpu::backward_kernel(|op, l| cpu::norm_backward(op.layer, true, op.gsum, l)),
        ])
        .flops(|op, ins, _| (u64::from(op.gsum) + per_element(op.layer, true)[1]) * count(ins[0]));

fn shape(op: &AddNorm, ins: &[&Meta]) -> Inferred {
    let stream: SmallVec<[&Meta; 3]> = ins.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, meta)| *meta).collect();
    same_kind(&stream)?;
    let branch = Meta { kind: op.low.unwrap_or(ins[0].kind), ..ins[0].clone() };
    if ins[1].kind != branch.kind {
        return Err(wrong(1, ins[1], "a branch of the kind of x, or of the low kind"));
    }
    if ins[0].shape != ins[1].shape {
        return Err(mismatch(&ins[0].shape, &ins[1].shape, "x and branch of one shape"));
    }
    columns(ins, 2)?;
    let mut metas: Metas = smallvec![ins[0].clone(), branch];
    metas.extend(statistics(ins[0], op.layer));
    Ok(metas)
}

fn launch(op: &AddNorm, l: &Launch<'_>) -> Launched {
    let sum = l.at(0).f_add(l.at(1))?;
    let mut ins: SmallVec<[&Raw; 3]> = smallvec![&sum];
    ins.extend_from_slice(&l.ins[2..]);
    let mut outs = plain::norm(op.norm(), &Launch { ins: &ins })?;
    if let Some(low) = op.low {
        outs[0] = outs[0].f_to_kind(low)?;
    }
    outs.insert(0, sum.shallow_clone());
    Ok(outs)
}

fn launch_cuda(op: &AddNorm, l: &Launch<'_>) -> Launched {
    let bias = op.layer.then(|| l.at(3));
    let weight = Some(l.at(2));
    let residual = Some(l.at(1));
    let n = norm::Norm { x: l.at(0), residual, weight, bias, centred: op.layer, eps: op.eps.get(), low: op.low };
    let made = norm::norm(&n)?;
    let kind = l.at(0).kind();
    let rstd = if op.layer { made.rstd } else { made.rstd.f_to_kind(kind)? };
    Ok(made.sum.into_iter().chain([made.y]).chain(made.mean).chain([rstd]).collect())
}

fn vjp(op: &AddNorm, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let AddNorm { layer, low, .. } = *op;
    let mut grads: Grads = smallvec![None; v.arity()];
    let gsum = v.gout(0);
    let Some(g) = v.gout(1) else {
        let branch = gsum.zip(low).map(|(g, to)| v.call(Cast { to }, &[g])).transpose()?;
        grads[0] = gsum.cloned();
        grads[1] = branch.or_else(|| gsum.cloned());
        return Ok(grads);
    };
    let mut ins: SmallVec<[&Tensor; 6]> = smallvec![g, v.output(0)?];
    for i in 0..stats(layer) {
        ins.push(v.output(2 + i as u8)?);
    }
    ins.push(v.input(2)?);
    ins.extend(gsum);
    let made = v.call_all(AddNormBackward { layer, gsum: gsum.is_some(), low }, &ins)?;
    let stream = &made[0];
    let weights = &made[1..=stats(layer)];
    let branch = made.get(1 + stats(layer)).unwrap_or(stream);
    grads[0] = Some(stream.clone());
    grads[1] = Some(branch.clone());
    for (slot, weight) in grads[2..].iter_mut().zip(weights) {
        *slot = Some(weight.clone());
    }
    Ok(grads)
}

fn shape_backward(op: &AddNormBackward, ins: &[&Meta]) -> Inferred {
    let weight = ins[2 + stats(op.layer)];
    let mut metas: Metas = smallvec![ins[1].clone()];
    metas.extend((0..stats(op.layer)).map(|_| weight.clone()));
    metas.extend(op.low.map(|kind| Meta { kind, ..ins[1].clone() }));
    Ok(metas)
}

fn launch_backward(op: &AddNormBackward, l: &Launch<'_>) -> Launched {
    let g = l.at(0).f_to_kind(l.at(1).kind())?;
    let operands: SmallVec<[&Raw; 5]> =
        std::iter::once(&g).chain(l.ins[1..3 + stats(op.layer)].iter().copied()).collect();
    let mut outs = plain::norm_backward(op.layer, true, &Launch { ins: &operands })?;
    if op.gsum {
        outs[0] = outs[0].f_add(l.at(l.ins.len() - 1))?;
    }
    if let Some(low) = op.low {
        outs.push(outs[0].f_to_kind(low)?);
    }
    Ok(outs)
}

fn launch_backward_cuda(op: &AddNormBackward, l: &Launch<'_>) -> Launched {
    let stats = stats(op.layer);
    let made = norm::norm_backward(&norm::NormBackward {
        g: l.at(0),
        gsum: op.gsum.then(|| l.at(l.ins.len() - 1)),
        x: l.at(1),
        mean: op.layer.then(|| l.at(2)),
        rstd: l.at(1 + stats),
        weight: Some(l.at(2 + stats)),
        bias: op.layer,
        low: op.low,
    })?;
    Ok(std::iter::once(made.dx).chain(made.dw).chain(made.db).chain(made.dbranch).collect())
}

fn samples(d: &mut SampleRng, layer: bool) -> Vec<Sample> {
    let (a, b) = d.sizes();
    let op = || AddNorm { layer, eps: 1e-5.into(), low: None };
    let with = |x, branch| [x, branch].into_iter().chain((0..stats(layer)).map(|_| normal(&[b]))).collect::<Vec<_>>();
    vec![
        sample(op(), with(normal(&[a, b]), normal(&[a, b]))),
        sample(op(), with(normal(&[2, a, b]).transposed(), normal(&[2, a, b]).strided())),
        sample(op(), with(normal(&[0, b]), normal(&[0, b]))),
    ]
}
