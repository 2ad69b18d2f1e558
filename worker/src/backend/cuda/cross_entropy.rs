//! Cross entropy over classes in one pass over the logits.

use super::call::{Call, grid};
use super::check::{Check, aligned, blocks, ceil, pack};
use super::error::CudaError;
use super::result::Grid;
use super::source::{Element, Source, Variant};
use crate::backend::lined;
use tch::{Kind, Tensor};

pub(super) static SOURCE: Source = Source {
    name: "cross_entropy",
    text: include_str!("src/cross_entropy.cu"),
    numbers: &["THREADS", "VEC"],
    shared_bytes_max: 0,
};

/// Up to so many classes, a warp takes a row.
const WARP_CLASSES: i64 = 1024;
/// Up to so many, 256 threads; beyond, 1024.
const BLOCK_CLASSES: i64 = 16384;
const WARP_ROWS: u32 = 4;
const THREADS_BACKWARD: u32 = 256;

/// Rows, classes and the kernel for them.
#[derive(Debug, Clone, Copy)]
struct Layout {
    variant: Variant,
    rows: i64,
    classes: i64,
    threads: u32,
}

/// `matrices`: the logits and what is written, rows that lie densely at one distance from each other.
fn layout(check: Check, matrices: &[&Tensor], targets: &Tensor) -> Result<Layout, CudaError> {
    let logits = matrices[0];
    let element: Element = check.element("logits", logits)?;
    check.device("logits", logits)?;
    let [rows, classes] = logits.size()[..] else {
        return Err(check.refuse("logits", logits, "rows by classes"));
    };
    check.that(classes > 0, "logits", logits, "at least one class")?;
    check.numbers("targets", targets, Kind::Int64, rows, logits)?;
    let packs = aligned(matrices) && matrices.iter().all(|matrix| pack(element, matrix.stride()[0]) > 1);
    let vec = if packs { pack(element, logits.stride()[0]) } else { 1 };
    let threads = if classes <= WARP_CLASSES {
        32
    } else if classes <= BLOCK_CLASSES {
        256
    } else {
        1024
    };
    Ok(Layout { variant: Variant::new(&SOURCE, element, &[threads, vec]), rows, classes, threads })
}

/// Loss and log-sum-exp of each row (f32): logits (R, C), whose rows may lie apart, targets (R). A target of `ignored` gives a loss of 0, one
/// outside the classes NaN.
///
/// # Errors
/// When the kernel is not written for the operands, or is not launched.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, ignored: i64) -> Result<[Tensor; 2], CudaError> {
    let logits = lined::rows(logits)?;
    let targets = targets.f_contiguous()?;
    let l = layout(Check { kernel: "cross_entropy" }, &[&logits], &targets)?;
    let empty = || Tensor::f_empty([l.rows], (Kind::Float, logits.device()));
    let loss = empty()?;
    let lse = empty()?;
    let per_block = if l.threads == 32 { WARP_ROWS } else { 1 };
    let call = Call::new(&l.variant, "cross_entropy").tensor(&logits).tensor(&targets).tensor(&loss).tensor(&lse);
    let call = call.int(l.rows).int(l.classes).int(logits.stride()[0]).int(ignored);
    let threads = (l.threads, per_block);
    call.launch(&logits, Grid { blocks: blocks(l.rows, i64::from(per_block)), threads, shared: 0 })?;
    Ok([loss, lse])
}

/// Operands of the reverse.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropyBackward<'a> {
    /// Gradient of the losses (f32): one per row, or one for all.
    pub g: &'a Tensor,
    /// Logits (R, C).
    pub logits: &'a Tensor,
    /// Targets (R).
    pub targets: &'a Tensor,
    /// Log-sum-exp of each row.
    pub lse: &'a Tensor,
    /// Target without loss.
    pub ignored: i64,
    /// Whether the result may take the logits' memory; their rows must be dense then.
    pub in_place: bool,
}

/// Gradient of the logits.
///
/// # Errors
/// As [`cross_entropy`].
pub fn cross_entropy_backward(c: &CrossEntropyBackward<'_>) -> Result<Tensor, CudaError> {
    let check = Check { kernel: "cross_entropy_backward" };
    let logits = lined::rows(c.logits)?;
    let targets = c.targets.f_contiguous()?;
    let in_place = !c.in_place || logits.data_ptr() == c.logits.data_ptr();
    check.that(in_place, "logits", c.logits, "rows that lie densely, to be written to")?;
    let g = c.g.f_to_kind(Kind::Float)?.f_contiguous()?;
    let lse = c.lse.f_contiguous()?;
    let out = match c.in_place {
        true => logits.shallow_clone(),
        false => lined::large(&logits.size(), logits.kind(), logits.device())?,
    };
    let l = layout(check, &[&logits, &out], &targets)?;
    check.numbers("lse", &lse, Kind::Float, l.rows, &logits)?;
    let one = g.numel() == 1;
    check.numbers("g", &g, Kind::Float, if one { 1 } else { l.rows }, &logits)?;
    let packs = l.rows * ceil(l.classes, i64::from(l.variant.numbers[1]));
    let call = Call::new(&l.variant, "cross_entropy_back").tensor(&g).int(i64::from(!one)).tensor(&logits);
    let call = call.tensor(&targets).tensor(&lse).tensor(&out).int(l.rows).int(l.classes);
    let call = call.int(logits.stride()[0]).int(out.stride()[0]).int(c.ignored);
    call.launch(&logits, grid(blocks(packs, i64::from(THREADS_BACKWARD)), THREADS_BACKWARD))?;
    Ok(out)
}
