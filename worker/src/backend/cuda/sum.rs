//! Sums over the ranks of what their devices have copied here.

use super::call::{Call, grid};
use super::check::{PACK_BYTES, blocks};
use super::driver::Stream;
use super::error::CudaError;
use super::source::{Element, Source, Variant};

pub(super) static SOURCE: Source =
    Source { name: "sum", text: include_str!("src/sum.cu"), numbers: &["VEC"], shared_bytes_max: 0 };

const THREADS: u32 = 512;
/// Floats of the widest load.
const WIDEST: u32 = 4;

/// Adds up `elements` floats of all ranks, in the ranks' order, at the place of the own ones: those of rank `at.0` of `at.1`. The others'
/// lie behind each other, `stride` elements apart, the own ones left out. The places are addresses of that device.
///
/// # Errors
/// When the kernel is not launched.
pub(in crate::backend) fn sum_parts(
    device: usize,
    stream: Stream,
    (own, parts): (u64, u64),
    (elements, stride): (i64, i64),
    at: (u32, u32),
) -> Result<(), CudaError> {
    if elements == 0 {
        return Ok(());
    }
    let widest = PACK_BYTES.cast_unsigned();
    let aligned = own.is_multiple_of(widest) && parts.is_multiple_of(widest) && stride % i64::from(WIDEST) == 0;
    let vec = if aligned { WIDEST } else { 1 };
    let variant = Variant::new(&SOURCE, Element::F32, &[vec]);
    let count = blocks(elements / i64::from(vec), i64::from(THREADS)).max(1);
    let call = Call::new(&variant, "sum_parts").address(own).address(parts).int(elements).int(stride);
    call.word(at.0).word(at.1).launch_on(device, stream, grid(count, THREADS))
}
