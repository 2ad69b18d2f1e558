//! Cross entropy over classes in one pass over the logits.

use super::call::{KernelCall, grid};
use super::check::{Check, aligned, blocks, ceil, pack};
use super::error::CudaError;
use super::result::LaunchGrid;
use super::source::{Element, Source, Variant};
use crate::backend::aligned_rows;
use tch::{Kind, Tensor};

pub(super) static SOURCE: Source = Source {
    name: "cross_entropy",
    text: include_str!("src/cross_entropy.cu"),
    numbers: &["THREADS", "VEC"],
    shared_bytes_max: 0,
};

/// Most classes for which a warp processes a row.
const WARP_CLASSES: i64 = 1024;
/// Most classes for which 256 threads process a row; beyond that 1024 do.
const BLOCK_CLASSES: i64 = 16384;
const WARP_ROWS: u32 = 4;
const THREADS_BACKWARD: u32 = 256;

/// Rows, classes and the kernel for them.
#[derive(Debug, Clone, Copy)]
struct CrossEntropyLaunch {
    variant: Variant,
    rows: i64,
    classes: i64,
    threads: u32,
}

/// Chooses the launch for `matrices`, the logits and the written matrices, whose rows are dense and at a constant distance.
fn layout(check: Check, matrices: &[&Tensor], targets: &Tensor) -> Result<CrossEntropyLaunch, CudaError> {
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
    Ok(CrossEntropyLaunch { variant: Variant::new(&SOURCE, element, &[threads, vec]), rows, classes, threads })
}

/// Returns loss and log-sum-exp of each row (f32) for logits (R, C), whose rows may be strided, and targets (R). A target of `ignored`
/// gives a loss of 0, one outside the classes NaN.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, ignored: i64) -> Result<[Tensor; 2], CudaError> {
    let logits = aligned_rows::rows(logits)?;
    let targets = targets.f_contiguous()?;
    let l = layout(Check { kernel: "cross_entropy" }, &[&logits], &targets)?;
    let empty = || Tensor::f_empty([l.rows], (Kind::Float, logits.device()));
    let loss = empty()?;
    let lse = empty()?;
    let per_block = if l.threads == 32 { WARP_ROWS } else { 1 };
    let call = KernelCall::new(&l.variant, "cross_entropy").tensor(&logits).tensor(&targets).tensor(&loss).tensor(&lse);
    let call = call.int(l.rows).int(l.classes).int(logits.stride()[0]).int(ignored);
    let threads = (l.threads, per_block);
    call.launch(&logits, LaunchGrid { blocks: blocks(l.rows, i64::from(per_block)), threads, shared: 0 })?;
    Ok([loss, lse])
}

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
    /// Target id that is ignored.
    pub ignored: i64,
    /// Whether the result overwrites the logits, whose rows must be dense then.
    pub in_place: bool,
}

pub fn cross_entropy_backward(c: &CrossEntropyBackward<'_>) -> Result<Tensor, CudaError> {
    let check = Check { kernel: "cross_entropy_backward" };
    let logits = aligned_rows::rows(c.logits)?;
    let targets = c.targets.f_contiguous()?;
    let in_place = !c.in_place || logits.data_ptr() == c.logits.data_ptr();
    check.that(in_place, "logits", c.logits, "rows that lie densely, to be written to")?;
    let g = c.g.f_to_kind(Kind::Float)?.f_contiguous()?;
    let lse = c.lse.f_contiguous()?;
    let out = match c.in_place {
        true => logits.shallow_clone(),
        false => aligned_rows::large(&logits.size(), logits.kind(), logits.device())?,
    };
    let l = layout(check, &[&logits, &out], &targets)?;
    check.numbers("lse", &lse, Kind::Float, l.rows, &logits)?;
    let one = g.numel() == 1;
    check.numbers("g", &g, Kind::Float, if one { 1 } else { l.rows }, &logits)?;
    let packs = l.rows * ceil(l.classes, i64::from(l.variant.numbers[1]));
    let call = KernelCall::new(&l.variant, "cross_entropy_back").tensor(&g).int(i64::from(!one)).tensor(&logits);
    let call = call.tensor(&targets).tensor(&lse).tensor(&out).int(l.rows).int(l.classes);
    let call = call.int(logits.stride()[0]).int(out.stride()[0]).int(c.ignored);
    call.launch(&logits, grid(blocks(packs, i64::from(THREADS_BACKWARD)), THREADS_BACKWARD))?;
    Ok(out)
}
