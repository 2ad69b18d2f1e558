//! The norms and their reverses by our own CUDA kernels.

use super::{Norm, stats};
use crate::backend::cuda::norm;
use crate::op::prelude::*;

/// Whether the kernels take the rows of `x`.
pub(super) fn rows_fit(x: &Raw) -> Fit {
    on_device(x)?;
    match x.size().last() {
        Some(1..=norm::WIDTH_MAX) => Ok(()),
        _ => Err("rows are empty or wider than 16384"),
    }
}

/// Runs a norm alone. Operands: x, then the weights if there are any.
pub(super) fn norm(call: Norm, l: &Launch<'_>) -> Launched {
    let Norm { layer, affine, eps } = call;
    let weight = affine.then(|| l.at(1));
    let bias = (affine && layer).then(|| l.at(2));
    let made = norm::norm(&norm::Norm { x: l.at(0), residual: None, weight, bias, centred: layer, eps, low: None })?;
    let Some(mean) = made.mean else {
        // The plain reference keeps the statistics of RMS norm in the operand's kind.
        return Ok(smallvec![made.y, made.rstd.f_to_kind(l.at(0).kind())?]);
    };
    Ok(smallvec![made.y, mean, made.rstd])
}

/// Runs the reverse of a norm alone. Operands: gradient, x, statistics, then the weight if there is one.
pub(super) fn norm_backward(layer: bool, affine: bool, l: &Launch<'_>) -> Launched {
    let stats = stats(layer);
    let made = norm::norm_backward(&norm::NormBackward {
        g: l.at(0),
        gsum: None,
        x: l.at(1),
        mean: layer.then(|| l.at(2)),
        rstd: l.at(1 + stats),
        weight: affine.then(|| l.at(2 + stats)),
        bias: layer,
        low: None,
    })?;
    Ok(std::iter::once(made.dx).chain(made.dw).chain(made.db).collect())
}
