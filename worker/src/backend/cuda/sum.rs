//! What the devices of the ranks have copied here, brought together.

use super::call::{Call, grid};
use super::check::{PACK_BYTES, blocks};
use super::error::CudaError;
use super::lane::Lane;
use super::source::{Element, Source, Variant};
use tch::Kind;

pub(super) static SOURCE: Source =
    Source { name: "sum", text: include_str!("src/sum.cu"), numbers: &["VEC", "KIND", "REDUCE"], shared_bytes_max: 0 };

/// As in the source.
const THREADS: u32 = 512;
/// Floats of the widest load.
const WIDEST: u32 = 4;
/// The source's KIND is the place here.
const KINDS: [Kind; 8] =
    [Kind::Float, Kind::Double, Kind::Int64, Kind::Int, Kind::Int8, Kind::Uint8, Kind::BFloat16, Kind::Half];

/// How values are brought together; the number is the source's REDUCE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Together {
    /// Their sum.
    Sum = 0,
    /// The smallest.
    Min = 1,
    /// The largest.
    Max = 2,
}

/// Addresses on a device.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// Of a rank's own values.
    pub own: u64,
    /// Of the other ranks', which lie behind each other, the own ones left out.
    pub parts: u64,
    /// Of room for a f64 for each 512 values, where Σx² of the results is wanted.
    pub squares: Option<u64>,
}

/// Brings together `elements` values of all ranks, in the ranks' order, at the place of the own ones: those of rank `at.0` of `at.1`. The
/// others' are `stride` elements apart. How many sums of squares were written.
///
/// # Errors
/// When the kernel is not launched; of a kind that it does not take.
pub(in crate::backend) fn sum_parts(
    lane: &Lane,
    Places { own, parts, squares }: Places,
    (elements, stride): (i64, i64),
    at: (u32, u32),
    (kind, together): (Kind, Together),
) -> Result<u32, CudaError> {
    if elements == 0 {
        return Ok(0);
    }
    let widest = PACK_BYTES.cast_unsigned();
    let aligned = own.is_multiple_of(widest) && parts.is_multiple_of(widest) && stride % i64::from(WIDEST) == 0;
    let vec = if aligned && kind == Kind::Float { WIDEST } else { 1 };
    let variant = variant(vec, kind, together)?;
    let count = blocks(elements / i64::from(vec), i64::from(THREADS)).max(1);
    let entry = if squares.is_some() { "sum_parts_measured" } else { "sum_parts" };
    let call = Call::new(&variant, entry).address(own).address(parts).int(elements).int(stride).word(at.0).word(at.1);
    let call = squares.into_iter().fold(call, Call::address);
    call.launch_on(lane, grid(count, THREADS))?;
    Ok(if squares.is_some() { count } else { 0 })
}

fn variant(vec: u32, kind: Kind, together: Together) -> Result<Variant, CudaError> {
    let number = KINDS.iter().position(|known| *known == kind);
    let number = number.ok_or_else(|| CudaError::Operand {
        kernel: "sum_parts",
        operand: "own",
        found: format!("of kind {kind:?}"),
        expected: "a float, or an integer of 8, 32 or 64 bits",
    })?;
    Ok(Variant::new(&SOURCE, Element::F32, &[vec, number as u32, together as u32]))
}

/// Compiles and loads what [`sum_parts`] launches.
///
/// # Errors
/// Of a kind that it does not take; what the compiler or the driver says.
pub(in crate::backend) fn make_ready(device: usize, kind: Kind, together: Together) -> Result<(), CudaError> {
    let packs: &[u32] = if kind == Kind::Float { &[WIDEST, 1] } else { &[1] };
    packs.iter().try_for_each(|vec| Call::new(&variant(*vec, kind, together)?, "sum_parts").make_ready_on(device))
}

/// Copies `bytes` from one address to the other, if `cut`, a word of the device's own, is 0.
///
/// # Errors
/// When the kernel is not launched.
pub(in crate::backend) fn take_part(
    lane: &Lane,
    (from, to): (u64, u64),
    bytes: i64,
    cut: u64,
) -> Result<(), CudaError> {
    if bytes == 0 {
        return Ok(());
    }
    let variant = Variant::new(&SOURCE, Element::F32, &[WIDEST, 0, 0]);
    let count = blocks(bytes, i64::from(THREADS) * PACK_BYTES);
    let call = Call::new(&variant, "take_part").address(from).address(to).int(bytes).address(cut);
    call.launch_on(lane, grid(count, THREADS))
}

/// Writes √Σ of `count` sums of squares, f32; what is no number once `cut`, a word of the host's, is not 0.
///
/// # Errors
/// When the kernel is not launched.
pub(in crate::backend) fn norm_of_parts(
    lane: &Lane,
    (squares, count): (u64, i64),
    to: u64,
    cut: u64,
) -> Result<(), CudaError> {
    let variant = Variant::new(&SOURCE, Element::F32, &[WIDEST, 0, 0]);
    let call = Call::new(&variant, "norm_of_parts").address(squares).int(count).address(to).address(cut);
    call.launch_on(lane, grid(1, THREADS))
}
