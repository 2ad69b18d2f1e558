//! The norms and their reverses by libtorch: the plain reference of all operations that contain one.

use super::Norm;
use crate::backend::torch::safe::{Arg, AtenOp};
use crate::op::prelude::*;

fn width(x: &Raw) -> i64 {
    x.size().last().copied().unwrap_or(1)
}

/// Runs a norm. Operands: x, then the weights if there are any.
pub(super) fn norm(norm: Norm, l: &Launch<'_>) -> Launched {
    let x = l.at(0);
    if norm.layer {
        let w = norm.affine.then(|| l.at(1));
        let b = norm.affine.then(|| l.at(2));
        let (y, mean, rstd) = x.f_native_layer_norm(width(x), w, b, norm.eps)?;
        return Ok(smallvec![y, mean, rstd]);
    }
    let rstd = x.f_mul(x)?.f_mean_dim(-1, true, None)?.f_add_scalar_(norm.eps)?.f_rsqrt_()?;
    let mut y = x.f_mul(&rstd)?;
    if norm.affine {
        y = y.f_mul_(l.at(1))?;
    }
    Ok(smallvec![y, rstd])
}

static LAYER_NORM_BACKWARD: AtenOp = AtenOp::new(c"aten::native_layer_norm_backward", c"");

/// Runs the reverse of a norm. Operands: gradient, x, statistics, then the weight if there is one.
pub(super) fn norm_backward(layer: bool, affine: bool, l: &Launch<'_>) -> Launched {
    if layer { layer_norm_backward(affine, l) } else { rms_norm_backward(affine, l) }
}

fn layer_norm_backward(affine: bool, l: &Launch<'_>) -> Launched {
    let x = l.at(1);
    // The kernel reads the bias's presence only.
    let weight = if affine { Arg::Tensor(l.at(4)) } else { Arg::None };
    let mut outs = LAYER_NORM_BACKWARD.call(&[
        Arg::Tensor(l.at(0)),
        Arg::Tensor(x),
        Arg::Ints(&[width(x)]),
        Arg::Tensor(l.at(2)),
        Arg::Tensor(l.at(3)),
        weight,
        weight,
        Arg::Bools(&[true, affine, affine]),
    ])?;
    if !affine {
        outs.truncate(1);
    }
    Ok(outs)
}

fn rms_norm_backward(affine: bool, l: &Launch<'_>) -> Launched {
    let g = l.at(0);
    let x = l.at(1);
    let rstd = l.at(2);
    let hat = x.f_mul(rstd)?;
    let gw = if affine { g.f_mul(l.at(3))? } else { g.shallow_clone() };
    let along = gw.f_mul(&hat)?.f_mean_dim(-1, true, None)?;
    let dx = gw.f_sub(&hat.f_mul(&along)?)?.f_mul_(rstd)?;
    if !affine {
        return Ok(smallvec![dx]);
    }
    Ok(smallvec![dx, rows_sum(&g.f_mul(&hat)?)?])
}

/// Sums a gradient over all axes but the last.
fn rows_sum(t: &Raw) -> Result<Raw, OpErrorKind> {
    let axes: Vec<i64> = (0..t.dim() as i64 - 1).collect();
    if axes.is_empty() {
        return Ok(t.shallow_clone());
    }
    Ok(t.f_sum_dim_intlist(axes, false, None)?)
}
