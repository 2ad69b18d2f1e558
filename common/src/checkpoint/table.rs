//! What a rank says of the shard file it wrote: enough to write `.metadata` without reading the file.

use super::metadata::MergeError;
use crate::fs::RelPath;
use serde::{Deserialize, Serialize};

/// Items of one rank's `.distcp` file, in file order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ShardTable {
    /// File name inside the checkpoint directory, `__{rank}_0.distcp`.
    pub file: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// blake3 of the file, hex, where one was asked for; else empty.
    pub blake3: String,
    /// CRC-32 of the file, computed while writing; `None` where nobody computed it.
    pub crc32: Option<u32>,
    pub items: Vec<ShardItem>,
}

impl ShardTable {
    /// The file, checked: a rank says it in a message.
    ///
    /// # Errors
    /// When it is not the name of a file in the checkpoint's directory.
    pub fn path(&self) -> Result<RelPath, MergeError> {
        let path = RelPath::parse(self.file.as_str()).ok().filter(RelPath::is_name);
        path.ok_or_else(|| MergeError::FileName { file: self.file.clone() })
    }
}

/// One item: a box of a tensor, or a plain value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardItem {
    /// Fully qualified name, e.g. "model.fuser.latents" or "optim.state.fuser.latents.exp_avg".
    pub fqn: String,
    /// Offset of the item in the file.
    pub offset: u64,
    /// Length of the item in the file.
    pub length: u64,
    pub kind: ItemKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ItemKind {
    /// A box of a tensor.
    Tensor {
        dtype: TensorDType,
        /// Shape of the whole tensor.
        global: Vec<u64>,
        /// Where the box begins.
        offsets: Vec<u64>,
        /// Size of the box.
        sizes: Vec<u64>,
        /// CRC-32 of the payload.
        crc32: u32,
    },
    /// A pickled plain value.
    Value {
        /// CRC-32 of the pickle.
        crc32: u32,
    },
}

/// Element types that cross the boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorDType {
    F64,
    F32,
    F16,
    Bf16,
    /// Signed 64-bit.
    I64,
    /// Signed 32-bit.
    I32,
    /// Signed 16-bit.
    I16,
    /// Signed 8-bit.
    I8,
    /// Unsigned 8-bit.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl TensorDType {
    /// Bytes per element.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    pub const ALL: &'static [Self] =
        &[Self::F64, Self::F32, Self::F16, Self::Bf16, Self::I64, Self::I32, Self::I16, Self::I8, Self::U8, Self::Bool];

    /// PyTorch's name: `float32` as in `torch.float32`.
    pub fn torch(self) -> &'static str {
        match self {
            Self::F64 => "float64",
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
            Self::I64 => "int64",
            Self::I32 => "int32",
            Self::I16 => "int16",
            Self::I8 => "int8",
            Self::U8 => "uint8",
            Self::Bool => "bool",
        }
    }

    /// PyTorch's storage class: `FloatStorage` as in `torch.FloatStorage`.
    pub fn storage(self) -> &'static str {
        match self {
            Self::F64 => "DoubleStorage",
            Self::F32 => "FloatStorage",
            Self::F16 => "HalfStorage",
            Self::Bf16 => "BFloat16Storage",
            Self::I64 => "LongStorage",
            Self::I32 => "IntStorage",
            Self::I16 => "ShortStorage",
            Self::I8 => "CharStorage",
            Self::U8 => "ByteStorage",
            Self::Bool => "BoolStorage",
        }
    }

    /// The element type with PyTorch's name, `None` for one that does not cross the boundary (float8, complex, …).
    pub fn of_torch(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.torch() == name)
    }

    /// The element type with PyTorch's storage class.
    pub fn of_storage(class: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.storage() == class)
    }
}
