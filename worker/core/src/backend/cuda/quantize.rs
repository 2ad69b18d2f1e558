//! Quantises a matrix to 8-bit floats, by rows and transposed, with one scale that stays on the device.

use super::call::{KernelCall, grid};
use super::check::{Check, aligned, ceil, pack};
use super::engine;
use super::error::CudaError;
use super::source::{Source, Variant};
use tch::{Kind, Tensor};

pub(super) static SOURCE: Source = Source {
    name: "quantize",
    text: include_str!("src/quantize.cu"),
    numbers: &["VEC", "GRADIENT"],
    shared_bytes_max: 0,
};

const THREADS: u32 = 256;
/// Vector loads in flight per thread of the first kernel; the source's UNROLL.
const UNROLL: i64 = 4;
/// Side of a square tile; the source's SIDE.
const SIDE: i64 = 128;
/// Required divisor of both sizes of a matrix.
const ALIGN: i64 = 16;
/// Blocks of the first kernel that one multiprocessor runs at once, with 32 registers per thread.
const READING_BLOCKS: i64 = 8;
/// Blocks of the second kernel that one multiprocessor runs at once, with 64 registers per thread.
const WRITING_BLOCKS: i64 = 4;

/// An 8-bit matrix with its transpose and scale.
#[derive(Debug)]
pub struct Quantized {
    /// The matrix, rows × columns.
    pub q: Tensor,
    /// The transpose, columns × rows.
    pub transposed: Tensor,
    /// Scale with x ≈ q·scale; f32 of 0 axes.
    pub scale: Tensor,
}

/// Quantises `x`, seen as a matrix over its last axis, to `to`: e4m3 or e5m2.
pub fn quantize(x: &Tensor, to: Kind) -> Result<Quantized, CudaError> {
    let check = Check { kernel: "quantize" };
    let element = check.element("x", x)?;
    let device = check.device("x", x)?;
    let gradient = to == Kind::Float8e5m2;
    check.that(gradient || to == Kind::Float8e4m3fn, "x", x, "asked for as e4m3 or e5m2")?;
    let x = x.f_contiguous()?;
    let columns = x.size().last().copied().unwrap_or(0);
    let elements = x.numel() as i64;
    check.that(elements > 0 && columns % ALIGN == 0, "x", &x, "a matrix whose sizes are positive multiples of 16")?;
    let rows = elements / columns;
    check.that(rows % ALIGN == 0, "x", &x, "a matrix whose sizes are positive multiples of 16")?;

    let vec = if aligned(&[&x]) { pack(element, columns) } else { 1 };
    let variant = Variant::new(&SOURCE, element, &[vec, u32::from(gradient)]);
    let processors = i64::from(engine::facts(device)?.processors);
    let packs = elements / i64::from(vec);
    let reading = ceil(packs, i64::from(THREADS) * UNROLL).min(processors * READING_BLOCKS);
    let writing = (ceil(rows, SIDE) * ceil(columns, SIDE)).min(processors * WRITING_BLOCKS);

    let on = x.device();
    let partial = Tensor::f_empty([reading], (Kind::Int, on))?;
    let q = Tensor::f_empty([rows, columns], (to, on))?;
    let transposed = Tensor::f_empty([columns, rows], (to, on))?;
    let scale = Tensor::f_empty([0_i64; 0], (Kind::Float, on))?;
    let call = KernelCall::new(&variant, "largest").tensor(&x).int(packs).tensor(&partial);
    call.launch(&x, grid(u32::try_from(reading).unwrap_or(0), THREADS))?;
    let call = KernelCall::new(&variant, "quantize").tensor(&x).tensor(&partial).int(reading);
    let call = call.tensor(&q).tensor(&transposed).tensor(&scale).int(rows).int(columns);
    call.launch(&x, grid(u32::try_from(writing).unwrap_or(0), THREADS))?;
    Ok(Quantized { q, transposed, scale })
}
