//! Products: batched matrix product with broadcasting, and the fused linear layer.

use super::Op;
use super::attr::Into;
use super::infer::{Inferred, Metas, broadcast, float, mismatch, one, same_kind, wrong};
use super::lower::{Lower, Lowered, only};
use super::row::{Kernel, Launch, Launched, OpRow, Tolerance};
use super::sample::{Draw, Sample, normal, sample};
use super::value::{Meta, Shape, Tensor};
use super::vjp::{Grads, Vjp};
use super::{linear_cpu, linear_cuda};
use crate::backend::torch::safe::{Arg, AtenOp, kind_code};
use crate::error::{OpError, OpErrorKind};
use enn_common::graph::{Id, Op as Plain};
use smallvec::{SmallVec, smallvec};
use tch::{Device, Kind};

/// MatMul, Linear, LinearBackward.
pub static ROWS: [OpRow; 3] = [
    OpRow::forward("matmul", shape_matmul, launch_matmul, vjp_matmul, samples_matmul)
        .saves(0b11, 0)
        .flops(flops_matmul)
        .lowers(lower),
    OpRow::forward("linear", shape_linear, launch_linear, vjp_linear, samples_linear)
        .saves(0b11, 0)
        .kernels(&[linear_cuda::FORWARD, linear_cpu::FORWARD])
        .flops(flops_linear)
        .lowers(lower),
    OpRow::backward("linear_backward", shape_linear_backward, |op, l| linear_backward(op, l, put_product))
        .kernels(&[linear_cuda::BACKWARD, MAIN_GRAD, linear_cpu::BACKWARD])
        .flops(flops_linear_backward),
];

/// Puts the weight's gradient from low-precision operands into f32 storage inside the product, so that it is never rounded.
const MAIN_GRAD: Kernel = Kernel {
    id: "cublas.main_grad",
    fits: fits_main_grad,
    launch: |op, l| linear_backward(op, l, |storage, a, b, add| product_into(storage, &a.f_transpose(0, 1)?, b, add)),
    tolerance: Tolerance::Reduction,
    deterministic: true,
};

/// The last two sizes as the product sees them.
fn matrix(meta: &Meta, transposed: bool) -> (i64, i64) {
    let rank = meta.rank();
    let rows = meta.shape[rank - 2];
    let columns = meta.shape[rank - 1];
    if transposed { (columns, rows) } else { (rows, columns) }
}

/// How many rows a tensor has, as a matrix over its last axis. Told, not left to be found out: an empty matrix does not tell.
fn rows(meta: &Meta) -> i64 {
    meta.shape[..meta.rank().saturating_sub(1)].iter().product()
}

fn shape_matmul(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::MatMul { ta, tb } = op else { unreachable!("row of another operation") };
    float(0, ins[0])?;
    same_kind(ins)?;
    for (i, meta) in ins.iter().enumerate() {
        if meta.rank() < 2 {
            return Err(wrong(i, meta, "at least two axes"));
        }
    }
    let (rows, inner) = matrix(ins[0], *ta);
    let (inner_b, columns) = matrix(ins[1], *tb);
    if inner != inner_b {
        return Err(mismatch(&ins[0].shape, &ins[1].shape, "equal inner sizes"));
    }
    let batch = |meta: &Meta| Shape::from_slice(&meta.shape[..meta.rank() - 2]);
    let mut shape = broadcast(&batch(ins[0]), &batch(ins[1]))?;
    shape.extend([rows, columns]);
    one(ins[0].with_shape(shape))
}

fn launch_matmul(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::MatMul { ta, tb } = op else { unreachable!("row of another operation") };
    let a = l.at(0);
    let b = l.at(1);
    Ok(smallvec![match (ta, tb) {
        (false, false) => a.f_matmul(b)?,
        (true, false) => a.f_transpose(-2, -1)?.f_matmul(b)?,
        (false, true) => a.f_matmul(&b.f_transpose(-2, -1)?)?,
        (true, true) => a.f_transpose(-2, -1)?.f_matmul(&b.f_transpose(-2, -1)?)?,
    }])
}

fn vjp_matmul(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Op::MatMul { ta, tb } = *v.op() else { unreachable!("row of another operation") };
    let g = v.g()?;
    let a = v.input(0)?;
    let b = v.input(1)?;
    let product = |ta, tb, x: &Tensor, y: &Tensor| v.call(Op::MatMul { ta, tb }, &[x, y]);
    let mut grads: Grads = smallvec![None, None];
    if v.needs(0) {
        let ga = if ta { product(tb, true, b, g)? } else { product(false, !tb, g, b)? };
        grads[0] = Some(v.unbroadcast(ga, a.shape())?);
    }
    if v.needs(1) {
        let gb = if !ta && b.meta().rank() == 2 && a.meta().rank() > 2 {
            // A matrix shared by a batch: one product over all rows instead of a batch of products and a sum.
            let rows = |t: &Tensor| v.call(Op::Reshape { shape: smallvec![rows(t.meta()), t.dim(-1)] }, &[t]);
            let a = rows(a)?;
            let g = rows(g)?;
            if tb { product(true, false, &g, &a)? } else { product(true, false, &a, &g)? }
        } else if tb {
            product(true, ta, g, a)?
        } else {
            product(!ta, false, a, g)?
        };
        grads[1] = Some(v.unbroadcast(gb, b.shape())?);
    }
    Ok(grads)
}

