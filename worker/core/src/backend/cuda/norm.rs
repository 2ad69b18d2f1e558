//! Layer norm and RMS norm over the last axis, fused with the addition of a residual branch.

use super::call::{KernelCall, grid};
use super::check::{Check, PACK_BYTES, aligned, blocks, ceil, pack};
use super::engine;
use super::error::CudaError;
use super::result::LaunchGrid;
use super::source::{Source, Variant};
use tch::{Kind, Tensor};

pub(super) static SOURCE: Source = Source {
    name: "norm",
    text: include_str!("src/norm.cu"),
    numbers: &["WIDTH", "THREADS", "VEC", "CENTRED", "LOW", "GATED"],
    shared_bytes_max: 0,
};

/// Largest row width in elements.
pub const WIDTH_MAX: i64 = 16384;
/// Most elements of a row that a thread of the forward pass holds.
pub(super) const HELD_FORWARD: i64 = 32;
/// Most elements of a row that a thread of the backward pass holds, in four arrays each.
pub(super) const HELD_BACKWARD: i64 = 16;
/// Approximate number of threads of the backward pass that one multiprocessor runs at once.
const RESIDENT_THREADS: u32 = 512;
/// Rows of a block whose rows are one warp each.
const WARP_ROWS: u32 = 4;
/// Side of the thread blocks that add up partial sums.
const SUM_SIDE: u32 = 32;

/// [`NormVariant::strides`] of dense rows.
const DENSE: [i64; 2] = [0; 2];

#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// Rows to normalise, along the last axis.
    pub x: &'a Tensor,
    /// Residual that is added to `x` first.
    pub residual: Option<&'a Tensor>,
    /// Scale per column, if there is one.
    pub weight: Option<&'a Tensor>,
    /// Shift per column; layer norm only.
    pub bias: Option<&'a Tensor>,
    /// Layer norm rather than RMS norm.
    pub centred: bool,
    pub eps: f64,
    /// Kind of the residual and of the normalised rows, when it is not that of `x`.
    pub low: Option<Kind>,
}

/// Results of a norm. Statistics are f32, of the operand's shape with a last axis of 1.
#[derive(Debug)]
pub struct Normed {
    /// x + residual, if there is a residual.
    pub sum: Option<Tensor>,
    pub y: Tensor,
    /// Means; layer norm only.
    pub mean: Option<Tensor>,
    /// 1/σ of each row, or 1/rms.
    pub rstd: Tensor,
}

#[derive(Debug, Clone, Copy)]
pub struct NormBackward<'a> {
    /// Gradient of the normalised rows.
    pub g: &'a Tensor,
    /// Gradient that reaches the sum by the residual branch; added to the result.
    pub gsum: Option<&'a Tensor>,
    /// The tensor that was normalised: the operand, or its sum with the residual.
    pub x: &'a Tensor,
    /// Means; layer norm only.
    pub mean: Option<&'a Tensor>,
    /// 1/σ of each row, or 1/rms.
    pub rstd: &'a Tensor,
    /// Scale per column, if there is one.
    pub weight: Option<&'a Tensor>,
    /// Whether the gradient of a bias is wanted; only with a weight.
    pub bias: bool,
    /// Kind of `g`, when it is not that of `x`; then `dx` is wanted in it too.
    pub low: Option<Kind>,
}

/// Gradients of a norm; `dx` is the gradient of the residual, too.
#[derive(Debug)]
pub struct NormGrads {
    pub dx: Tensor,
    pub dw: Option<Tensor>,
    pub db: Option<Tensor>,
    /// Gradient of a residual of another kind.
    pub dbranch: Option<Tensor>,
}

/// Assignment of rows to threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowLayout {
    pub(super) variant: Variant,
    pub(super) rows: i64,
    width: i64,
    threads: u32,
    per_block: u32,
}

/// Properties that determine the kernel variant.
#[derive(Debug, Clone, Copy)]
pub(super) struct NormVariant {
    /// Layer norm rather than RMS norm.
    pub(super) centred: bool,
    /// The 16-bit kind of the branch, if it is not that of the rows.
    pub(super) low: Option<Kind>,
    /// Whether the norm is multiplied with a gate.
    pub(super) gated: bool,
    /// Distances between rows of strided operands.
    pub(super) strides: [i64; 2],
    /// Most elements of a row that a thread holds.
    pub(super) held: i64,
}

impl RowLayout {
    /// Returns the grid of `blocks` blocks with one row per block or per warp.
    pub(super) fn grid(&self, blocks: u32) -> LaunchGrid {
        LaunchGrid { blocks, threads: (self.threads, self.per_block), shared: 0 }
    }

