//! silu(gate) · norm(q · s) and its gradient; the kernels are in the source of the norms.

use super::call::KernelCall;
use super::check::Check;
use super::error::CudaError;
use super::norm::{HELD_BACKWARD, HELD_FORWARD, NormVariant, branch, columns, layout, partial, saved, stats_of, sum};
use crate::backend::aligned_rows;
use tch::{Kind, Tensor};

/// Operands of a gated norm; s, q and gate have one shape.
#[derive(Debug, Clone, Copy)]
pub struct GatedNorm<'a> {
    pub s: &'a Tensor,
    /// Factors q of the sums; rows may be strided.
    pub q: &'a Tensor,
    /// The gate before silu; rows may be strided.
    pub gate: &'a Tensor,
    /// Scale per column.
    pub weight: &'a Tensor,
    /// Shift per column; with a shift the norm is a layer norm, else an RMS norm.
    pub bias: Option<&'a Tensor>,
    /// Kind of q, gate and the result, when it is not that of `s`.
    pub low: Option<Kind>,
}

#[derive(Debug)]
pub struct GatedNormGrads {
    pub ds: Tensor,
    pub dq: Tensor,
    pub dgate: Tensor,
    pub dw: Tensor,
    pub db: Option<Tensor>,
}

struct GatedNormOperands {
    s: Tensor,
    q: Tensor,
    gate: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
    form: NormVariant,
}

impl GatedNormOperands {
    fn new(check: Check, n: &GatedNorm<'_>, held: i64) -> Result<Self, CudaError> {
        let s = n.s.f_contiguous()?;
        for (name, t) in [("q", n.q), ("gate", n.gate)] {
            check.that(t.kind() == n.low.unwrap_or(s.kind()), name, t, "of the low kind")?;
            check.that(t.size() == s.size() && t.device() == s.device(), name, t, "of the shape and device of s")?;
        }
        let q = aligned_rows::rows(n.q)?;
        let gate = aligned_rows::rows(n.gate)?;
        let weight = columns(check, "weight", n.weight, &s)?;
        let bias = n.bias.map(|b| columns(check, "bias", b, &s)).transpose()?;
        let strides = [q.stride()[0], gate.stride()[0]];
        let form = NormVariant { centred: n.bias.is_some(), low: n.low, gated: true, strides, held };
        Ok(Self { s, q, gate, weight, bias, form })
    }

    fn all<'a>(&'a self, others: &[&'a Tensor]) -> Vec<&'a Tensor> {
        [&self.s, &self.q, &self.gate, &self.weight]
            .into_iter()
            .chain(&self.bias)
            .chain(others.iter().copied())
            .collect()
    }

    fn call<'a>(&self, call: KernelCall<'a>) -> KernelCall<'a> {
        let [q, gate] = self.form.strides;
        call.tensor(&self.s).tensor(&self.q).int(q).tensor(&self.gate).int(gate)
    }
}

/// Computes the gated norm. Returns it with the means (layer norm only) and 1/σ or 1/rms, both f32.
pub fn gated_norm(n: &GatedNorm<'_>, eps: f64) -> Result<(Tensor, Option<Tensor>, Tensor), CudaError> {
    let check = Check { kernel: "gated_norm" };
    let r = GatedNormOperands::new(check, n, HELD_FORWARD)?;
    let y = Tensor::f_empty(r.s.size(), (n.gate.kind(), r.s.device()))?;
    let (mean, rstd) = stats_of(&r.s, r.form.centred)?;
    let l = layout(check, &r.s, &r.all(&[&y]), r.form)?;
    let call = r.call(KernelCall::new(&l.variant, "gated_norm")).tensor(&r.weight).maybe(r.bias.as_ref());
    let call = call.tensor(&y).maybe(mean.as_ref()).tensor(&rstd).int(l.rows).float(eps);
    call.launch(&r.s, l.grid(l.cover()))?;
    Ok((y, mean, rstd))
}

/// Computes the gradients from `g`, the gradient of the result, and the saved statistics.
pub fn gated_norm_backward(
    n: &GatedNorm<'_>,
    g: &Tensor,
    mean: Option<&Tensor>,
    rstd: &Tensor,
) -> Result<GatedNormGrads, CudaError> {
    let check = Check { kernel: "gated_norm_backward" };
    let r = GatedNormOperands::new(check, n, HELD_BACKWARD)?;
    let g = g.f_contiguous()?;
    branch(check, "g", &g, &r.s, n.low)?;
    let ds = r.s.f_empty_like()?;
    let dq = g.f_empty_like()?;
    let dgate = g.f_empty_like()?;
    let l = layout(check, &r.s, &r.all(&[&g, &ds, &dq, &dgate]), r.form)?;
    let (mean, rstd) = saved(check, mean, rstd, &r.s, &l)?;
    let (groups, shares) = partial(check, &r.s, &l, 1 + i64::from(r.bias.is_some()))?;
    let call = r.call(KernelCall::new(&l.variant, "gated_norm_back").tensor(&g)).maybe(mean.as_ref()).tensor(&rstd);
    let call = call.tensor(&r.weight).maybe(r.bias.as_ref()).tensor(&ds).tensor(&dq).tensor(&dgate);
    call.tensor(&shares).int(l.rows).launch(&r.s, l.grid(groups))?;
    let (dw, db) = sum(&l, &shares, &r.weight, r.bias.is_some())?;
    Ok(GatedNormGrads { ds, dq, dgate, dw, db })
}
