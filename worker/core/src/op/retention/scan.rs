//! The retention scan y_t = λ·y_{t−1} + v_t per head, causal or in both directions, as one operation.
//!
//! The reference runs in chunks of 64 and then scans the chunk ends the same way; a kernel of the shim runs along the
//! positions on the CPU. Either way cost is linear in the length and no power of λ is ever divided by. Carries have the kind
//! of the operands, never less than f32.

use super::CHUNK;
use crate::backend::Outs;
use crate::backend::cuda::retention::{self as cuda, RetentionScan, RetentionScanBackward};
use crate::backend::torch::safe::{self, RetentionBackward as Reverse, has_cpu_kernel};
use crate::op::attr::Dir;
use crate::op::prelude::*;

attributes! {
    /// Operands: v (B,N,H,Dh), λ (H), the incoming state (B,H,Dh) if `state`. Results: y (B,N,H,Dh) and, for the causal direction, the
    /// outgoing state (B,H,Dh).
    Retention { dir: Dir, state: bool } => RETENTION;
    /// The reverse. Operands: v, λ, y, gradient of y, then the state if `state`, and the gradient of the outgoing state if `gstate`.
    RetentionBackward { dir: Dir, state: bool, gstate: bool } => RETENTION_BACKWARD;
}

const RETENTION: OpRow<Retention> = OpRow::<Retention>::forward("retention", shape, launch, vjp, samples)
    .saves(0b111, 1)
    .differentiable(|op| if op.dir == Dir::Causal { 2 } else { 1 })
    .kernels(&[
        Kernel::new("cuda.retention", |_, l| on_device(l.at(0)), launch_cuda),
        Kernel::new("cpu.retention", |_, l| fits_cpu(l), launch_cpu),
    ])
    .class(Class::Full)
    // Two per element and scan; in both directions also what joins the scans.
    .flops(|op, ins, _| count(ins[0]) * if op.dir == Dir::Causal { 2 } else { 6 })
    .lowers(super::lower::lower);

const RETENTION_BACKWARD: OpRow<RetentionBackward> =
    OpRow::<RetentionBackward>::backward("retention_backward", shape_backward, launch_backward)
        .kernels(&[
            Kernel::new("cuda.retention_backward", |_, l| on_device(l.at(0)), launch_backward_cuda),
            Kernel::new("cpu.retention", |_, l| fits_cpu(l), launch_backward_cpu),
        ])
        // As much again for λ's share; in both directions v is scanned again.
        .flops(|op, ins, _| count(ins[0]) * if op.dir == Dir::Causal { 4 } else { 14 });

fn fits_cpu(l: &Launch<'_>) -> Fit {
    if has_cpu_kernel(l.at(0)) { Ok(()) } else { Err("not f32 or f64 on the CPU") }
}

fn shape(op: &Retention, ins: &[&Meta]) -> Inferred {
    let Retention { dir, state } = *op;
    let v = ins[0];
    float(0, v)?;
    same_kind(ins)?;
    if v.rank() != 4 {
        return Err(wrong(0, v, "(batch, positions, heads, width)"));
    }
    if ins[1].shape.as_slice() != [v.shape[2]] {
        return Err(wrong(1, ins[1], "one λ per head"));
    }
    let carried = [v.shape[0], v.shape[2], v.shape[3]];
    if state && dir == Dir::Bidirectional {
        return Err(wrong(2, ins[2], "no state: a bidirectional scan has no past to carry"));
    }
    if state && ins[2].shape.as_slice() != carried {
        return Err(mismatch(&ins[2].shape, &carried, "a state (batch, heads, width)"));
    }
    let mut metas: Metas = smallvec![v.clone()];
    if dir == Dir::Causal {
        metas.push(v.with_shape(carried.as_slice()));
    }
    Ok(metas)
}

/// λ^0 … λ^(n−1) and the lower-triangular (n,n) matrix of λ^(t−s), per head.
fn powers(lambda: &Raw, n: i64) -> Result<(Raw, Raw), OpErrorKind> {
    let t = Raw::f_arange(n, (lambda.kind(), lambda.device()))?;
    let row = lambda.f_unsqueeze(1)?.f_pow(&t)?;
    let distance = t.f_unsqueeze(1)?.f_sub(&t)?;
    let lower = lambda.f_view([-1, 1, 1])?.f_pow(&distance.f_clamp_min(0.0)?)?.f_tril(0)?;
    Ok((row, lower))
}

