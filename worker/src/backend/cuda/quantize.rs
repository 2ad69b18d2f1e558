//! A matrix as 8-bit numbers, by rows and transposed, with one multiplier that the host never reads.

use super::call::{Call, grid};
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
/// Packs a thread of the first kernel loads at once; the source's UNROLL.
const UNROLL: i64 = 4;
/// Side of a tile; the source's SIDE.
const SIDE: i64 = 128;
/// What both sizes of a matrix are multiples of.
const ALIGN: i64 = 16;
/// Blocks of the first kernel one multiprocessor runs at once: 32 registers a thread.
const READING_BLOCKS: i64 = 8;
/// The same of the second: 64 registers a thread.
const WRITING_BLOCKS: i64 = 4;

/// An 8-bit matrix.
#[derive(Debug)]
pub struct Quantized {
    /// rows × columns.
    pub q: Tensor,
    /// columns × rows.
    pub transposed: Tensor,
    /// x ≈ q·scale; f32 of 0 axes.
    pub scale: Tensor,
}

/// `x`, seen as a matrix over its last axis, as numbers of `to`: e4m3 or e5m2.
///
/// # Errors
/// When the kernel is not written for the operands, or is not launched.
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
    let call = Call::new(&variant, "largest").tensor(&x).int(packs).tensor(&partial);
    call.launch(&x, grid(u32::try_from(reading).unwrap_or(0), THREADS))?;
    let call = Call::new(&variant, "quantize").tensor(&x).tensor(&partial).int(reading);
    let call = call.tensor(&q).tensor(&transposed).tensor(&scale).int(rows).int(columns);
    call.launch(&x, grid(u32::try_from(writing).unwrap_or(0), THREADS))?;
    Ok(Quantized { q, transposed, scale })
}
