//! The fused linear layer.

use super::store::{product_into, put};
use super::{linear_cpu, linear_cuda, rows};
use crate::backend::Outs;
use crate::op::attr::GradDest;
use crate::op::prelude::*;
use enn_common::graph::Op as Plain;

attributes! {
    /// Operands: rows (…, in), a weight (out, in), a bias (out) if `bias`.
    Linear { bias: bool } => LINEAR;
    /// The reverse. Operands: the gradient, rows, weight, then the storages of the weight's and the bias's gradient, where these have one.
    /// Results: the gradients that are new tensors.
    LinearBackward {
        /// Whether the gradient of the rows is asked for.
        dx: bool,
        dw: GradDest,
        db: GradDest,
    } => LINEAR_BACKWARD;
}

const LINEAR: OpRow<Linear> = OpRow::forward("linear", shape, launch, vjp, samples)
    .saves(0b11, 0)
    .product()
    .kernels(&[linear_cuda::FORWARD, linear_cpu::FORWARD])
    .class(Class::Low)
    .flops(|_, ins, outs| (2 * outs[0].numel() * ins[1].shape[1]).max(0) as u64)
    .lowers(|_, l| only(l.emit(Plain::Linear, l.ins)?));

const LINEAR_BACKWARD: OpRow<LinearBackward> =
    OpRow::<LinearBackward>::backward("linear_backward", shape_backward, |op, l| launch_backward(op, l, put_product))
        .writes(|op, i| i >= 3 && i < 3 + usize::from(op.dw.is_storage()) + usize::from(op.db.is_storage()))
        .product()
        .kernels(&[linear_cuda::BACKWARD, MAIN_GRAD, linear_cpu::BACKWARD])
        .flops(flops_backward);

/// Puts the weight's gradient from low-precision operands into f32 storage inside the product, so that it is never rounded.
const MAIN_GRAD: Kernel<LinearBackward> = Kernel::new("cublas.main_grad", fits_main_grad, |op, l| {
    launch_backward(op, l, |storage, a, b, add| product_into(storage, &a.f_transpose(0, 1)?, b, add))
});

fn shape(op: &Linear, ins: &[&Meta]) -> Inferred {
    let x = ins[0];
    let w = ins[1];
    float(0, x)?;
    same_kind(ins)?;
    if w.rank() != 2 || x.rank() == 0 {
        return Err(mismatch(&x.shape, &w.shape, "rows (…, in) and a weight (out, in)"));
    }
    if x.shape[x.rank() - 1] != w.shape[1] {
        return Err(mismatch(&x.shape, &w.shape, "a last axis equal to the weight's second axis"));
    }
    if op.bias && ins[2].shape.as_slice() != [w.shape[0]] {
        return Err(wrong(2, ins[2], "a bias of shape (out)"));
    }
    one(x.with_size(x.rank() - 1, w.shape[0]))
}

fn launch(op: &Linear, l: &Launch<'_>) -> Launched {
    Ok(smallvec![l.at(0).f_linear(l.at(1), op.bias.then(|| l.at(2)))?])
}

fn vjp(_: &Linear, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let x = v.input(0)?;
    let w = v.input(1)?;
    let storage = [v.storage(1)?, if v.arity() > 2 { v.storage(2)? } else { None }];
    let place = |needed: bool, storage: &Option<(Tensor, GradDest)>| match (needed, storage) {
        (false, _) => GradDest::Skip,
        (true, Some((_, to))) => *to,
        (true, None) => GradDest::New,
    };
    let dw = place(v.needs(1), &storage[0]);
    let db = place(v.arity() > 2 && v.needs(2), &storage[1]);
    let mut ins: SmallVec<[&Tensor; 5]> = smallvec![g, x, w];
    ins.extend(storage.iter().flatten().map(|(storage, _)| storage));
    let mut outs = v.call_all(LinearBackward { dx: v.needs(0), dw, db }, &ins)?.into_iter();
    let mut grads: Grads = smallvec![None; v.arity()];
    for (i, made) in [v.needs(0), dw == GradDest::New, db == GradDest::New].into_iter().enumerate() {
        if made {
            grads[i] = outs.next();
        }
    }
    Ok(grads)
}