fn flops_matmul(op: &Op, ins: &[&Meta], outs: &[Meta]) -> u64 {
    let Op::MatMul { ta, .. } = op else { return 0 };
    (2 * outs[0].numel() * matrix(ins[0], *ta).1).max(0) as u64
}

fn shape_linear(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Linear { bias } = op else { unreachable!("row of another operation") };
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
    if *bias && ins[2].shape.as_slice() != [w.shape[0]] {
        return Err(wrong(2, ins[2], "a bias of shape (out)"));
    }
    let mut shape = x.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = w.shape[0];
    }
    one(x.with_shape(shape))
}

fn launch_linear(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::Linear { bias } = op else { unreachable!("row of another operation") };
    Ok(smallvec![l.at(0).f_linear(l.at(1), bias.then(|| l.at(2)))?])
}

fn vjp_linear(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let x = v.input(0)?;
    let w = v.input(1)?;
    let storage = [v.storage(1)?, if v.arity() > 2 { v.storage(2)? } else { None }];
    let place = |needed: bool, storage: &Option<(Tensor, Into)>| match (needed, storage) {
        (false, _) => Into::Skip,
        (true, Some((_, into))) => *into,
        (true, None) => Into::New,
    };
    let dw = place(v.needs(1), &storage[0]);
    let db = place(v.arity() > 2 && v.needs(2), &storage[1]);
    let mut ins: SmallVec<[&Tensor; 5]> = smallvec![g, x, w];
    ins.extend(storage.iter().flatten().map(|(storage, _)| storage));
    let op = Op::LinearBackward { dx: v.needs(0), dw, db };
    let mut outs = v.call_all(op, &ins)?.into_iter();
    let mut grads: Grads = smallvec![None; v.arity()];
    for (i, made) in [v.needs(0), dw == Into::New, db == Into::New].into_iter().enumerate() {
        if made {
            grads[i] = outs.next();
        }
    }
    Ok(grads)
}

fn shape_linear_backward(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::LinearBackward { dx, dw, db } = op else { unreachable!("row of another operation") };
    let mut metas = Metas::new();
    if *dx {
        metas.push(ins[1].clone());
    }
    if *dw == Into::New {
        metas.push(ins[2].clone());
    }
    if *db == Into::New {
        metas.push(ins[2].with_shape([ins[2].shape[0]].as_slice()));
    }
    Ok(metas)
}

/// Writes aᵀ b to storage, or adds it.
type PutProduct = fn(&tch::Tensor, &tch::Tensor, &tch::Tensor, bool) -> Result<(), OpErrorKind>;

/// In the storage's kind: a low-precision product would be rounded before it is added.
fn put_product(storage: &tch::Tensor, a: &tch::Tensor, b: &tch::Tensor, add: bool) -> Result<(), OpErrorKind> {
    let at = a.f_transpose(0, 1)?.f_to_kind(storage.kind())?;
    let b = b.f_to_kind(storage.kind())?;
    product_into(storage, &at, &b, add)
}

static MM_INTO: AtenOp = AtenOp::new(c"aten::mm", c"dtype_out");
static ADDMM_INTO: AtenOp = AtenOp::new(c"aten::addmm", c"dtype_out");

/// Writes a b to `to`, or adds it, rounded once, to the kind of `to`: that of a and b, or on CUDA f32 for 16-bit ones.
pub(super) fn product_into(to: &tch::Tensor, a: &tch::Tensor, b: &tch::Tensor, add: bool) -> Result<(), OpErrorKind> {
    let a_ = Arg::Tensor(a);
    let b_ = Arg::Tensor(b);
    let kind = Arg::Int(kind_code(to.kind()));
    let to_ = Arg::Tensor(to);
    match (add, to.kind() == a.kind()) {
        (false, true) => drop(a.f_mm_out(to, b)?),
        (true, true) => drop(to.f_addmm_out(to, a, b)?),
        (false, false) => drop(MM_INTO.call(&[a_, b_, kind, to_])?),
        (true, false) => drop(ADDMM_INTO.call(&[to_, a_, b_, kind, Arg::Real(1.0), Arg::Real(1.0), to_])?),
    }
    Ok(())
}

