//! Dropout of elements and of rows, with the mask of `op::random`.

use super::call::{KernelCall, grid};
use super::check::{Check, PACK_BYTES, blocks};
use super::error::CudaError;
use super::source::{Source, Variant};
use tch::{Kind, Tensor};

pub(super) static SOURCE: Source =
    Source { name: "dropout", text: include_str!("src/dropout.cu"), numbers: &["PACKED"], shared_bytes_max: 0 };

const THREADS: u32 = 256;
/// Words per block of the random generator.
const WORDS: i64 = 4;
/// Elements per thread of the row kernel.
const ROW_ELEMENTS: i64 = 8;

#[derive(Debug, Clone, Copy)]
pub struct Dropout<'a> {
    pub x: &'a Tensor,
    /// int64 (seed, step, first row, rows) on the device of `x`.
    pub key: &'a Tensor,
    /// Number of the operation in the step's random stream.
    pub site: u32,
    /// Words below this are kept.
    pub threshold: u32,
    /// Factor on what is kept.
    pub scale: f64,
    /// Whether whole rows of the first axis are dropped.
    pub rows: bool,
}

/// Drops elements, or rows, of `x`.
pub fn dropout(d: &Dropout<'_>) -> Result<Tensor, CudaError> {
    let check = Check { kernel: "dropout" };
    let element = check.element("x", d.x)?;
    check.device("x", d.x)?;
    check.numbers("key", d.key, Kind::Int64, 4, d.x)?;
    let x = d.x.f_contiguous()?;
    let y = Tensor::f_empty(x.size(), (x.kind(), x.device()))?;
    let elements = x.numel() as i64;
    if elements == 0 {
        return Ok(y);
    }
    let pack_bytes = WORDS * element.bytes();
    let packed = [&x, &y].iter().all(|tensor| tensor.data_ptr() as i64 % pack_bytes.min(PACK_BYTES) == 0);
    let variant = Variant::new(&SOURCE, element, &[u32::from(packed)]);
    if !d.rows {
        // One block of words more than needed, as the stream may begin in the middle of a block.
        let count = blocks(elements / WORDS + 2, i64::from(THREADS));
        let call = KernelCall::new(&variant, "dropout").tensor(&x).tensor(&y).tensor(d.key).int(elements);
        call.word(d.site).word(d.threshold).float(d.scale).launch(&x, grid(count, THREADS))?;
        return Ok(y);
    }
    let rows = x.size().first().copied().unwrap_or(1);
    let count = blocks(elements, ROW_ELEMENTS * i64::from(THREADS));
    let call =
        KernelCall::new(&variant, "drop_rows").tensor(&x).tensor(&y).tensor(d.key).int(rows).int(elements / rows);
    call.word(d.site).word(d.threshold).float(d.scale).launch(&x, grid(count, THREADS))?;
    Ok(y)
}
