//! Which numbers an element type of two bytes can hold.

use enn_common::graph::{DType, GraphValue};
use half::{bf16, f16};

/// Returns whether an element type of two bytes represents a number exactly.
pub(super) fn is_exact(number: f32, dtype: DType) -> bool {
    let half = if dtype == DType::F16 { f16::from_f32(number).to_f32() } else { bf16::from_f32(number).to_f32() };
    half == number
}

/// Checks that an element type of two bytes can hold a known value: no number becomes infinite, and not all of them lose
/// digits. The error describes the number found.
pub(super) fn holds(value: &GraphValue, dtype: DType) -> Result<(), String> {
    if dtype != DType::F16 {
        return Ok(());
    }
    let floats = value.floats();
    let most = floats.iter().copied().filter(|v| v.is_finite()).map(f32::abs).fold(0.0, f32::max);
    if f16::from_f32(most).is_infinite() {
        return Err(format!("it holds {most:.3e}, the largest number is 65504"));
    }
    if most > 0.0 && most < f16::MIN_POSITIVE.to_f32() {
        return Err(format!("it holds no number above {most:.3e}, below 6.1e-5 digits are lost"));
    }
    Ok(())
}
