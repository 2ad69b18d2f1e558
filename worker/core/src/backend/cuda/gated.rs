//! silu(a) · b and its gradient, with a and b in one tensor (SwiGLU) or in two.

use super::call::{KernelCall, grid};
use super::check::{Check, PACK_BYTES, aligned, blocks};
use super::error::CudaError;
use super::source::{Element, Source, Variant};
use crate::backend::aligned_rows;
use tch::{TchError, Tensor};

pub(super) static SOURCE: Source =
    Source { name: "gated", text: include_str!("src/gated.cu"), numbers: &["VEC"], shared_bytes_max: 0 };

const THREADS: u32 = 256;

/// Row layout: number and width of rows, and the row distances of a and b (`stride`), of y or g (`narrow`), of da and db (`wide`).
#[derive(Debug, Clone, Copy)]
struct GateRows {
    rows: i64,
    width: i64,
    stride: i64,
    narrow: i64,
    wide: i64,
}

impl GateRows {
    /// Returns the layout of dense tensors, which are one row.
    fn one(width: i64) -> Self {
        Self { rows: 1, width, stride: 0, narrow: 0, wide: 0 }
    }

    /// Returns the elements per load: 16 bytes' worth, or fewer where the sizes are no multiples of that.
    fn pack(self, element: Element) -> u32 {
        let mut pack = PACK_BYTES / element.bytes();
        while [self.width, self.stride, self.narrow, self.wide].iter().any(|numbers| numbers % pack != 0) {
            pack /= 2;
        }
        pack as u32
    }
}

fn variant(check: Check, x: &Tensor, rows: GateRows, all: &[&Tensor]) -> Result<Variant, CudaError> {
    let element = check.element("0", x)?;
    check.device("0", x)?;
    Ok(Variant::new(&SOURCE, element, &[if aligned(all) { rows.pack(element) } else { 1 }]))
}

fn cover(variant: &Variant, rows: GateRows) -> u32 {
    blocks(rows.rows * rows.width / i64::from(variant.numbers[0]), i64::from(THREADS))
}

/// Computes silu(a) · b elementwise.
pub fn silu_mul(a: &Tensor, b: &Tensor) -> Result<Tensor, CudaError> {
    let check = Check { kernel: "silu_mul" };
    let b = b.f_contiguous()?;
    let a = a.f_contiguous()?;
    check.same("b", &b, &a)?;
    let y = a.f_empty_like()?;
    let rows = GateRows::one(a.numel() as i64);
    let variant = variant(check, &a, rows, &[&a, &b, &y])?;
    forward(&variant, &a, &b, &y, rows)?;
    Ok(y)
}

pub fn silu_mul_backward(g: &Tensor, a: &Tensor, b: &Tensor) -> Result<[Tensor; 2], CudaError> {
    let check = Check { kernel: "silu_mul_backward" };
    let g = g.f_contiguous()?;
    let a = a.f_contiguous()?;
    let b = b.f_contiguous()?;
    check.same("b", &b, &a)?;
    check.same("g", &g, &a)?;
    let da = a.f_empty_like()?;
    let db = a.f_empty_like()?;
    let rows = GateRows::one(a.numel() as i64);
    let variant = variant(check, &a, rows, &[&g, &a, &b, &da, &db])?;
    backward(&variant, &g, &a, &b, &da, &db, rows)?;
    Ok([da, db])
}

/// Returns the width of the halves of `x`'s rows.
fn half(check: Check, x: &Tensor) -> Result<i64, CudaError> {
    let whole = x.size().last().copied().unwrap_or(1);
    check.that(whole % 2 == 0, "x", x, "an even last axis: gate and value side by side")?;
    Ok(whole / 2)
}

/// Returns the second half of the first row of `x`, whose address is the base of b.
fn second(x: &Tensor, width: i64) -> Result<Tensor, TchError> {
    x.f_select(0, 0)?.f_narrow(0, width, 1)
}

/// x (…, 2D) → silu(first half) · second half.
pub fn swiglu(x: &Tensor) -> Result<Tensor, CudaError> {
    let check = Check { kernel: "swiglu" };
    let width = half(check, x)?;
    let mut shape = x.size();
    if let Some(last) = shape.last_mut() {
        *last = width;
    }
    let y = aligned_rows::large(&shape, x.kind(), x.device())?;
    if y.numel() == 0 {
        return Ok(y);
    }
    let x = aligned_rows::rows(x)?;
    let to = aligned_rows::rows(&y)?;
    let rows = GateRows { rows: x.size()[0], width, stride: x.stride()[0], narrow: to.stride()[0], wide: 0 };
    let b = second(&x, width)?;
    let variant = variant(check, &x, rows, &[&x, &to])?;
    forward(&variant, &x, &b, &to, rows)?;
    Ok(y)
}

pub fn swiglu_backward(g: &Tensor, x: &Tensor) -> Result<Tensor, CudaError> {
    let check = Check { kernel: "swiglu_backward" };
    let width = half(check, x)?;
    let fits = g.kind() == x.kind() && g.device() == x.device() && g.numel() * 2 == x.numel();
    check.that(fits, "g", g, "of half the numbers of x, of its kind and on its device")?;
    let dx = aligned_rows::large(&x.size(), x.kind(), x.device())?;
    if dx.numel() == 0 {
        return Ok(dx);
    }
    let g = aligned_rows::rows(g)?;
    let x = aligned_rows::rows(x)?;
    let to = aligned_rows::rows(&dx)?;
    check.that(g.size() == [x.size()[0], width], "g", &g, "rows of half the width of x")?;
    let rows =
        GateRows { rows: x.size()[0], width, stride: x.stride()[0], narrow: g.stride()[0], wide: to.stride()[0] };
    let b = second(&x, width)?;
    let db = second(&to, width)?;
    let variant = variant(check, &x, rows, &[&g, &x, &to])?;
    backward(&variant, &g, &x, &b, &to, &db, rows)?;
    Ok(dx)
}

fn forward(variant: &Variant, a: &Tensor, b: &Tensor, y: &Tensor, rows: GateRows) -> Result<(), CudaError> {
    let call = KernelCall::new(variant, "gate").tensor(a).tensor(b).tensor(y);
    let call = call.int(rows.rows).int(rows.width).int(rows.stride).int(rows.narrow);
    call.launch(y, grid(cover(variant, rows), THREADS))
}

fn backward(
    variant: &Variant,
    g: &Tensor,
    a: &Tensor,
    b: &Tensor,
    da: &Tensor,
    db: &Tensor,
    rows: GateRows,
) -> Result<(), CudaError> {
    let call = KernelCall::new(variant, "gate_back").tensor(g).tensor(a).tensor(b).tensor(da).tensor(db);
    let call = call.int(rows.rows).int(rows.width).int(rows.stride).int(rows.narrow).int(rows.wide);
    call.launch(g, grid(cover(variant, rows), THREADS))
}
