//! Layer norm and RMS norm over the last axis, with the sum of a residual branch taken along.

use super::call::{Call, grid};
use super::check::{Check, aligned, blocks, ceil, pack};
use super::engine;
use super::error::CudaError;
use super::result::Grid;
use super::source::{Source, Variant};
use tch::{Kind, Tensor};

pub(super) static SOURCE: Source = Source {
    name: "norm",
    text: include_str!("src/norm.cu"),
    numbers: &["WIDTH", "THREADS", "VEC", "CENTRED", "LOW"],
    shared_bytes_max: 0,
};

/// Widest row.
pub const WIDTH_MAX: i64 = 16384;
/// Numbers of a row a thread of the forward pass holds.
const HELD_FORWARD: i64 = 32;
/// The same in the backward pass, which holds four arrays of them.
const HELD_BACKWARD: i64 = 16;
/// Threads of a block in the backward pass that one multiprocessor runs at once, about.
const RESIDENT_THREADS: u32 = 512;
/// Rows of a block whose rows are one warp each.
const WARP_ROWS: u32 = 4;
/// Side of the blocks that add up partial sums.
const SUM_SIDE: u32 = 32;

/// Operands of a norm.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// Rows to normalise.
    pub x: &'a Tensor,
    /// Added to `x` first.
    pub residual: Option<&'a Tensor>,
    /// Factor per column.
    pub weight: Option<&'a Tensor>,
    /// Summand per column; layer norm only.
    pub bias: Option<&'a Tensor>,
    /// Layer norm rather than RMS norm.
    pub centred: bool,
    /// Added to the variance.
    pub eps: f64,
    /// Kind of the residual and of the normalised rows, when it is not that of `x`.
    pub low: Option<Kind>,
}

/// Results of a norm. Statistics are f32, of the operand's shape with a last axis of 1.
#[derive(Debug)]
pub struct Normed {
    /// x + residual, if there is a residual.
    pub sum: Option<Tensor>,
    /// The normalised rows.
    pub y: Tensor,
    /// Means; layer norm only.
    pub mean: Option<Tensor>,
    /// 1/σ, or 1/rms.
    pub rstd: Tensor,
}

/// Operands of the reverse.
#[derive(Debug, Clone, Copy)]
pub struct NormBackward<'a> {
    /// Gradient of the normalised rows.
    pub g: &'a Tensor,
    /// Gradient that reaches the sum by the residual branch; added to the result.
    pub gsum: Option<&'a Tensor>,
    /// What was normalised: the operand, or its sum with the residual.
    pub x: &'a Tensor,
    /// Means; layer norm only.
    pub mean: Option<&'a Tensor>,
    /// 1/σ, or 1/rms.
    pub rstd: &'a Tensor,
    /// Factor per column.
    pub weight: Option<&'a Tensor>,
    /// Whether the gradient of a bias is wanted; only with a weight.
    pub bias: bool,
    /// Kind of `g`, when it is not that of `x`; then `dx` is wanted in it too.
    pub low: Option<Kind>,
}

/// Gradients; that of the residual is `dx` too, in its own kind.
#[derive(Debug)]
pub struct NormGrads {
    /// Of the operand.
    pub dx: Tensor,
    /// Of the weight.
    pub dw: Option<Tensor>,
    /// Of the bias.
    pub db: Option<Tensor>,
    /// Of a residual of another kind.
    pub dbranch: Option<Tensor>,
}

/// How rows are laid onto threads.
#[derive(Debug, Clone, Copy)]
struct Layout {
    variant: Variant,
    rows: i64,
    width: i64,
    threads: u32,
    per_block: u32,
}

fn layout(
    check: Check,
    x: &Tensor,
    all: &[&Tensor],
    (centred, low): (bool, Option<Kind>),
    held: i64,
) -> Result<Layout, CudaError> {
    let element = check.element("x", x)?;
    check.device("x", x)?;
    let width = x.size().last().copied().unwrap_or(0);
    check.that((1..=WIDTH_MAX).contains(&width), "x", x, "rows of 1 to 16384 elements")?;
    let vec = if aligned(all) { pack(element, width) } else { 1 };
    let fits = |threads: &i64| ceil(width, threads * i64::from(vec)) * i64::from(vec) <= held;
    let threads = [32_i64, 64, 128, 256, 512].into_iter().find(fits).unwrap_or(1024) as u32;
    let numbers = [width as u32, threads, vec, u32::from(centred), low_code(check, x, low)?];
    let per_block = if threads == 32 { WARP_ROWS } else { 1 };
    let variant = Variant::new(&SOURCE, element, &numbers);
    Ok(Layout { variant, rows: x.numel() as i64 / width, width, threads, per_block })
}

/// One number per column, dense.
fn columns(check: Check, operand: &'static str, w: Option<&Tensor>, x: &Tensor) -> Result<Option<Tensor>, CudaError> {
    let dense = w.map(Tensor::f_contiguous).transpose()?;
    if let Some(dense) = &dense {
        check.numbers(operand, dense, x.kind(), x.size().last().copied().unwrap_or(0), x)?;
    }
    Ok(dense)
}

/// What the source calls the kind of a branch.
fn low_code(check: Check, x: &Tensor, low: Option<Kind>) -> Result<u32, CudaError> {
    match low {
        None => Ok(0),
        Some(Kind::BFloat16) => Ok(1),
        Some(Kind::Half) => Ok(2),
        Some(_) => Err(check.refuse("x", x, "beside a branch of its own kind, bf16 or f16")),
    }
}

