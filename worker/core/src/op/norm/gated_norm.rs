//! The gate of a mixer in one operation: silu(gate) · norm(q · s) over the last axis, where s is what the mixer summed up.

use super::{Norm, columns, cpu, cuda, per_element, plain, statistics, stats};
use crate::backend::{Outs, cuda::gated_norm};
use crate::op::elementwise::gate;
use crate::op::prelude::*;

attributes! {
    /// Operands: s, q and gate of its shape, weight, and with layer norm a bias. Results: the gated norm, then the saved statistics of the
    /// norm. With `low`, q, gate and the result have that kind, all else the kind of s: products of 16-bit numbers beside sums in f32 need
    /// no casts between them.
    GatedNorm { layer: bool, eps: F64Bits, low: Option<Kind> } => GATED_NORM;
    /// The reverse. Operands: gradient, s, q, gate, the statistics, then weight and bias. Results: the gradients of s, q, gate, and of weight
    /// and bias.
    GatedNormBackward { layer: bool, low: Option<Kind> } => GATED_NORM_BACKWARD;
}

/// The functions that run the norm and the gate within.
struct Parts {
    norm: fn(Norm, &Launch<'_>) -> Launched,
    gate: fn(&Launch<'_>) -> Launched,
    norm_backward: fn(bool, &Launch<'_>) -> Launched,
    gate_backward: fn(&Launch<'_>) -> Launched,
}

const PLAIN: Parts = Parts {
    norm: plain::norm,
    gate: gate::plain,
    norm_backward: |layer, l| plain::norm_backward(layer, true, l),
    gate_backward: gate::plain_backward,
};

const CPU: Parts = Parts {
    norm: |norm, l| cpu::norm(norm, false, l),
    gate: gate::cpu,
    norm_backward: |layer, l| cpu::norm_backward(layer, true, false, l),
    gate_backward: gate::cpu_backward,
};

const GATED_NORM: OpRow<GatedNorm> = OpRow::<GatedNorm>::forward(
    "gated_norm",
    shape,
    |op, l| launch(op, l, &PLAIN),
    vjp,
    |d| [true, false].into_iter().flat_map(|layer| samples(d, layer)).collect(),
)
.saves(0b11111, 0b110)
.kernels(&[
    Kernel::new("cuda.gated_norm", |_, l| cuda::rows_fit(l.at(0)), launch_cuda),
    cpu::kernel(|op, l| launch(op, l, &CPU)),
])
.class(Class::Stream)
// The norm's, the gate's, and the product.
.flops(|op, ins, _| (1 + per_element(op.layer, true)[0] + 5) * count(ins[0]))
.lowers(|op, l| {
    let product = l.mul(l.at(1), l.at(0))?;
    let affine = l.ins[3..].to_vec();
    let normed = super::lower(l, op.layer, product, &affine, op.eps.get())?;
    let gate = l.silu(l.at(2))?;
    only(l.mul(gate, normed)?)
});

const GATED_NORM_BACKWARD: OpRow<GatedNormBackward> =
    OpRow::<GatedNormBackward>::backward("gated_norm_backward", shape_backward, |op, l| launch_backward(op, l, &PLAIN))
        .kernels(&[
            Kernel::new("cuda.gated_norm_backward", |_, l| cuda::rows_fit(l.at(1)), launch_backward_cuda),
            cpu::backward_kernel(|op, l| launch_backward(op, l, &CPU)),
        ])
        .flops(flops_backward);

/// The reverses of norm and gate, those of the products, and the norm's result once more.
fn flops_backward(op: &GatedNormBackward, ins: &[&Meta], _: &[Meta]) -> u64 {
    let again = if op.layer { 4 } else { 2 };
    (3 + again + 11 + per_element(op.layer, true)[1]) * count(ins[0])
}

fn shape(op: &GatedNorm, ins: &[&Meta]) -> Inferred {
    let wide: SmallVec<[&Meta; 3]> = [ins[0]].into_iter().chain(ins[3..].iter().copied()).collect();
    same_kind(&wide)?;
    let like = Meta { kind: op.low.unwrap_or(ins[0].kind), ..ins[0].clone() };
    for (i, meta) in [(1, ins[1]), (2, ins[2])] {
        if meta.kind != like.kind {
            return Err(wrong(i, meta, "the kind of s, or the low kind"));
        }
        if meta.shape != like.shape {
            return Err(mismatch(&like.shape, &meta.shape, "s, q and gate of one shape"));
        }
    }
    columns(ins, 3)?;
    let mut metas: Metas = smallvec![like];
    metas.extend(statistics(ins[0], op.layer));
    Ok(metas)
}

fn launch(op: &GatedNorm, l: &Launch<'_>, parts: &Parts) -> Launched {
    let s = l.at(0);
    let q = l.at(1);
    let gate = l.at(2);
    let product = q.f_to_kind(s.kind())?.f_mul(s)?;
    let ins: SmallVec<[&Raw; 3]> = [&product].into_iter().chain(l.ins[3..].iter().copied()).collect();
    let norm = Norm { layer: op.layer, affine: true, eps: op.eps.get() };
    let mut outs = (parts.norm)(norm, &Launch { ins: &ins })?;
    let gated = (parts.gate)(&Launch { ins: &[&gate.f_to_kind(s.kind())?, &outs[0]] })?;
    outs[0] = gated[0].f_to_kind(gate.kind())?;
    Ok(outs)
}

fn vjp(op: &GatedNorm, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let GatedNorm { layer, low, .. } = *op;
    let mut ins: SmallVec<[&Tensor; 8]> = smallvec![v.g()?, v.input(0)?, v.input(1)?, v.input(2)?];
    for i in 0..stats(layer) {
        ins.push(v.output(1 + i as u8)?);
    }
    for i in 3..v.arity() {
        ins.push(v.input(i as u8)?);
    }
    Ok(v.call_all(GatedNormBackward { layer, low }, &ins)?.into_iter().map(Some).collect())
}

fn shape_backward(op: &GatedNormBackward, ins: &[&Meta]) -> Inferred {
    let mut metas: Metas = ins[1..4].iter().map(|meta| (*meta).clone()).collect();
    metas.extend(ins[4 + stats(op.layer)..].iter().map(|meta| (*meta).clone()));
    Ok(metas)
}

fn launch_backward(op: &GatedNormBackward, l: &Launch<'_>, parts: &Parts) -> Launched {
    let layer = op.layer;
    let wide = l.at(1).kind();
    let low = l.at(2).kind();
    let [g, s, q, gate] = [0, 1, 2, 3].map(|i| l.at(i).f_to_kind(wide));
    let g = g?;
    let s = s?;
    let q = q?;
    let gate = gate?;
    let (saved, weights) = l.ins[4..].split_at(stats(layer));
    let product = q.f_mul(&s)?;
    let centred = if layer { product.f_sub(saved[0])? } else { product.shallow_clone() };
    let mut normed = centred.f_mul(saved[saved.len() - 1])?.f_mul_(weights[0])?;
    if layer {
        normed = normed.f_add_(weights[1])?;
    }
    let gates = (parts.gate_backward)(&Launch { ins: &[&g, &gate, &normed] })?;
    let ins = [&gates[1], &product].into_iter().chain(saved.iter().copied()).chain([weights[0]]);
    let made = (parts.norm_backward)(layer, &Launch { ins: &ins.collect::<SmallVec<[_; 5]>>() })?;
    let mut outs: Outs = smallvec![made[0].f_mul(&q)?, made[0].f_mul(&s)?.f_to_kind(low)?, gates[0].f_to_kind(low)?];
    outs.extend(made.into_iter().skip(1));
    Ok(outs)
}

/// Puts together s, q, gate and the weights of the operation or its reverse.
fn operands<'a>(first: &[&'a Raw], weights: &[&'a Raw], low: Option<Kind>) -> gated_norm::GatedNorm<'a> {
    let bias = weights.get(1).copied();
    gated_norm::GatedNorm { s: first[0], q: first[1], gate: first[2], weight: weights[0], bias, low }
}

fn launch_cuda(op: &GatedNorm, l: &Launch<'_>) -> Launched {
    let call = operands(&l.ins[..3], &l.ins[3..], op.low);
    let (y, mean, rstd) = gated_norm::gated_norm(&call, op.eps.get())?;
    // The plain reference keeps the statistics of RMS norm in the operand's kind.
    let rstd = if mean.is_some() { rstd } else { rstd.f_to_kind(l.at(0).kind())? };
    Ok([y].into_iter().chain(mean).chain([rstd]).collect())
}

fn launch_backward_cuda(op: &GatedNormBackward, l: &Launch<'_>) -> Launched {
    let at = 4 + stats(op.layer);
    let n = operands(&l.ins[1..4], &l.ins[at..], op.low);
    let made = gated_norm::gated_norm_backward(&n, l.at(0), op.layer.then(|| l.at(4)), l.at(at - 1))?;
    Ok([made.ds, made.dq, made.dgate, made.dw].into_iter().chain(made.db).collect())
}

fn samples(d: &mut SampleRng, layer: bool) -> Vec<Sample> {
    let (a, b) = d.sizes();
    let op = || GatedNorm { layer, eps: 1e-5.into(), low: None };
    let with = |all: [_; 3]| all.into_iter().chain((0..stats(layer)).map(|_| normal(&[b]))).collect::<Vec<_>>();
    let three = |shape: &[i64]| [normal(shape), normal(shape), normal(shape)];
    let [s, q, gate] = three(&[2, a, b]);
    vec![
        sample(op(), with(three(&[a, b]))),
        sample(op(), with([s.transposed(), q.strided(), gate])),
        sample(op(), with(three(&[0, b]))),
    ]
}
