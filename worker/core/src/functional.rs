//! The functions that layers are written with. Each turns its arguments into one or a few operations and calls [`call`].
//!
//! Shapes are row-major; B batch, N positions, H heads, D widths. Masks mean true = keep.
//!
//! **Invariant:** nothing here computes; every result comes out of [`call`]. All functions fail with an [`OpError`] that
//! names the operation, the place in the model, and the shapes that do not fit.

use crate::autograd::{Cx, Tensor, call};
use crate::error::{OpError, OpErrorKind};
use crate::op::aten::{AtenArg, AtenCall};
use crate::op::attr::Axes;
use crate::op::elementwise::clamp::check_bounds;
use crate::op::*;
use crate::precision::LossScale;
use smallvec::SmallVec;
use tch::Kind;

pub use crate::op::attr::{Dir, Score, Structural};

type TensorResult = Result<Tensor, OpError>;

fn one(cx: &Cx<'_>, op: impl Into<Op>, ins: &[&Tensor]) -> TensorResult {
    Ok(call(cx, op, ins)?.swap_remove(0))
}

/// Functions of one operation: name and arguments, the operation, its operands.
macro_rules! functions {
    ($($(#[$doc:meta])* pub fn $name:ident($($arg:ident: $of:ty),*) => $op:expr, [$($operand:expr),*];)*) => {
        $($(#[$doc])*
        pub fn $name(cx: &Cx<'_>, $($arg: $of),*) -> TensorResult {
            one(cx, $op, &[$($operand),*])
        })*
    };
}

functions! {
    pub fn neg(x: &Tensor) => Unary::Neg, [x];
    pub fn exp(x: &Tensor) => Unary::Exp, [x];
    /// Natural logarithm, ln x.
    pub fn log(x: &Tensor) => Unary::Log, [x];
    pub fn sqrt(x: &Tensor) => Unary::Sqrt, [x];
    pub fn square(x: &Tensor) => Unary::Square, [x];
    /// |x|, gradient 0 at 0.
    pub fn abs(x: &Tensor) => Unary::Abs, [x];
    pub fn reciprocal(x: &Tensor) => Unary::Reciprocal, [x];
    /// max(x, 0), gradient 0 at 0.
    pub fn relu(x: &Tensor) => Unary::Relu, [x];
    /// x · sigmoid(x)
    pub fn silu(x: &Tensor) => Unary::Silu, [x];
    /// 1/(1+e⁻ˣ)
    pub fn sigmoid(x: &Tensor) => Unary::Sigmoid, [x];
    pub fn tanh(x: &Tensor) => Unary::Tanh, [x];
    /// ln(1+eˣ), linear above 20.
    pub fn softplus(x: &Tensor) => Unary::Softplus, [x];
    /// a + b with broadcasting.
    pub fn add(a: &Tensor, b: &Tensor) => Binary::Add, [a, b];
    /// a − b with broadcasting.
    pub fn sub(a: &Tensor, b: &Tensor) => Binary::Sub, [a, b];
    /// a · b with broadcasting.
    pub fn mul(a: &Tensor, b: &Tensor) => Binary::Mul, [a, b];
    /// a / b with broadcasting.
    pub fn div(a: &Tensor, b: &Tensor) => Binary::Div, [a, b];
    /// x · Φ(x), exactly or by the tanh formula.
    pub fn gelu(x: &Tensor, approximate_tanh: bool)
        => if approximate_tanh { Unary::GeluTanh } else { Unary::Gelu }, [x];
    /// x · by
    pub fn scale(x: &Tensor, by: f64) => Scale { by: by.into() }, [x];
    /// x + by
    pub fn add_scalar(x: &Tensor, by: f64) => AddScalar { by: by.into() }, [x];
    /// Where x is neither NaN nor infinite; Bool.
    pub fn is_finite(x: &Tensor) => Test::Finite, [x];
    /// Where x ≥ bound; Bool.
    pub fn at_least(x: &Tensor, bound: f64) => Test::AtLeast(bound.into()), [x];
    /// Where x < bound; Bool.
    pub fn below(x: &Tensor, bound: f64) => Test::Below(bound.into()), [x];
    /// Where both are true; broadcasting.
    pub fn and(a: &Tensor, b: &Tensor) => And, [a, b];
    /// Where x is false.
    pub fn not(x: &Tensor) => Not, [x];
    /// Positions `at` (int64, one axis) of axis `dim`; a position that is taken more than once gets the sum of its gradients.
    pub fn index_select(x: &Tensor, dim: i64, at: &Tensor) => IndexSelect { axis: dim }, [x, at];
    /// x as a constant: no gradient flows back.
    pub fn detach(x: &Tensor) => Detach, [x];
    /// (…, M, K) × (…, K, N) → (…, M, N); leading axes broadcast.
    pub fn matmul(a: &Tensor, b: &Tensor) => MatMul { ta: false, tb: false }, [a, b];
    /// [`matmul`] with the last two axes of an operand swapped first, without a copy.
    pub fn matmul_t(a: &Tensor, b: &Tensor, ta: bool, tb: bool) => MatMul { ta, tb }, [a, b];
    /// silu(a) · b for equal shapes.
    pub fn silu_mul(a: &Tensor, b: &Tensor) => SiluMul, [a, b];
    /// silu(left half) · right half of the last axis: (…, 2D) → (…, D).
    pub fn swiglu_gate(x: &Tensor) => SwiGlu, [x];
    /// Softmax of x along axis `dim`.
    pub fn softmax(x: &Tensor, dim: i64) => Softmax { axis: dim }, [x];
    /// Logarithm of the softmax of x along axis `dim`.
    pub fn log_softmax(x: &Tensor, dim: i64) => LogSoftmax { axis: dim }, [x];
    /// (x − mean)/√(variance + eps) · w + b over the last axis; w and b of its size.
    pub fn layer_norm(x: &Tensor, w: &Tensor, b: &Tensor, eps: f64)
        => LayerNorm { affine: true, eps: eps.into() }, [x, w, b];
    /// x/√(mean of x² + eps) · w over the last axis; w of its size.
    pub fn rms_norm(x: &Tensor, w: &Tensor, eps: f64) => RmsNorm { affine: true, eps: eps.into() }, [x, w];
    /// Sum over axes; none means x itself.
    pub fn sum(x: &Tensor, dims: &[i64], keepdim: bool) => Sum { axes: Axes::from_slice(dims), keepdim }, [x];
    /// Sum of all elements, a tensor of 0 axes.
    pub fn sum_all(x: &Tensor) => Sum { axes: (0..x.shape().len() as i64).collect(), keepdim: false }, [x];
    /// Mean over axes; none means x itself.
    pub fn mean(x: &Tensor, dims: &[i64], keepdim: bool) => Mean { axes: Axes::from_slice(dims), keepdim }, [x];
    /// Largest element along an axis; the gradient goes to the one libtorch picks among equals.
    pub fn max_dim(x: &Tensor, dim: i64, keepdim: bool) => MaxDim { axis: dim, keepdim }, [x];
    /// Axes in another order, as a view.
    pub fn permute(x: &Tensor, axes: &[i64]) => Permute { axes: Axes::from_slice(axes) }, [x];
    /// `len` positions of an axis from `start`, as a view.
    pub fn narrow(x: &Tensor, dim: i64, start: i64, len: i64) => Narrow { axis: dim, start, len }, [x];
    /// x with axis `dim` reversed.
    pub fn flip(x: &Tensor, dim: i64) => Flip { axis: dim }, [x];
    /// x (B,N,H,W) cut into segments of which head h takes the positions h mod r, h mod r + r, … → (B,S,H,L,W), zeros behind the end.
    /// `segment` is a multiple of the dilation r.
    pub fn dilate(x: &Tensor, segment: i64, dilation: i64) => Dilate { segment, dilation }, [x];
    /// Inverse of [`dilate`] to N `tokens`: (B,S,H,L,W) → (B,N,H,W), zeros where a head took nothing.
    pub fn undilate(x: &Tensor, segment: i64, dilation: i64, tokens: i64)
        => Undilate { segment, dilation, tokens }, [x];
    /// Rows of `table` (rows, D) by 64-bit ids of any shape → (…, D). Ids must lie in 0..rows.
    pub fn embedding(table: &Tensor, ids: &Tensor) => Embedding, [table, ids];
    /// a where `condition` (Bool) is true, else b; all three broadcast.
    pub fn where_(condition: &Tensor, a: &Tensor, b: &Tensor) => Where, [condition, a, b];
    /// Sum over valid cells of d²/2 for |d| ≤ delta, else delta·(|d| − delta/2), with d = prediction − target.
    ///
    /// Targets may be NaN where the mask (Bool, true = valid) is false. All three have one shape; the result has 0 axes.
    pub fn masked_huber(prediction: &Tensor, target: &Tensor, mask: &Tensor, delta: f64)
        => MaskedHuber { delta: delta.into() }, [prediction, target, mask];
    /// Sum over valid cells of (prediction − target)². Masks as for [`masked_huber`].
    pub fn masked_mse(prediction: &Tensor, target: &Tensor, mask: &Tensor) => MaskedMse, [prediction, target, mask];
}

/// x limited to lo..=hi; the gradient is zero outside.
pub fn clamp(cx: &Cx<'_>, x: &Tensor, lo: f64, hi: f64) -> TensorResult {
    check_bounds(lo, hi).map_err(|kind| cx.fail("clamp", kind))?;
    one(cx, Clamp { lo: lo.into(), hi: hi.into() }, &[x])
}

/// Casts x to another element kind; returns x itself if it has that kind already.
pub fn cast(cx: &Cx<'_>, x: &Tensor, to: Kind) -> TensorResult {
    if x.kind() == to { Ok(x.clone()) } else { one(cx, Cast { to }, &[x]) }
}

/// x where `keep` (Bool, x's shape) is true, else 0, also where x is NaN. No gradient flows back: an `x` that asks for one is
/// refused.
pub fn zero_where_not(cx: &Cx<'_>, x: &Tensor, keep: &Tensor) -> TensorResult {
    without_gradient(cx, "zero_where_not", &[x])?;
    one(cx, Keep { when: true }, &[keep, x])
}

/// Any operator of libtorch's dispatcher, recorded, e.g. `aten::cumsum` with an empty overload. `ins` fill the arguments that
/// are operands, in order; lists of tensors among the results are given one by one, what is no tensor is left out. There is at
/// least one operand. Gradients are those of libtorch's own rules, for which the operator is called once more; where an input asks for
/// one, an operator that writes in place, draws random numbers or has more than 16 operands is refused.
pub fn aten(
    cx: &Cx<'_>,
    name: &str,
    overload: &str,
    args: Vec<AtenArg>,
    ins: &[&Tensor],
) -> Result<SmallVec<[Tensor; 2]>, OpError> {
    let made = AtenCall::new(name, overload, args).map_err(|kind| cx.fail("aten", kind))?;
    if ins.iter().any(|tensor| tensor.requires_grad()) {
        made.check_reversible().map_err(|kind| cx.fail("aten", kind))?;
    }
    call(cx, Aten(Box::new(made)), ins)
}

fn without_gradient(cx: &Cx<'_>, op: &'static str, ins: &[&Tensor]) -> Result<(), OpError> {
    match ins.iter().any(|tensor| tensor.requires_grad()) {
        true => Err(cx.fail(op, OpErrorKind::NotDifferentiable)),
        false => Ok(()),
    }
}

/// Updates the loss scale after a step; `taken` (0 axes) is 1, or 0 for a refused step.
pub fn update_loss_scale(cx: &Cx<'_>, scale: &LossScale, taken: &Tensor) -> Result<(), OpError> {
    let refused = add_scalar(cx, &neg(cx, &cast(cx, taken, Kind::Float)?)?, 1.0)?;
    let settings = scale.settings;
    let op =
        ScaleUpdate { growth: settings.growth.into(), backoff: settings.backoff.into(), interval: settings.interval };
    let state = [scale.scale(), scale.good()].map(|raw| cx.opt_state(raw.shallow_clone()));
    call(cx, op, &[&state[0], &state[1], &refused]).map(|_| ())
}

/// x Wᵀ + b for x (…, in), w (out, in), b (out) → (…, out).
pub fn linear(cx: &Cx<'_>, x: &Tensor, w: &Tensor, b: Option<&Tensor>) -> TensorResult {
    match b {
        Some(b) => one(cx, Linear { bias: true }, &[x, w, b]),
        None => one(cx, Linear { bias: false }, &[x, w]),
    }
}

/// The SwiGLU feed-forward without biases: x (…, D), w_in (2·hidden, D) with gate rows first, w_out (D, hidden).
pub fn swiglu(cx: &Cx<'_>, x: &Tensor, w_in: &Tensor, w_out: &Tensor) -> TensorResult {
    let both = linear(cx, x, w_in, None)?;
    let gated = swiglu_gate(cx, &both)?;
    linear(cx, &gated, w_out, None)
}

/// x + branch and its norm, as one operation: (sum, norm). With `b` a layer norm, else an RMS norm; weights as there.
pub fn add_norm(
    cx: &Cx<'_>,
    x: &Tensor,
    branch: &Tensor,
    w: &Tensor,
    b: Option<&Tensor>,
    eps: f64,
) -> Result<(Tensor, Tensor), OpError> {
    let op = AddNorm { layer: b.is_some(), eps: eps.into(), low: None };
    let ins: SmallVec<[&Tensor; 4]> = [x, branch, w].into_iter().chain(b).collect();
    let mut made = call(cx, op, &ins)?;
    made.truncate(2);
    let normed = made.swap_remove(1);
    Ok((made.swap_remove(0), normed))
}

/// silu(gate) · norm(q · s), as one operation; all of one shape. With `b` a layer norm, else an RMS norm; weights as there.
pub fn gated_norm(
    cx: &Cx<'_>,
    s: &Tensor,
    q: &Tensor,
    gate: &Tensor,
    w: &Tensor,
    b: Option<&Tensor>,
    eps: f64,
) -> TensorResult {
    let op = GatedNorm { layer: b.is_some(), eps: eps.into(), low: None };
    let ins: SmallVec<[&Tensor; 5]> = [s, q, gate, w].into_iter().chain(b).collect();
    one(cx, op, &ins)
}

/// x in another shape; one size may be −1.
pub fn reshape(cx: &Cx<'_>, x: &Tensor, shape: &[i64]) -> TensorResult {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    one(cx, Reshape { shape: Axes::from_slice(shape) }, &[x])
}

/// Two axes swapped, as a view.
pub fn transpose(cx: &Cx<'_>, x: &Tensor, a: i64, b: i64) -> TensorResult {
    let rank = x.shape().len();
    let at = |axis| crate::op::infer::axis(axis, rank).map_err(|kind| cx.fail("transpose", kind));
    let mut axes: Axes = (0..rank as i64).collect();
    axes.swap(at(a)?, at(b)?);
    one(cx, Permute { axes }, &[x])
}

/// Parts of the given sizes along an axis, as views. One record instead of several [`narrow`].
pub fn split(cx: &Cx<'_>, x: &Tensor, sizes: &[i64], dim: i64) -> Result<SmallVec<[Tensor; 2]>, OpError> {
    call(cx, Split { axis: dim, sizes: Axes::from_slice(sizes) }, &[x])
}

/// Tensors joined along an axis.
pub fn cat(cx: &Cx<'_>, xs: &[&Tensor], dim: i64) -> TensorResult {
    match xs {
        [] => Err(cx.fail("cat", empty())),
        xs => one(cx, Cat { axis: dim }, xs),
    }
}

/// Tensors of one shape joined along a new axis.
pub fn stack(cx: &Cx<'_>, xs: &[&Tensor], dim: i64) -> TensorResult {
    match xs {
        [] => Err(cx.fail("stack", empty())),
        xs => one(cx, Stack { axis: dim }, xs),
    }
}

fn empty() -> OpErrorKind {
    OpErrorKind::Attribute { name: "number of tensors", found: 0.0, expected: "at least one" }
}

/// x repeated to a larger shape, as a view.
pub fn expand(cx: &Cx<'_>, x: &Tensor, shape: &[i64]) -> TensorResult {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    one(cx, Expand { shape: Axes::from_slice(shape) }, &[x])
}

/// Ones of a shape, where the parameters are.
pub fn ones(cx: &Cx<'_>, shape: &[i64], kind: Kind) -> TensorResult {
    one(cx, Ones { shape: Axes::from_slice(shape), kind, device: cx.device() }, &[])
}

/// Zeros of a shape, where the parameters are.
pub fn zeros(cx: &Cx<'_>, shape: &[i64], kind: Kind) -> TensorResult {
    one(cx, Zeros { shape: Axes::from_slice(shape), kind, device: cx.device() }, &[])
}

/// A new axis of size 1 at `dim`.
pub fn unsqueeze(cx: &Cx<'_>, x: &Tensor, dim: i64) -> TensorResult {
    let at = crate::op::infer::axis(dim, x.shape().len() + 1).map_err(|kind| cx.fail("unsqueeze", kind))?;
    let mut shape = Axes::from_slice(x.shape());
    shape.insert(at, 1);
    one(cx, Reshape { shape }, &[x])
}

/// x without axis `dim`, which must have size 1.
pub fn squeeze(cx: &Cx<'_>, x: &Tensor, dim: i64) -> TensorResult {
    let at = crate::op::infer::axis(dim, x.shape().len()).map_err(|kind| cx.fail("squeeze", kind))?;
    if x.shape()[at] != 1 {
        let kind = crate::op::infer::wrong(0, x.meta(), "size 1 at the axis to drop");
        return Err(cx.fail("squeeze", kind));
    }
    let mut shape = Axes::from_slice(x.shape());
    shape.remove(at);
    one(cx, Reshape { shape }, &[x])
}

/// Zeroes elements at rate `p` and scales the rest by 1/(1−p); x itself outside training or at rate 0.
pub fn dropout(cx: &Cx<'_>, x: &Tensor, p: f64) -> TensorResult {
    if !cx.is_training() || p == 0.0 {
        return Ok(x.clone());
    }
    one(cx, Dropout { p: p.into(), site: cx.next_site() }, &[x, &cx.random_key()?])
}

/// Zeroes whole rows of the first axis at rate `p` and scales the rest by 1/(1−p); x itself outside training or at rate 0.
pub fn drop_path(cx: &Cx<'_>, x: &Tensor, p: f64) -> TensorResult {
    if !cx.is_training() || p == 0.0 {
        return Ok(x.clone());
    }
    one(cx, DropPath { p: p.into(), site: cx.next_site() }, &[x, &cx.random_key()?])
}

/// λ = 1 − 2^(−β), elementwise, with β kept between `lo` and `hi`; where it is not between them no gradient flows.
///
/// # Errors
/// When β is not a float, or `lo` is not at most `hi`.
pub fn retention_decay(cx: &Cx<'_>, beta: &Tensor, lo: f64, hi: f64) -> TensorResult {
    check_bounds(lo, hi).map_err(|kind| cx.fail("retention_decay", kind))?;
    one(cx, RetentionDecay { lo: lo.into(), hi: hi.into() }, &[beta])
}

/// The scan y_t = λ·y_{t−1} + v_t for v (B,N,H,Dh), λ (H) and an incoming state (B,H,Dh), zero if absent.
///
/// Returns y (B,N,H,Dh) and, if causal, the state after the last position. Bidirectional adds the reversed scan, the
/// position itself counted once, and takes no state.
pub fn retention_scan(
    cx: &Cx<'_>,
    v: &Tensor,
    lambda: &Tensor,
    dir: Dir,
    state: Option<&Tensor>,
) -> Result<(Tensor, Option<Tensor>), OpError> {
    let op = Retention { dir, state: state.is_some() };
    let mut outs = match state {
        Some(state) => call(cx, op, &[v, lambda, state])?,
        None => call(cx, op, &[v, lambda])?,
    }
    .into_iter();
    let y = outs.next().ok_or_else(|| cx.fail("retention", empty()))?;
    Ok((y, outs.next()))
}

/// softmax(q kᵀ/√Dh + key bias) v for q (B,H,Nq,Dh), k and v (B,H,Nk,Dh), key bias (Nk) or (B,Nk).
pub fn sdpa(
    cx: &Cx<'_>,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    key_bias: Option<&Tensor>,
    mask: Structural,
) -> TensorResult {
    sdpa_scored(cx, q, k, v, key_bias, mask, Score::PLAIN)
}

/// [`sdpa`] of modified scores: softmax(cap(q kᵀ/√Dh) + key bias − slopeₕ·|i − j|) v, shapes as there.
///
/// `score.cap` = c bends scores to c·tanh(s/c), before the bias is added (Gemma 2, 2024). `score.alibi` makes head h forget
/// with distance, slopeₕ = 2^(−8(h+1)/H) (Press et al., "Train short, test long", 2022; [`Score::slope`] for H that is no
/// power of two): slopes are constants, and queries must be as many as keys. No kernel of libtorch supports either: on CUDA our
/// own kernel runs, elsewhere the plain reference, which keeps (B,H,Nq,Nk) scores.
pub fn sdpa_scored(
    cx: &Cx<'_>,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    key_bias: Option<&Tensor>,
    mask: Structural,
    score: Score,
) -> TensorResult {
    match key_bias {
        Some(bias) => one(cx, Sdpa { mask, bias: true, score }, &[q, k, v, bias]),
        None => one(cx, Sdpa { mask, bias: false, score }, &[q, k, v]),
    }
}

/// Sum over rows of log Σ exp(logits) − logit of the target, for logits (…, C) and 64-bit ids (…); rows whose target is
/// `ignore` count for nothing. The result has 0 axes; divide by the number of rows that count.
pub fn cross_entropy(cx: &Cx<'_>, logits: &Tensor, targets: &Tensor, ignore: i64) -> TensorResult {
    let targets = reshape(cx, targets, &[targets.meta().numel()])?;
    let logits = reshape(cx, logits, &[targets.meta().numel(), logits.dim(-1)])?;
    one(cx, CrossEntropy { ignore }, &[&logits, &targets])
}