/// Dense, of the branch's kind, and of the shape of `x`.
fn branch(check: Check, name: &'static str, t: &Tensor, (x, low): (&Tensor, Option<Kind>)) -> Result<(), CudaError> {
    check.that(t.kind() == low.unwrap_or(x.kind()), name, t, "of the branch's kind")?;
    check.that(t.size() == x.size(), name, t, "of the shape of the first operand")?;
    check.dense(name, t, x)
}

fn stats_shape(x: &Tensor) -> Vec<i64> {
    let mut shape = x.size();
    if let Some(last) = shape.last_mut() {
        *last = 1;
    }
    shape
}

/// Normalises rows.
///
/// # Errors
/// When the kernel is not written for the operands, or is not launched.
pub fn norm(n: &Norm<'_>) -> Result<Normed, CudaError> {
    let check = Check { kernel: "norm" };
    let x = n.x.f_contiguous()?;
    let residual = n.residual.map(Tensor::f_contiguous).transpose()?;
    if let Some(residual) = &residual {
        branch(check, "residual", residual, (&x, n.low))?;
    }
    let weight = columns(check, "weight", n.weight, &x)?;
    let bias = columns(check, "bias", n.bias, &x)?;
    let sum = residual.as_ref().map(|_| x.f_empty_like()).transpose()?;
    let y = Tensor::f_empty(x.size(), (n.low.unwrap_or(x.kind()), x.device()))?;
    let stats = || Tensor::f_empty(stats_shape(&x), (Kind::Float, x.device()));
    let (mean, rstd) = (n.centred.then(stats).transpose()?, stats()?);
    let all: Vec<&Tensor> = [Some(&x), residual.as_ref(), weight.as_ref(), bias.as_ref(), sum.as_ref(), Some(&y)]
        .into_iter()
        .flatten()
        .collect();
    let l = layout(check, &x, &all, (n.centred, n.low), HELD_FORWARD)?;
    let call = Call::new(&l.variant, "norm_forward").tensor(&x).maybe(residual.as_ref());
    let call = call
        .maybe(weight.as_ref())
        .maybe(bias.as_ref())
        .maybe(sum.as_ref())
        .tensor(&y)
        .maybe(mean.as_ref())
        .tensor(&rstd)
        .int(l.rows)
        .float(n.eps);
    let threads = (l.threads, l.per_block);
    call.launch(&x, Grid { blocks: blocks(l.rows, i64::from(l.per_block)), threads, shared: 0 })?;
    Ok(Normed { sum, y, mean, rstd })
}

/// Gradients of a norm.
///
/// # Errors
/// As [`norm`].
pub fn norm_backward(n: &NormBackward<'_>) -> Result<NormGrads, CudaError> {
    let check = Check { kernel: "norm_backward" };
    let (g, x) = (n.g.f_contiguous()?, n.x.f_contiguous()?);
    let gsum = n.gsum.map(Tensor::f_contiguous).transpose()?;
    branch(check, "g", &g, (&x, n.low))?;
    if let Some(gsum) = &gsum {
        check.same("gsum", gsum, &x)?;
    }
    let weight = columns(check, "weight", n.weight, &x)?;
    let stats = |t: &Tensor| t.f_to_kind(Kind::Float).and_then(|t| t.f_contiguous());
    let (mean, rstd) = (n.mean.map(stats).transpose()?, stats(n.rstd)?);
    let dx = x.f_empty_like()?;
    let dbranch = n.low.map(|kind| Tensor::f_empty(x.size(), (kind, x.device()))).transpose()?;
    let all: Vec<&Tensor> = [Some(&g), gsum.as_ref(), Some(&x), weight.as_ref(), Some(&dx), dbranch.as_ref()]
        .into_iter()
        .flatten()
        .collect();
    let l = layout(check, &x, &all, (n.mean.is_some(), n.low), HELD_BACKWARD)?;
    for (name, stats) in [("mean", mean.as_ref()), ("rstd", Some(&rstd))] {
        stats.map_or(Ok(()), |stats| check.numbers(name, stats, Kind::Float, l.rows, &x))?;
    }
    let bias = n.bias && n.weight.is_some();
    let weights = i64::from(n.weight.is_some()) + i64::from(bias);
    let groups = groups(check, &x, &l)?;
    let partial = Tensor::f_empty([weights * i64::from(groups), l.width], (Kind::Float, x.device()))?;
    let call = Call::new(&l.variant, "norm_backward").tensor(&g).maybe(gsum.as_ref()).tensor(&x).maybe(mean.as_ref());
    let call = call.tensor(&rstd).maybe(weight.as_ref()).tensor(&dx).maybe(dbranch.as_ref());
    let call = call.tensor(&partial).int(l.rows).word(u32::from(bias));
    call.launch(&x, Grid { blocks: groups, threads: (l.threads, l.per_block), shared: 0 })?;
    let Some(weight) = weight else { return Ok(NormGrads { dx, dw: None, db: None, dbranch }) };
    let (dw, db) = (weight.f_empty_like()?, bias.then(|| weight.f_empty_like()).transpose()?);
    let across = blocks(l.width, i64::from(SUM_SIDE)) * weights as u32;
    let call = Call::new(&l.variant, "norm_sum").tensor(&partial).tensor(&dw).maybe(db.as_ref()).int(groups.into());
    call.launch(&x, Grid { threads: (SUM_SIDE, SUM_SIDE), ..grid(across, 1) })?;
    Ok(NormGrads { dx, dw: Some(dw), db, dbranch })
}

/// Blocks of the backward pass: enough to fill the device, each with one row of partial sums.
fn groups(check: Check, x: &Tensor, l: &Layout) -> Result<u32, CudaError> {
    let facts = engine::facts(check.device("x", x)?)?;
    let resident = facts.processors * (RESIDENT_THREADS / (l.threads * l.per_block)).max(1);
    Ok(resident.min(blocks(l.rows, i64::from(l.per_block))))
}