/// The causal scan of v (B,N,H,D) with λ (H) from `state` (B,H,D), zero if absent.
fn scan(v: &Raw, lambda: &Raw, state: Option<&Raw>) -> Result<Raw, OpErrorKind> {
    let (b, n, h, d) = v.size4()?;
    if n == 0 {
        return Ok(v.shallow_clone());
    }
    let chunk = n.min(CHUNK);
    let chunks = (n + chunk - 1) / chunk;
    let v =
        if chunks * chunk > n { v.f_constant_pad_nd([0, 0, 0, 0, 0, chunks * chunk - n])? } else { v.shallow_clone() };
    // (B,K,H,C,D): one product per chunk and head.
    let v = v.f_reshape([b, chunks, chunk, h, d])?.f_permute([0, 1, 3, 2, 4])?;
    let (row, lower) = powers(lambda, chunk)?;
    let mut y = lower.f_matmul(&v)?;
    let start = match state {
        Some(state) => state.f_unsqueeze(1)?,
        None => Raw::f_zeros([b, 1, h, d], (v.kind(), v.device()))?,
    };
    let before = if chunks == 1 {
        start
    } else {
        let ends = y.f_select(3, chunk - 1)?;
        let carried = scan(&ends, &lambda.f_pow_tensor_scalar(chunk)?, state)?;
        Raw::f_cat(&[&start, &carried.f_narrow(1, 0, chunks - 1)?], 1)?
    };
    if chunks > 1 || state.is_some() {
        let decay = row.f_mul(&lambda.f_unsqueeze(1)?)?.f_unsqueeze(-1)?;
        y = y.f_add_(&before.f_unsqueeze(3)?.f_mul(&decay)?)?;
    }
    Ok(y.f_permute([0, 1, 3, 2, 4])?.f_reshape([b, chunks * chunk, h, d])?.f_narrow(1, 0, n)?)
}

fn scan_back(v: &Raw, lambda: &Raw) -> Result<Raw, OpErrorKind> {
    Ok(scan(&v.f_flip(1)?, lambda, None)?.f_flip(1)?)
}

/// The scan in tensor operations of any device.
pub fn reference(v: &Raw, lambda: &Raw, state: Option<&Raw>, dir: Dir) -> Result<Raw, OpErrorKind> {
    let y = scan(v, lambda, state)?;
    Ok(match dir {
        Dir::Causal => y,
        Dir::Bidirectional => y.f_add(&scan_back(v, lambda)?)?.f_sub_(v)?,
    })
}

fn launch(op: &Retention, l: &Launch<'_>) -> Launched {
    let state = op.state.then(|| l.at(2));
    with_last_state(reference(l.at(0), l.at(1), state, op.dir)?, l.at(0), state, op.dir)
}

/// Runs the scan of `shim/cpu_kernels.cpp`, along the positions.
fn launch_cpu(op: &Retention, l: &Launch<'_>) -> Launched {
    let state = op.state.then(|| l.at(2));
    let y = safe::retention(l.at(0), l.at(1), state, op.dir == Dir::Bidirectional)?;
    with_last_state(y, l.at(0), state, op.dir)
}

fn launch_cuda(op: &Retention, l: &Launch<'_>) -> Launched {
    let both = op.dir == Dir::Bidirectional;
    let scan = RetentionScan { v: l.at(0), lambda: l.at(1), state: op.state.then(|| l.at(2)), both };
    let (y, last) = cuda::scan(&scan)?;
    Ok(std::iter::once(y).chain(last).collect())
}

/// The results: y, and for the causal direction the state after the last position.
fn with_last_state(y: Raw, v: &Raw, state: Option<&Raw>, dir: Dir) -> Launched {
    if dir == Dir::Bidirectional {
        return Ok(smallvec![y]);
    }
    let (b, n, h, d) = v.size4()?;
    let out = match (n, state) {
        (0, Some(state)) => state.shallow_clone(),
        (0, None) => Raw::f_zeros([b, h, d], (v.kind(), v.device()))?,
        _ => y.f_select(1, n - 1)?.f_contiguous()?,
    };
    Ok(smallvec![y, out])
}

fn vjp(op: &Retention, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Retention { dir, state } = *op;
    let zero;
    let g = match v.gout(0) {
        Some(g) => g,
        None => {
            zero = v.zeros(&v.meta(0))?;
            &zero
        }
    };
    let gstate = v.gout(1);
    let mut ins: SmallVec<[&Tensor; 6]> = smallvec![v.input(0)?, v.input(1)?, v.output(0)?, g];
    if state {
        ins.push(v.input(2)?);
    }
    ins.extend(gstate);
    let reverse = RetentionBackward { dir, state, gstate: gstate.is_some() };
    Ok(v.call_all(reverse, &ins)?.into_iter().map(Some).collect())
}

fn shape_backward(op: &RetentionBackward, ins: &[&Meta]) -> Inferred {
    let mut metas: Metas = smallvec![ins[0].clone(), ins[1].clone()];
    if op.state {
        metas.push(ins[4].clone());
    }
    Ok(metas)
}

/// λ's share: Σ G_t ⊙ (the value that λ multiplied at t), over batch, positions and width.
fn lambda_share(g: &Raw, carried: &Raw) -> Result<Raw, OpErrorKind> {
    Ok(g.f_mul(carried)?.f_sum_dim_intlist([0i64, 1, 3].as_slice(), false, None)?)
}

/// y shifted by one position: what λ multiplied at each t.
fn shifted(y: &Raw, first: &Raw) -> Result<Raw, OpErrorKind> {
    let n = y.size()[1];
    Ok(Raw::f_cat(&[&first.f_unsqueeze(1)?, &y.f_narrow(1, 0, n - 1)?], 1)?)
}

