//! Reductions over values that the other ranks' devices have copied to this device.

use super::call::{KernelCall, grid};
use super::check::{PACK_BYTES, blocks};
use super::error::CudaError;
use super::graph_stream::GraphStream;
use super::source::{Element, Source, Variant};
use tch::Kind;

pub(super) static SOURCE: Source =
    Source { name: "sum", text: include_str!("src/sum.cu"), numbers: &["VEC", "KIND", "REDUCE"], shared_bytes_max: 0 };

/// Threads per block; the source's THREADS.
const THREADS: u32 = 512;
/// Floats per widest load.
const WIDEST: u32 = 4;
/// Kinds by their number in the source, KIND.
const KINDS: [Kind; 8] =
    [Kind::Float, Kind::Double, Kind::Int64, Kind::Int, Kind::Int8, Kind::Uint8, Kind::BFloat16, Kind::Half];

/// Elementwise reduction over the ranks; the discriminant is REDUCE of the source and the number of c10d's shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankReduction {
    Sum = 0,
    Min = 1,
    Max = 2,
}

/// A reduction of this rank's values with those that the other ranks have copied to this device.
#[derive(Debug, Clone, Copy)]
pub struct PartReduction {
    /// Address of the rank's own values, where the result is written.
    pub own: u64,
    /// Address of the other ranks' values, in the ranks' order without the own ones.
    pub parts: u64,
    /// Address for the sums of squares of the results, if they are wanted: one f64 for each 512 values.
    pub squares: Option<u64>,
    pub elements: usize,
    /// Distance between the values of two other ranks, in elements.
    pub stride: usize,
    pub rank: u32,
    pub size: u32,
    pub kind: Kind,
    pub reduction: RankReduction,
}

/// Reduces the values of all ranks in the order of the ranks. Returns the number of sums of squares that were written.
pub(in crate::backend) fn sum_parts(graph_stream: &GraphStream, job: &PartReduction) -> Result<u32, CudaError> {
    let PartReduction { own, parts, squares, rank, size, kind, reduction, .. } = *job;
    let elements = job.elements as i64;
    let stride = job.stride as i64;
    if elements == 0 {
        return Ok(0);
    }
    let widest = PACK_BYTES.cast_unsigned();
    let aligned = own.is_multiple_of(widest) && parts.is_multiple_of(widest) && stride % i64::from(WIDEST) == 0;
    let vec = if aligned && kind == Kind::Float { WIDEST } else { 1 };
    let variant = variant(vec, kind, reduction)?;
    let count = blocks(elements / i64::from(vec), i64::from(THREADS)).max(1);
    let entry = if squares.is_some() { "sum_parts_measured" } else { "sum_parts" };
    let call =
        KernelCall::new(&variant, entry).address(own).address(parts).int(elements).int(stride).word(rank).word(size);
    let call = squares.into_iter().fold(call, KernelCall::address);
    call.launch_on(graph_stream, grid(count, THREADS))?;
    Ok(if squares.is_some() { count } else { 0 })
}

fn variant(vec: u32, kind: Kind, reduction: RankReduction) -> Result<Variant, CudaError> {
    let number = KINDS.iter().position(|known| *known == kind);
    let number = number.ok_or_else(|| CudaError::Operand {
        kernel: "sum_parts",
        operand: "own",
        found: format!("of kind {kind:?}"),
        expected: "a float, or an integer of 8, 32 or 64 bits",
    })?;
    Ok(Variant::new(&SOURCE, Element::F32, &[vec, number as u32, reduction as u32]))
}

/// Compiles and loads what [`sum_parts`] launches.
pub(in crate::backend) fn make_ready(device: usize, kind: Kind, reduction: RankReduction) -> Result<(), CudaError> {
    let packs: &[u32] = if kind == Kind::Float { &[WIDEST, 1] } else { &[1] };
    packs
        .iter()
        .try_for_each(|vec| KernelCall::new(&variant(*vec, kind, reduction)?, "sum_parts").make_ready_on(device))
}

/// Copies `bytes` bytes from one address to another if the word at `cut`, in the device's own memory, is 0.
pub(in crate::backend) fn take_part(
    graph_stream: &GraphStream,
    from: u64,
    to: u64,
    bytes: i64,
    cut: u64,
) -> Result<(), CudaError> {
    if bytes == 0 {
        return Ok(());
    }
    let variant = Variant::new(&SOURCE, Element::F32, &[WIDEST, 0, 0]);
    let count = blocks(bytes, i64::from(THREADS) * PACK_BYTES);
    let call = KernelCall::new(&variant, "take_part").address(from).address(to).int(bytes).address(cut);
    call.launch_on(graph_stream, grid(count, THREADS))
}

/// Writes √Σ of `count` sums of squares as f32; NaN once the word at `cut`, in host memory, is not 0.
pub(in crate::backend) fn norm_of_parts(
    graph_stream: &GraphStream,
    squares: u64,
    count: i64,
    to: u64,
    cut: u64,
) -> Result<(), CudaError> {
    let variant = Variant::new(&SOURCE, Element::F32, &[WIDEST, 0, 0]);
    let call = KernelCall::new(&variant, "norm_of_parts").address(squares).int(count).address(to).address(cut);
    call.launch_on(graph_stream, grid(1, THREADS))
}