fn shape_backward(op: &LinearBackward, ins: &[&Meta]) -> Inferred {
    let mut metas = Metas::new();
    if op.dx {
        metas.push(ins[1].clone());
    }
    if op.dw == GradDest::New {
        metas.push(ins[2].clone());
    }
    if op.db == GradDest::New {
        metas.push(ins[2].with_shape([ins[2].shape[0]].as_slice()));
    }
    Ok(metas)
}

/// Writes aᵀ b to storage, or adds it.
type PutProduct = fn(&Raw, &Raw, &Raw, bool) -> Result<(), OpErrorKind>;

/// Works in the storage's kind: a low-precision product would be rounded before it is added.
fn put_product(storage: &Raw, a: &Raw, b: &Raw, add: bool) -> Result<(), OpErrorKind> {
    let at = a.f_transpose(0, 1)?.f_to_kind(storage.kind())?;
    let b = b.f_to_kind(storage.kind())?;
    product_into(storage, &at, &b, add)
}

fn fits_main_grad(op: &LinearBackward, l: &Launch<'_>) -> Fit {
    let low = matches!(l.at(0).kind(), Kind::Half | Kind::BFloat16);
    if !(op.dw.is_storage() && low && l.at(3).kind() == Kind::Float) {
        return Err("no low-precision product into f32 storage");
    }
    if matches!(l.at(0).device(), Device::Cuda(_)) { Ok(()) } else { Err("not on CUDA") }
}

fn launch_backward(op: &LinearBackward, l: &Launch<'_>, put_product: PutProduct) -> Launched {
    let LinearBackward { dx, dw, db } = *op;
    let g = l.at(0);
    let x = l.at(1);
    let w = l.at(2);
    let mut outs = Outs::new();
    if dx {
        outs.push(g.f_matmul(w)?);
    }
    if dw == GradDest::Skip && db == GradDest::Skip {
        return Ok(outs);
    }
    let sizes = w.size();
    let count = rows(&Meta::of(g));
    let g = g.f_reshape([count, sizes[0]])?;
    let rows = || x.f_reshape([count, sizes[1]]);
    let mut storages = l.ins[3..].iter();
    match dw {
        GradDest::Skip => {}
        GradDest::New => outs.push(g.f_transpose(0, 1)?.f_mm(&rows()?)?),
        GradDest::Add | GradDest::Write => {
            if let Some(storage) = storages.next() {
                put_product(storage, &g, &rows()?, dw == GradDest::Add)?;
            }
        }
    }
    match db {
        GradDest::Skip => {}
        GradDest::New => outs.push(g.f_sum_dim_intlist(0, false, None)?),
        GradDest::Add | GradDest::Write => {
            if let Some(storage) = storages.next() {
                // In the storage's kind: a sum over rows is not rounded before it is added.
                put(storage, db, &g.f_sum_dim_intlist(0, false, storage.kind())?)?;
            }
        }
    }
    Ok(outs)
}

fn flops_backward(op: &LinearBackward, ins: &[&Meta], _: &[Meta]) -> u64 {
    let one = (2 * ins[0].numel() * ins[2].shape[1]).max(0) as u64;
    one * (u64::from(op.dx) + u64::from(op.dw != GradDest::Skip))
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    let c = d.size(3, 6);
    let op = |bias| Linear { bias };
    vec![
        sample(op(true), [normal(&[a, b]), normal(&[c, b]), normal(&[c])]),
        sample(op(false), [normal(&[2, a, b]).transposed(), normal(&[c, b]).strided()]),
        sample(op(true), [normal(&[2, 3, a, b]).strided(), normal(&[c, b]).transposed(), normal(&[c]).strided()]),
        sample(op(true), [normal(&[b]), normal(&[c, b]), normal(&[c])]),
        sample(op(true), [normal(&[0, b]), normal(&[c, b]), normal(&[c])]),
        sample(op(true), [normal(&[2, a, 0]), normal(&[c, 0]), normal(&[c])]),
        sample(op(true), [normal(&[2, a, b]), normal(&[0, b]), normal(&[0])]),
    ]
}