    /// Returns the number of blocks that cover all rows.
    pub(super) fn cover(&self) -> u32 {
        blocks(self.rows, i64::from(self.per_block))
    }
}

/// Chooses the assignment of the rows of `x` to threads; `all` are the tensors that are read and written.
pub(super) fn layout(check: Check, x: &Tensor, all: &[&Tensor], form: NormVariant) -> Result<RowLayout, CudaError> {
    let element = check.element("x", x)?;
    check.device("x", x)?;
    let width = x.size().last().copied().unwrap_or(0);
    check.that((1..=WIDTH_MAX).contains(&width), "x", x, "rows of 1 to 16384 elements")?;
    let apart = form.strides.iter().all(|stride| stride % (PACK_BYTES / element.bytes()) == 0);
    let vec = if apart && aligned(all) { pack(element, width) } else { 1 };
    let fits = |threads: &i64| ceil(width, threads * i64::from(vec)) * i64::from(vec) <= form.held;
    let threads = [32_i64, 64, 128, 256, 512].into_iter().find(fits).unwrap_or(1024) as u32;
    let low = low_code(check, x, form.low)?;
    let numbers = [width as u32, threads, vec, u32::from(form.centred), low, u32::from(form.gated)];
    let per_block = if threads == 32 { WARP_ROWS } else { 1 };
    let variant = Variant::new(&SOURCE, element, &numbers);
    Ok(RowLayout { variant, rows: x.numel() as i64 / width, width, threads, per_block })
}

/// Returns a dense vector with one number per column.
pub(super) fn columns(check: Check, operand: &'static str, w: &Tensor, x: &Tensor) -> Result<Tensor, CudaError> {
    let dense = w.f_contiguous()?;
    check.numbers(operand, &dense, x.kind(), x.size().last().copied().unwrap_or(0), x)?;
    Ok(dense)
}

/// Returns the source's code for the kind of a branch.
fn low_code(check: Check, x: &Tensor, low: Option<Kind>) -> Result<u32, CudaError> {
    match low {
        None => Ok(0),
        Some(Kind::BFloat16) => Ok(1),
        Some(Kind::Half) => Ok(2),
        Some(_) => Err(check.refuse("x", x, "beside a branch of its own kind, bf16 or f16")),
    }
}

/// Checks that a tensor is dense, of the branch's kind, and of the shape of `x`.
pub(super) fn branch(
    check: Check,
    name: &'static str,
    t: &Tensor,
    x: &Tensor,
    low: Option<Kind>,
) -> Result<(), CudaError> {
    check.that(t.kind() == low.unwrap_or(x.kind()), name, t, "of the branch's kind")?;
    check.that(t.size() == x.size(), name, t, "of the shape of the first operand")?;
    check.dense(name, t, x)
}

/// Memory for the means, which only a layer norm has, and 1/σ of each row, or 1/rms.
pub(super) fn stats_of(x: &Tensor, centred: bool) -> Result<(Option<Tensor>, Tensor), CudaError> {
    let mut shape = x.size();
    if let Some(last) = shape.last_mut() {
        *last = 1;
    }
    let stats = || Tensor::f_empty(shape.as_slice(), (Kind::Float, x.device()));
    Ok((centred.then(stats).transpose()?, stats()?))
}

/// Returns the saved statistics, dense and in f32.
pub(super) fn saved(
    check: Check,
    mean: Option<&Tensor>,
    rstd: &Tensor,
    x: &Tensor,
    l: &RowLayout,
) -> Result<(Option<Tensor>, Tensor), CudaError> {
    let dense = |name, stats: &Tensor| -> Result<Tensor, CudaError> {
        let stats = stats.f_to_kind(Kind::Float)?.f_contiguous()?;
        check.numbers(name, &stats, Kind::Float, l.rows, x)?;
        Ok(stats)
    };
    Ok((mean.map(|mean| dense("mean", mean)).transpose()?, dense("rstd", rstd)?))
}

pub fn norm(n: &Norm<'_>) -> Result<Normed, CudaError> {
    let check = Check { kernel: "norm" };
    let x = n.x.f_contiguous()?;
    let residual = n.residual.map(Tensor::f_contiguous).transpose()?;
    if let Some(residual) = &residual {
        branch(check, "residual", residual, &x, n.low)?;
    }
    let weight = n.weight.map(|w| columns(check, "weight", w, &x)).transpose()?;
    let bias = n.bias.map(|b| columns(check, "bias", b, &x)).transpose()?;
    let sum = residual.as_ref().map(|_| x.f_empty_like()).transpose()?;
    let y = Tensor::f_empty(x.size(), (n.low.unwrap_or(x.kind()), x.device()))?;
    let (mean, rstd) = stats_of(&x, n.centred)?;
    let all: Vec<&Tensor> = [Some(&x), residual.as_ref(), weight.as_ref(), bias.as_ref(), sum.as_ref(), Some(&y)]
        .into_iter()
        .flatten()
        .collect();
    let form = NormVariant { centred: n.centred, low: n.low, gated: false, strides: DENSE, held: HELD_FORWARD };
    let l = layout(check, &x, &all, form)?;
    let call = KernelCall::new(&l.variant, "norm_forward").tensor(&x).maybe(residual.as_ref());
    let call = call
        .maybe(weight.as_ref())
        .maybe(bias.as_ref())
        .maybe(sum.as_ref())
        .tensor(&y)
        .maybe(mean.as_ref())
        .tensor(&rstd)
        .int(l.rows)
        .float(n.eps);
    call.launch(&x, l.grid(l.cover()))?;
    Ok(Normed { sum, y, mean, rstd })
}

