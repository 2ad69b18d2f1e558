//! What a rank says of the shard file it wrote: enough to write `.metadata` without reading the file.

pub use super::element::TensorDType;

use super::metadata::MergeError;
use crate::fs::RelPath;
use serde::{Deserialize, Serialize};

/// Items of one rank's `.distcp` file, in file order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ShardTable {
    /// File name inside the checkpoint directory, `__{rank}_0.distcp`.
    pub file: String,
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
    pub offset: u64,
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
        offsets: Vec<u64>,
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
