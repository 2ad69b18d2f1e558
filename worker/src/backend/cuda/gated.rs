//! silu(a) · b and its reverse, for SwiGLU's one tensor and for two.

use super::call::{Call, grid};
use super::check::{Check, aligned, blocks, pack};
use super::error::CudaError;
use super::source::{Source, Variant};
use tch::Tensor;

pub(super) static SOURCE: Source =
    Source { name: "gated", text: include_str!("src/gated.cu"), numbers: &["VEC"], shared_bytes_max: 0 };

const THREADS: u32 = 256;

/// Rows of a result, their width, and the distance between rows of the operands.
#[derive(Debug, Clone, Copy)]
struct Rows {
    rows: i64,
    width: i64,
    stride: i64,
}

fn variant(check: Check, x: &Tensor, rows: Rows, all: &[&Tensor]) -> Result<Variant, CudaError> {
    let element = check.element("0", x)?;
    check.device("0", x)?;
    let widest = if aligned(all) { pack(element, rows.width) } else { 1 };
    Ok(Variant::new(&SOURCE, element, &[widest]))
}

fn cover(variant: &Variant, rows: Rows) -> u32 {
    blocks(rows.rows * rows.width / i64::from(variant.numbers[0]), i64::from(THREADS))
}

/// silu(a) · b, elementwise.
///
/// # Errors
/// When the kernel is not written for the operands, or is not launched.
pub fn silu_mul(a: &Tensor, b: &Tensor) -> Result<Tensor, CudaError> {
    let (check, b) = (Check { kernel: "silu_mul" }, b.f_contiguous()?);
    let a = a.f_contiguous()?;
    check.same("b", &b, &a)?;
    let y = a.f_empty_like()?;
    let rows = Rows { rows: 1, width: a.numel() as i64, stride: 0 };
    let variant = variant(check, &a, rows, &[&a, &b, &y])?;
    forward(&variant, [&a, &b, &y], rows)?;
    Ok(y)
}

/// Gradients of a and b.
///
/// # Errors
/// As [`silu_mul`].
pub fn silu_mul_backward(g: &Tensor, a: &Tensor, b: &Tensor) -> Result<[Tensor; 2], CudaError> {
    let check = Check { kernel: "silu_mul_backward" };
    let (g, a, b) = (g.f_contiguous()?, a.f_contiguous()?, b.f_contiguous()?);
    check.same("b", &b, &a)?;
    check.same("g", &g, &a)?;
    let (da, db) = (a.f_empty_like()?, a.f_empty_like()?);
    let rows = Rows { rows: 1, width: a.numel() as i64, stride: 0 };
    let variant = variant(check, &a, rows, &[&g, &a, &b, &da, &db])?;
    backward(&variant, [&g, &a, &b, &da, &db], rows)?;
    Ok([da, db])
}

fn halves(check: Check, x: &Tensor) -> Result<Rows, CudaError> {
    let whole = x.size().last().copied().unwrap_or(1);
    check.that(whole % 2 == 0, "x", x, "an even last axis: gate and value side by side")?;
    let rows = if whole == 0 { 0 } else { x.numel() as i64 / whole };
    Ok(Rows { rows, width: whole / 2, stride: whole })
}

/// The second half of the first row of `x`, which is not empty: an address to count from.
fn second(x: &Tensor, rows: Rows) -> Result<Tensor, CudaError> {
    Ok(x.f_view(-1)?.f_narrow(0, rows.width, 1)?)
}

/// x (…, 2D) → silu(first half) · second half.
///
/// # Errors
/// As [`silu_mul`].
pub fn swiglu(x: &Tensor) -> Result<Tensor, CudaError> {
    let check = Check { kernel: "swiglu" };
    let x = x.f_contiguous()?;
    let rows = halves(check, &x)?;
    let mut shape = x.size();
    if let Some(last) = shape.last_mut() {
        *last = rows.width;
    }
    let y = Tensor::f_empty(shape, (x.kind(), x.device()))?;
    if y.numel() == 0 {
        return Ok(y);
    }
    let b = second(&x, rows)?;
    let variant = variant(check, &x, rows, &[&x, &y])?;
    forward(&variant, [&x, &b, &y], rows)?;
    Ok(y)
}

/// Gradient of x.
///
/// # Errors
/// As [`silu_mul`].
pub fn swiglu_backward(g: &Tensor, x: &Tensor) -> Result<Tensor, CudaError> {
    let check = Check { kernel: "swiglu_backward" };
    let (g, x) = (g.f_contiguous()?, x.f_contiguous()?);
    let rows = halves(check, &x)?;
    check.numbers("g", &g, x.kind(), rows.rows * rows.width, &x)?;
    let dx = x.f_empty_like()?;
    if dx.numel() == 0 {
        return Ok(dx);
    }
    let (b, db) = (second(&x, rows)?, second(&dx, rows)?);
    let variant = variant(check, &x, rows, &[&g, &x, &dx])?;
    backward(&variant, [&g, &x, &b, &dx, &db], rows)?;
    Ok(dx)
}

fn forward(variant: &Variant, [a, b, y]: [&Tensor; 3], rows: Rows) -> Result<(), CudaError> {
    let call = Call::new(variant, "gate").tensor(a).tensor(b).tensor(y);
    call.int(rows.rows).int(rows.width).int(rows.stride).launch(y, grid(cover(variant, rows), THREADS))
}

fn backward(variant: &Variant, [g, a, b, da, db]: [&Tensor; 5], rows: Rows) -> Result<(), CudaError> {
    let call = Call::new(variant, "gate_back").tensor(g).tensor(a).tensor(b).tensor(da).tensor(db);
    call.int(rows.rows).int(rows.width).int(rows.stride).launch(g, grid(cover(variant, rows), THREADS))
}
