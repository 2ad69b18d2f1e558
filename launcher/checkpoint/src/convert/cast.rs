//! Converts floating-point tensors to another floating-point type with one rounding.

use enn_common::checkpoint::{Element, TensorDType};
use half::{bf16, f16};

pub(super) const FLOATS: [TensorDType; 4] = [TensorDType::F64, TensorDType::F32, TensorDType::F16, TensorDType::Bf16];

/// Returns the type of the converted tensor: the requested one if both are floating-point types that can be cast, else its own.
pub(super) fn target(own: Element, wished: Option<TensorDType>) -> Element {
    let float = own.dtype().is_some_and(|dtype| FLOATS.contains(&dtype));
    wished.filter(|wished| float && FLOATS.contains(wished)).map_or(own, Element::from)
}

/// Casts elements from `from` to `to`; returns them with the number of finite elements that became infinite.
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

/// Returns the elements of a floating-point tensor as doubles; `None` for another type.
pub(super) fn floats(bytes: &[u8], element: Element) -> Option<impl Iterator<Item = f64>> {
    let dtype = element.dtype().filter(|dtype| FLOATS.contains(dtype))?;
    Some(bytes.chunks_exact(width(dtype)).map(move |element| read(element, dtype)))
}

fn width(dtype: TensorDType) -> usize {
    usize::try_from(dtype.bytes()).unwrap_or(1)
}

fn array<const N: usize>(element: &[u8]) -> [u8; N] {
    element.try_into().unwrap_or([0; N])
}

fn read(element: &[u8], dtype: TensorDType) -> f64 {
    match dtype {
        TensorDType::F32 => f64::from(f32::from_le_bytes(array(element))),
        TensorDType::F16 => f16::from_le_bytes(array(element)).to_f64(),
        TensorDType::Bf16 => bf16::from_le_bytes(array(element)).to_f64(),
        _ => f64::from_le_bytes(array(element)),
    }
}

/// Writes a value; returns whether the result is finite.
fn write(value: f64, dtype: TensorDType, out: &mut Vec<u8>) -> bool {
    match dtype {
        TensorDType::F32 => {
            let narrow = value as f32;
            out.extend(narrow.to_le_bytes());
            narrow.is_finite()
        }
        TensorDType::F16 => {
            let narrow = f16::from_f64(value);
            out.extend(narrow.to_le_bytes());
            narrow.is_finite()
        }
        TensorDType::Bf16 => {
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
        let (half, overflowed) = cast(bytes.clone(), TensorDType::F32.into(), TensorDType::F16.into());
        assert_eq!(overflowed, 1);
        let back: Vec<f64> = floats(&half, TensorDType::F16.into()).unwrap().collect();
        assert_eq!(&back[..4], &[1.0, -2.5, 1.001953125, f64::INFINITY]);
        assert!(back[4].is_infinite() && back[5].is_nan());
        let (brain, overflowed) = cast(bytes, TensorDType::F32.into(), TensorDType::Bf16.into());
        assert_eq!(overflowed, 0);
        // 1 + 2⁻⁹ is below half of bfloat16's step of 2⁻⁷.
        assert_eq!(floats(&brain, TensorDType::Bf16.into()).unwrap().nth(2), Some(1.0));
    }

    #[test]
    fn other_types_stay() {
        let int = Element::from(TensorDType::I64);
        assert_eq!(target(int, Some(TensorDType::F16)), int);
        assert_eq!(target(TensorDType::F32.into(), Some(TensorDType::Bf16)), TensorDType::Bf16.into());
        assert_eq!(target(TensorDType::F32.into(), None), TensorDType::F32.into());
        let float8 = Element::of_torch("float8_e4m3fn").unwrap();
        assert_eq!(target(float8, Some(TensorDType::F32)), float8);
        assert!(floats(&[1], float8).is_none());
    }
}
