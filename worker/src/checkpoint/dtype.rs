//! Conversion between dtypes of checkpoints and of libtorch.

use enn_common::checkpoint::table::TensorDType;
use tch::Kind;

/// Converts a libtorch kind; `None` for kinds that the state never has (complex, quantised).
pub fn of_kind(kind: Kind) -> Option<TensorDType> {
    Some(match kind {
        Kind::Double => TensorDType::F64,
        Kind::Float => TensorDType::F32,
        Kind::Half => TensorDType::F16,
        Kind::BFloat16 => TensorDType::Bf16,
        Kind::Int64 => TensorDType::I64,
        Kind::Int => TensorDType::I32,
        Kind::Int16 => TensorDType::I16,
        Kind::Int8 => TensorDType::I8,
        Kind::Uint8 => TensorDType::U8,
        Kind::Bool => TensorDType::Bool,
        _ => return None,
    })
}

/// Converts a checkpoint's dtype to a libtorch kind.
pub fn to_kind(dtype: TensorDType) -> Kind {
    match dtype {
        TensorDType::F64 => Kind::Double,
        TensorDType::F32 => Kind::Float,
        TensorDType::F16 => Kind::Half,
        TensorDType::Bf16 => Kind::BFloat16,
        TensorDType::I64 => Kind::Int64,
        TensorDType::I32 => Kind::Int,
        TensorDType::I16 => Kind::Int16,
        TensorDType::I8 => Kind::Int8,
        TensorDType::U8 => Kind::Uint8,
        TensorDType::Bool => Kind::Bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_map_both_ways_with_the_same_width() {
        use TensorDType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8};
        for dtype in [F64, F32, F16, Bf16, I64, I32, I16, I8, U8, Bool] {
            assert_eq!(of_kind(to_kind(dtype)), Some(dtype));
            assert_eq!(to_kind(dtype).elt_size_in_bytes() as u64, dtype.bytes());
        }
        assert_eq!(of_kind(Kind::ComplexFloat), None);
    }
}
