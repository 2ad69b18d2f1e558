//! Element types as the formats know them. `TensorDType` is the part of them that ENN computes with; the others are carried along.

use serde::{Deserialize, Serialize};

/// An element type of PyTorch's, with its names in the formats.
#[derive(Debug, Clone, Copy)]
pub struct Element {
    torch: &'static str,
    bytes: u64,
    /// Storage class of a pickle; `UNTYPED`: the pickle names the element type beside it.
    storage: &'static str,
    safetensors: Option<&'static str>,
    dtype: Option<TensorDType>,
}

/// A storage that counts bytes.
pub(super) const UNTYPED: &str = "UntypedStorage";

const fn row(torch: &'static str, bytes: u64, storage: &'static str, safetensors: Option<&'static str>) -> Element {
    Element { torch, bytes, storage, safetensors, dtype: None }
}

/// A type that ENN computes with.
const fn own(dtype: TensorDType, element: Element) -> Element {
    Element { dtype: Some(dtype), ..element }
}

/// All of them. Quantized types and those smaller than a byte are none of PyTorch's checkpoints.
const ALL: &[Element] = &[
    own(TensorDType::F64, row("float64", 8, "DoubleStorage", Some("F64"))),
    own(TensorDType::F32, row("float32", 4, "FloatStorage", Some("F32"))),
    own(TensorDType::F16, row("float16", 2, "HalfStorage", Some("F16"))),
    own(TensorDType::Bf16, row("bfloat16", 2, "BFloat16Storage", Some("BF16"))),
    own(TensorDType::I64, row("int64", 8, "LongStorage", Some("I64"))),
    own(TensorDType::I32, row("int32", 4, "IntStorage", Some("I32"))),
    own(TensorDType::I16, row("int16", 2, "ShortStorage", Some("I16"))),
    own(TensorDType::I8, row("int8", 1, "CharStorage", Some("I8"))),
    own(TensorDType::U8, row("uint8", 1, "ByteStorage", Some("U8"))),
    own(TensorDType::Bool, row("bool", 1, "BoolStorage", Some("BOOL"))),
    row("uint16", 2, UNTYPED, Some("U16")),
    row("uint32", 4, UNTYPED, Some("U32")),
    row("uint64", 8, UNTYPED, Some("U64")),
    row("float8_e4m3fn", 1, UNTYPED, Some("F8_E4M3")),
    row("float8_e5m2", 1, UNTYPED, Some("F8_E5M2")),
    row("float8_e4m3fnuz", 1, UNTYPED, Some("F8_E4M3FNUZ")),
    row("float8_e5m2fnuz", 1, UNTYPED, Some("F8_E5M2FNUZ")),
    row("float8_e8m0fnu", 1, UNTYPED, Some("F8_E8M0")),
    row("float4_e2m1fn_x2", 1, UNTYPED, Some("F4")),
    row("complex32", 4, UNTYPED, None),
    row("complex64", 8, "ComplexFloatStorage", Some("C64")),
    row("complex128", 16, "ComplexDoubleStorage", None),
];

impl Element {
    /// The element type with PyTorch's name.
    pub fn of_torch(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|element| element.torch == name)
    }

    /// The element type with the name in a safetensors header.
    pub fn of_safetensors(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|element| element.safetensors == Some(name))
    }

    /// The element type with PyTorch's storage class.
    pub(super) fn of_storage(class: &str) -> Option<Self> {
        ALL.iter().copied().find(|element| element.storage == class && class != UNTYPED)
    }

    /// PyTorch's name: `float32` as in `torch.float32`.
    pub fn torch(self) -> &'static str {
        self.torch
    }

    /// The name in a safetensors header; `None` where the format has none.
    pub fn safetensors(self) -> Option<&'static str> {
        self.safetensors
    }

    /// Numbers in an element: where there are several, the format of safetensors counts them along the last axis, PyTorch elements.
    pub fn packed(self) -> u64 {
        if self.torch.ends_with("_x2") { 2 } else { 1 }
    }

    pub(super) fn storage(self) -> &'static str {
        self.storage
    }

    /// Bytes per element.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns the type that ENN computes with.
    pub fn dtype(self) -> Option<TensorDType> {
        self.dtype
    }
}

impl PartialEq for Element {
    fn eq(&self, other: &Self) -> bool {
        self.torch == other.torch
    }
}

impl Eq for Element {}

impl From<TensorDType> for Element {
    fn from(dtype: TensorDType) -> Self {
        let own = ALL.iter().copied().find(|element| element.dtype == Some(dtype));
        own.expect("every type that ENN computes with has a row")
    }
}

/// Element types that cross the boundary: those that ENN computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorDType {
    F64,
    F32,
    F16,
    Bf16,
    I64,
    I32,
    I16,
    I8,
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl TensorDType {
    pub const ALL: &'static [Self] =
        &[Self::F64, Self::F32, Self::F16, Self::Bf16, Self::I64, Self::I32, Self::I16, Self::I8, Self::U8, Self::Bool];

    /// Bytes per element.
    pub fn bytes(self) -> u64 {
        Element::from(self).bytes
    }

    /// PyTorch's name: `float32` as in `torch.float32`.
    pub fn torch(self) -> &'static str {
        Element::from(self).torch
    }

    /// The element type with PyTorch's name, `None` for one that does not cross the boundary (float8, complex, …).
    pub fn of_torch(name: &str) -> Option<Self> {
        Element::of_torch(name)?.dtype
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_ours_is_one_of_theirs() {
        for &dtype in TensorDType::ALL {
            let element = Element::from(dtype);
            assert_eq!((element.torch(), element.bytes()), (dtype.torch(), dtype.bytes()));
            assert_eq!(element.dtype(), Some(dtype));
            assert_eq!(Element::of_safetensors(element.safetensors().unwrap()), Some(element));
            assert_eq!(Element::of_storage(element.storage()), Some(element));
        }
        assert_eq!(Element::of_torch("float8_e5m2").unwrap().dtype(), None);
        assert_eq!(Element::of_storage(UNTYPED), None);
    }
}
