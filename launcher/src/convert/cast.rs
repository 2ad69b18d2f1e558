//! Floating-point tensors in another floating-point type, rounded once.

use enn_common::checkpoint::{DType, Element};
use half::{bf16, f16};

/// Types between which is cast.
pub(super) const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::Bf16];

/// The type a tensor gets: the wished one where both are floating-point types that are cast, else its own.
pub(super) fn target(own: Element, wished: Option<DType>) -> Element {
    let float = own.dtype().is_some_and(|dtype| FLOATS.contains(&dtype));
    wished.filter(|wished| float && FLOATS.contains(wished)).map_or(own, Element::from)
}

/// Elements of `from` as elements of `to`, and how many finite ones became infinite.
pub(super) fn cast(bytes: Vec<u8>, from: Element, to: Element) -> (Vec<u8>, u64) {
    let (Some(from), Some(to)) = (from.dtype(), to.dtype()) else { return (bytes, 0) };
    if from == to {
        return (bytes, 0);
    }
    let mut out = Vec::with_capacity(bytes.len() / width(from) * width(to));
    let mut overflowed = 0;
    for element in bytes.chunks_exact(width(from)) {
        let value = read(element, from);
        let finite = write(value, to, &mut out);
        overflowed += u64::from(value.is_finite() && !finite);
    }
    (out, overflowed)
}

/// The elements of a floating-point tensor as doubles; `None` for another type.
pub(super) fn floats(bytes: &[u8], element: Element) -> Option<impl Iterator<Item = f64>> {
    let dtype = element.dtype().filter(|dtype| FLOATS.contains(dtype))?;
    Some(bytes.chunks_exact(width(dtype)).map(move |element| read(element, dtype)))
}

fn width(dtype: DType) -> usize {
    usize::try_from(dtype.bytes()).unwrap_or(1)
}

fn array<const N: usize>(element: &[u8]) -> [u8; N] {
    element.try_into().unwrap_or([0; N])
}

fn read(element: &[u8], dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::from(f32::from_le_bytes(array(element))),
        DType::F16 => f16::from_le_bytes(array(element)).to_f64(),
        DType::Bf16 => bf16::from_le_bytes(array(element)).to_f64(),
        _ => f64::from_le_bytes(array(element)),
    }
}

/// Whether what was written is finite.
fn write(value: f64, dtype: DType, out: &mut Vec<u8>) -> bool {
    match dtype {
        DType::F32 => {
            let narrow = value as f32;
            out.extend(narrow.to_le_bytes());
            narrow.is_finite()
        }
        DType::F16 => {
            let narrow = f16::from_f64(value);
            out.extend(narrow.to_le_bytes());
            narrow.is_finite()
        }
        DType::Bf16 => {
            let narrow = bf16::from_f64(value);
            out.extend(narrow.to_le_bytes());
            narrow.is_finite()
        }
        _ => {
            out.extend(value.to_le_bytes());
            value.is_finite()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_once_and_overflow_is_counted() {
        let values = [1.0f32, -2.5, 1.0 + 2f32.powi(-9), 70_000.0, f32::INFINITY, f32::NAN];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (half, overflowed) = cast(bytes.clone(), DType::F32.into(), DType::F16.into());
        assert_eq!(overflowed, 1);
        let back: Vec<f64> = floats(&half, DType::F16.into()).unwrap().collect();
        assert_eq!(&back[..4], &[1.0, -2.5, 1.001953125, f64::INFINITY]);
        assert!(back[4].is_infinite() && back[5].is_nan());
        let (brain, overflowed) = cast(bytes, DType::F32.into(), DType::Bf16.into());
        assert_eq!(overflowed, 0);
        // 1 + 2⁻⁹ is below half of bfloat16's step of 2⁻⁷.
        assert_eq!(floats(&brain, DType::Bf16.into()).unwrap().nth(2), Some(1.0));
    }

    #[test]
    fn other_types_stay() {
        let int = Element::from(DType::I64);
        assert_eq!(target(int, Some(DType::F16)), int);
        assert_eq!(target(DType::F32.into(), Some(DType::Bf16)), DType::Bf16.into());
        assert_eq!(target(DType::F32.into(), None), DType::F32.into());
        let float8 = Element::of_torch("float8_e4m3fn").unwrap();
        assert_eq!(target(float8, Some(DType::F32)), float8);
        assert!(floats(&[1], float8).is_none());
    }
}