pub fn norm_backward(n: &NormBackward<'_>) -> Result<NormGrads, CudaError> {
    let check = Check { kernel: "norm_backward" };
    let g = n.g.f_contiguous()?;
    let x = n.x.f_contiguous()?;
    let gsum = n.gsum.map(Tensor::f_contiguous).transpose()?;
    branch(check, "g", &g, &x, n.low)?;
    if let Some(gsum) = &gsum {
        check.same("gsum", gsum, &x)?;
    }
    let weight = n.weight.map(|w| columns(check, "weight", w, &x)).transpose()?;
    let dx = x.f_empty_like()?;
    let dbranch = n.low.map(|kind| Tensor::f_empty(x.size(), (kind, x.device()))).transpose()?;
    let all: Vec<&Tensor> = [Some(&g), gsum.as_ref(), Some(&x), weight.as_ref(), Some(&dx), dbranch.as_ref()]
        .into_iter()
        .flatten()
        .collect();
    let form = NormVariant { centred: n.mean.is_some(), low: n.low, gated: false, strides: DENSE, held: HELD_BACKWARD };
    let l = layout(check, &x, &all, form)?;
    let (mean, rstd) = saved(check, n.mean, n.rstd, &x, &l)?;
    let bias = n.bias && n.weight.is_some();
    let weights = i64::from(n.weight.is_some()) + i64::from(bias);
    let (groups, partial) = partial(check, &x, &l, weights)?;
    let call =
        KernelCall::new(&l.variant, "norm_backward").tensor(&g).maybe(gsum.as_ref()).tensor(&x).maybe(mean.as_ref());
    let call = call.tensor(&rstd).maybe(weight.as_ref()).tensor(&dx).maybe(dbranch.as_ref());
    let call = call.tensor(&partial).int(l.rows).word(u32::from(bias));
    call.launch(&x, l.grid(groups))?;
    let Some(weight) = weight else { return Ok(NormGrads { dx, dw: None, db: None, dbranch }) };
    let (dw, db) = sum(&l, &partial, &weight, bias)?;
    Ok(NormGrads { dx, dw: Some(dw), db, dbranch })
}

/// Returns the number of blocks of the backward pass, and memory for their partial sums of `weights` gradients.
pub(super) fn partial(check: Check, x: &Tensor, l: &RowLayout, weights: i64) -> Result<(u32, Tensor), CudaError> {
    let groups = groups(check, x, l)?;
    Ok((groups, Tensor::f_empty([weights * i64::from(groups), l.width], (Kind::Float, x.device()))?))
}

/// Adds up partial sums. Returns the gradients of the weight and, with `bias`, of the bias.
pub(super) fn sum(
    l: &RowLayout,
    partial: &Tensor,
    weight: &Tensor,
    bias: bool,
) -> Result<(Tensor, Option<Tensor>), CudaError> {
    let dw = weight.f_empty_like()?;
    let db = bias.then(|| weight.f_empty_like()).transpose()?;
    let weights = 1 + u32::from(bias);
    let groups = partial.size()[0] / i64::from(weights);
    let across = blocks(l.width, i64::from(SUM_SIDE)) * weights;
    let call = KernelCall::new(&l.variant, "norm_sum").tensor(partial).tensor(&dw).maybe(db.as_ref()).int(groups);
    call.launch(partial, LaunchGrid { threads: (SUM_SIDE, SUM_SIDE), ..grid(across, 1) })?;
    Ok((dw, db))
}

/// Returns the number of blocks of the backward pass: enough to fill the device, each with one row of partial sums.
fn groups(check: Check, x: &Tensor, l: &RowLayout) -> Result<u32, CudaError> {
    let facts = engine::facts(check.device("x", x)?)?;
    let resident = facts.processors * (RESIDENT_THREADS / (l.threads * l.per_block)).max(1);
    Ok(resident.min(blocks(l.rows, i64::from(l.per_block))))
}
