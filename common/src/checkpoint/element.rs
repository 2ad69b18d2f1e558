//! Element types as the formats know them. `TensorDType` is the part of them that ENN computes with; the others are carried along.

use super::table::TensorDType;

/// An element type of PyTorch's, with its names in the formats.
#[derive(Debug, Clone, Copy)]
pub struct Element {
    torch: &'static str,
    bytes: u64,
    /// Storage class of a pickle; `UNTYPED`: the pickle names the element type beside it.
    storage: &'static str,
    safetensors: Option<&'static str>,
}

/// A storage that counts bytes.
pub(super) const UNTYPED: &str = "UntypedStorage";

const fn row(torch: &'static str, bytes: u64, storage: &'static str, safetensors: Option<&'static str>) -> Element {
    Element { torch, bytes, storage, safetensors }
}

/// All of them. Quantized types and those smaller than a byte are none of PyTorch's checkpoints.
const ALL: &[Element] = &[
    row("float64", 8, "DoubleStorage", Some("F64")),
    row("float32", 4, "FloatStorage", Some("F32")),
    row("float16", 2, "HalfStorage", Some("F16")),
    row("bfloat16", 2, "BFloat16Storage", Some("BF16")),
    row("int64", 8, "LongStorage", Some("I64")),
    row("int32", 4, "IntStorage", Some("I32")),
    row("int16", 2, "ShortStorage", Some("I16")),
    row("int8", 1, "CharStorage", Some("I8")),
    row("uint8", 1, "ByteStorage", Some("U8")),
    row("bool", 1, "BoolStorage", Some("BOOL")),
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
        TensorDType::of_torch(self.torch)
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
        let own = row(dtype.torch(), dtype.bytes(), dtype.storage(), None);
        Self::of_torch(own.torch).unwrap_or(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_ours_is_one_of_theirs() {
        for &dtype in TensorDType::ALL {
            let element = Element::from(dtype);
            assert_eq!(
                (element.torch(), element.bytes(), element.storage()),
                (dtype.torch(), dtype.bytes(), dtype.storage())
            );
            assert_eq!(element.dtype(), Some(dtype));
            assert_eq!(Element::of_safetensors(element.safetensors().unwrap()), Some(element));
            assert_eq!(Element::of_storage(dtype.storage()), Some(element));
        }
        assert_eq!(Element::of_torch("float8_e5m2").unwrap().dtype(), None);
        assert_eq!(Element::of_storage(UNTYPED), None);
    }
}
