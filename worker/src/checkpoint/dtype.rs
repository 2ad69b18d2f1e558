//! Element types of checkpoints and of libtorch.

use enn_common::checkpoint::table::DType;
use tch::Kind;

/// The checkpoint's name of a libtorch kind; `None` for kinds no state of ours has (complex, quantised).
pub fn of_kind(kind: Kind) -> Option<DType> {
    Some(match kind {
        Kind::Double => DType::F64,
        Kind::Float => DType::F32,
        Kind::Half => DType::F16,
        Kind::BFloat16 => DType::Bf16,
        Kind::Int64 => DType::I64,
        Kind::Int => DType::I32,
        Kind::Int16 => DType::I16,
        Kind::Int8 => DType::I8,
        Kind::Uint8 => DType::U8,
        Kind::Bool => DType::Bool,
        _ => return None,
    })
}

/// Libtorch's kind of a checkpoint's element type.
pub fn to_kind(dtype: DType) -> Kind {
    match dtype {
        DType::F64 => Kind::Double,
        DType::F32 => Kind::Float,
        DType::F16 => Kind::Half,
        DType::Bf16 => Kind::BFloat16,
        DType::I64 => Kind::Int64,
        DType::I32 => Kind::Int,
        DType::I16 => Kind::Int16,
        DType::I8 => Kind::Int8,
        DType::U8 => Kind::Uint8,
        DType::Bool => Kind::Bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_map_both_ways_with_the_same_width() {
        use DType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8};
        for dtype in [F64, F32, F16, Bf16, I64, I32, I16, I8, U8, Bool] {
            assert_eq!(of_kind(to_kind(dtype)), Some(dtype));
            assert_eq!(to_kind(dtype).elt_size_in_bytes() as u64, dtype.bytes());
        }
        assert_eq!(of_kind(Kind::ComplexFloat), None);
    }
}
