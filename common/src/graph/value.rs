//! Values of a graph: element type, shape, and the elements of those that are known beforehand.

use super::dim::Dim;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DType {
    F32,
    F16,
    /// The upper half of a single.
    Bf16,
    /// Integers: positions and categories.
    I64,
    /// Truth values, a byte each, 0 or 1.
    Bool,
}

impl DType {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Bool => 1,
        }
    }

    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Whether it is a float of two bytes.
    pub const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I64 => "i64",
            Self::Bool => "bool",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Known {
    /// Was trained; its name is that of the state dict.
    Parameter,
    /// Belongs to the model, was not trained.
    Buffer,
    /// Follows from the graph, e.g. a mask.
    Constant,
}

/// A tensor that is known beforehand: row-major, little-endian.
#[derive(Debug, Clone, PartialEq)]
pub struct Data {
    pub known: Known,
    pub bytes: Arc<[u8]>,
}

/// A value: an input, a known tensor, or the result of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphValue {
    /// Unique in its graph; of a parameter the state dict's name, of an input or output the port's.
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<Dim>,
    /// Elements of a known tensor.
    pub data: Option<Data>,
}

impl GraphValue {
    /// Known elements as f32.
    ///
    /// # Panics
    /// When they are not known, or no f32.
    pub fn floats(&self) -> Vec<f32> {
        assert_eq!(self.dtype, DType::F32, "{} is no f32", self.name);
        let data = self.data.as_ref().expect("known elements");
        data.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    /// Known elements as i64.
    ///
    /// # Panics
    /// When they are not known, or no i64.
    pub fn integers(&self) -> Vec<i64> {
        assert_eq!(self.dtype, DType::I64, "{} is no i64", self.name);
        let data = self.data.as_ref().expect("known elements");
        data.bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes"))).collect()
    }

    /// The sizes, where none is open.
    pub fn fixed(&self) -> Option<Vec<u64>> {
        self.shape.iter().map(|dim| dim.fixed()).collect()
    }
}