fn reverse<'a>(op: &RetentionBackward, l: &'a Launch<'_>) -> Reverse<'a> {
    Reverse {
        v: l.at(0),
        lambda: l.at(1),
        y: l.at(2),
        g: l.at(3),
        state: op.state.then(|| l.at(4)),
        gstate: op.gstate.then(|| l.at(l.ins.len() - 1)),
        both: op.dir == Dir::Bidirectional,
    }
}

fn launch_backward(op: &RetentionBackward, l: &Launch<'_>) -> Launched {
    let reverse = reverse(op, l);
    Ok(asked_for(&reverse, reference_backward(&reverse)?))
}

fn launch_backward_cpu(op: &RetentionBackward, l: &Launch<'_>) -> Launched {
    let reverse = reverse(op, l);
    Ok(asked_for(&reverse, safe::retention_backward(&reverse)?))
}

fn launch_backward_cuda(op: &RetentionBackward, l: &Launch<'_>) -> Launched {
    let Reverse { v, lambda, y, g, state, gstate, both } = reverse(op, l);
    let scan = RetentionScan { v, lambda, state, both };
    let (dv, dlambda, dstate) = cuda::scan_backward(&RetentionScanBackward { scan, y, g, gstate })?;
    Ok([dv, dlambda].into_iter().chain(dstate.filter(|_| op.state)).collect())
}

/// Gradients of v and λ, and of the incoming state if there is one.
fn asked_for(reverse: &Reverse<'_>, made: [Raw; 3]) -> Outs {
    made.into_iter().take(if reverse.state.is_some() { 3 } else { 2 }).collect()
}

/// The reverse scan in tensor operations of any device: gradients of v, λ and the incoming state.
pub fn reference_backward(r: &Reverse<'_>) -> Result<[Raw; 3], OpErrorKind> {
    let v = r.v;
    let lambda = r.lambda;
    let g = r.g;
    let (b, n, h, d) = v.size4()?;
    let nothing = Raw::f_zeros([b, h, d], (v.kind(), v.device()))?;
    if n == 0 {
        let dstate = r.gstate.map_or(nothing, Raw::shallow_clone);
        return Ok([v.shallow_clone(), lambda.f_zeros_like()?, dstate]);
    }
    // The whole gradient of y_t is what arrives at t plus λ times that of y_{t+1}: the scan, reversed.
    let mut flipped = g.f_flip(1)?;
    if let Some(gstate) = r.gstate {
        let first = flipped.f_narrow(1, 0, 1)?.f_add(&gstate.f_unsqueeze(1)?)?;
        flipped = Raw::f_cat(&[&first, &flipped.f_narrow(1, 1, n - 1)?], 1)?;
    }
    let whole = scan(&flipped, lambda, None)?.f_flip(1)?;
    let dstate = whole.f_select(1, 0)?.f_mul(&lambda.f_view([1, -1, 1])?)?;
    if !r.both {
        let dlambda = lambda_share(&whole, &shifted(r.y, r.state.unwrap_or(&nothing))?)?;
        return Ok([whole, dlambda, dstate]);
    }
    let other = scan(g, lambda, None)?;
    let ahead = shifted(&scan(&v.f_flip(1)?, lambda, None)?, &nothing)?;
    let behind = shifted(&scan(v, lambda, None)?, &nothing)?;
    let mut dlambda = lambda_share(&whole, &behind)?;
    dlambda = dlambda.f_add_(&lambda_share(&other.f_flip(1)?, &ahead)?)?;
    Ok([whole.f_add(&other)?.f_sub_(g)?, dlambda, dstate])
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let b = d.size(1, 2);
    let n = d.size(3, 6);
    let h = d.size(2, 3);
    let w = d.size(2, 4);
    let op = |dir, state| Retention { dir, state };
    let lambda = || between(&[h], 0.6, 0.99);
    vec![
        sample(op(Dir::Causal, false), [normal(&[b, n, h, w]), lambda()]),
        sample(op(Dir::Causal, true), [normal(&[b, n, h, w]).transposed(), lambda(), normal(&[b, h, w])]),
        sample(op(Dir::Causal, true), [normal(&[1, 150, h, w]), lambda(), normal(&[1, h, w]).strided()]),
        sample(op(Dir::Bidirectional, false), [normal(&[b, n, h, w]).strided(), lambda()]),
        sample(op(Dir::Bidirectional, false), [normal(&[1, 131, h, 2]), lambda()]),
        sample(op(Dir::Causal, false), [normal(&[b, 1, h, w]), lambda()]),
        sample(op(Dir::Bidirectional, false), [normal(&[b, 0, h, w]), lambda()]),
        sample(op(Dir::Causal, false), [normal(&[b, 0, h, w]), lambda()]),
        sample(op(Dir::Causal, true), [normal(&[b, 0, h, w]), lambda(), normal(&[b, h, w])]),
    ]
}