/// Writes a sum to storage, or adds it.
pub(super) fn put(storage: &tch::Tensor, into: Into, sum: &tch::Tensor) -> Result<(), OpErrorKind> {
    let mut storage = storage.shallow_clone();
    if into == Into::Write {
        storage.f_copy_(sum)?
    } else {
        drop(storage.f_add_(sum)?)
    }
    Ok(())
}

fn fits_main_grad(op: &Op, l: &Launch<'_>) -> Result<(), &'static str> {
    let low = matches!(l.at(0).kind(), Kind::Half | Kind::BFloat16);
    match op {
        Op::LinearBackward { dw: Into::Add | Into::Write, .. } if low && l.at(3).kind() == Kind::Float => {}
        _ => return Err("no low-precision product into f32 storage"),
    }
    if matches!(l.at(0).device(), Device::Cuda(_)) { Ok(()) } else { Err("not on CUDA") }
}

fn linear_backward(op: &Op, l: &Launch<'_>, put_product: PutProduct) -> Launched {
    let Op::LinearBackward { dx, dw, db } = op else { unreachable!("row of another operation") };
    let g = l.at(0);
    let x = l.at(1);
    let w = l.at(2);
    let mut outs = crate::backend::Outs::new();
    if *dx {
        outs.push(g.f_matmul(w)?);
    }
    if (*dw, *db) == (Into::Skip, Into::Skip) {
        return Ok(outs);
    }
    let sizes = w.size();
    let count = rows(&Meta::of(g));
    let g = g.f_reshape([count, sizes[0]])?;
    let rows = || x.f_reshape([count, sizes[1]]);
    let mut storages = l.ins[3..].iter();
    match dw {
        Into::Skip => {}
        Into::New => outs.push(g.f_transpose(0, 1)?.f_mm(&rows()?)?),
        Into::Add | Into::Write => {
            if let Some(storage) = storages.next() {
                put_product(storage, &g, &rows()?, *dw == Into::Add)?;
            }
        }
    }
    match db {
        Into::Skip => {}
        Into::New => outs.push(g.f_sum_dim_intlist(0, false, None)?),
        Into::Add | Into::Write => {
            if let Some(storage) = storages.next() {
                // In the storage's kind: a sum over rows is not rounded before it is added.
                put(storage, *db, &g.f_sum_dim_intlist(0, false, storage.kind())?)?;
            }
        }
    }
    Ok(outs)
}

fn flops_linear(_: &Op, ins: &[&Meta], outs: &[Meta]) -> u64 {
    (2 * outs[0].numel() * ins[1].shape[1]).max(0) as u64
}

fn flops_linear_backward(op: &Op, ins: &[&Meta], _: &[Meta]) -> u64 {
    let Op::LinearBackward { dx, dw, .. } = op else { return 0 };
    let one = (2 * ins[0].numel() * ins[2].shape[1]).max(0) as u64;
    one * (u64::from(*dx) + u64::from(*dw != Into::Skip))
}

fn samples_matmul(d: &mut Draw) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    let c = d.size(3, 6);
    let op = |ta, tb| Op::MatMul { ta, tb };
    vec![
        sample(op(false, false), [normal(&[a, b]), normal(&[b, c])]),
        sample(op(true, false), [normal(&[2, b, a]), normal(&[2, b, c]).strided()]),
        sample(op(false, true), [normal(&[3, 1, a, b]).transposed(), normal(&[2, c, b])]),
        sample(op(true, true), [normal(&[b, a]), normal(&[2, c, b])]),
        sample(op(false, false), [normal(&[2, 3, a, b]), normal(&[b, c])]),
        sample(op(false, true), [normal(&[2, a, b]).strided(), normal(&[c, b])]),
        sample(op(false, false), [normal(&[a, 0]), normal(&[0, c])]),
        sample(op(false, false), [normal(&[0, a, b]), normal(&[b, c])]),
        sample(op(false, false), [normal(&[2, a, 0]), normal(&[0, c])]),
        sample(op(false, true), [normal(&[2, a, b]), normal(&[0, b])]),
    ]
}

fn samples_linear(d: &mut Draw) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    let c = d.size(3, 6);
    let op = |bias| Op::Linear { bias };
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

fn lower(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let Op::MatMul { ta, tb } = op else { return only(l.emit(Plain::Linear, l.ins)?) };
    let a = l.at(0);
    let b = l.at(1);
    let mut turned = |x: Id, turn: bool| {
        let rank = l.rank(x);
        if turn { l.swapped(x, rank - 2, rank - 1) } else { Ok(x) }
    };
    let a = turned(a, *ta)?;
    let b = turned(b, *tb)?;
    only(l.emit(Plain::MatMul, &[a, b])?)
}
