//! The inputs and outputs in the signature of a SavedModel.

use super::{GRAPH, SIGNATURE};
use crate::{ExportError, proto::Part};
use enn_common::fs::mmap::ReadMap;
use std::path::Path;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct TensorPort {
    /// Name in the signature.
    pub(super) name: String,
    /// Name in the graph, `node:0`.
    pub(super) tensor: String,
    /// Number of `DataType` in types.proto.
    pub(super) kind: u32,
}

/// Inputs and outputs in the file's order.
#[derive(Debug, PartialEq)]
pub(super) struct ServingSignature {
    pub(super) inputs: Vec<TensorPort>,
    pub(super) outputs: Vec<TensorPort>,
}

impl ServingSignature {
    /// Reads the signature of the SavedModel `dir`.
    ///
    /// # Errors
    /// There is no SavedModel, or it has no such signature.
    pub(super) fn read(dir: &Path) -> Result<Self, ExportError> {
        let path = dir.join(GRAPH);
        let file = ReadMap::open(&path)?;
        Self::parse(file.bytes()).ok_or_else(|| {
            let why = format!("it is damaged, or has no signature {SIGNATURE}");
            ExportError::refused("the reader of SavedModels", &path, why)
        })
    }

    pub(super) fn parse(file: &[u8]) -> Option<Self> {
        let meta = Part::of(file)?.parts(2)?.into_iter().next()?;
        let (_, found) = meta.entries(5)?.into_iter().find(|(name, _)| *name == SIGNATURE)?;
        Some(Self { inputs: ports(&found, 1)?, outputs: ports(&found, 2)? })
    }
}

fn ports(signature: &Part<'_>, field: u32) -> Option<Vec<TensorPort>> {
    let port = |(name, info): (&str, Part<'_>)| {
        let kind = u32::try_from(info.number(2)?).ok()?;
        Some(TensorPort { name: name.to_owned(), tensor: info.text(1)?.to_owned(), kind })
    };
    signature.entries(field)?.into_iter().map(port).collect()
}
