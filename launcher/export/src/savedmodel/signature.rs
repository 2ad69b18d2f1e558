//! The inputs and outputs in the signature of a SavedModel.

use super::{GRAPH, SIGNATURE};
use crate::{
    ExportError,
    proto::{Field, fields},
};
use enn_common::fs::mmap::ReadMap;
use std::path::Path;

/// An input or output.
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
        Self::parse(file.bytes()).ok_or_else(|| ExportError::Refused {
            what: "the reader of SavedModels",
            path,
            why: format!("it is damaged, or has no signature {SIGNATURE}"),
        })
    }

    /// Parses a file's bytes.
    pub(super) fn parse(file: &[u8]) -> Option<Self> {
        let meta = messages(file, 2)?.into_iter().next()?;
        let entries = messages(meta, 5)?;
        let found = entries.into_iter().find(|entry| text(entry, 1).as_deref() == Some(SIGNATURE))?;
        let signature = messages(found, 2)?.into_iter().next()?;
        Some(Self { inputs: ports(signature, 1)?, outputs: ports(signature, 2)? })
    }
}

fn ports(signature: &[u8], field: u32) -> Option<Vec<TensorPort>> {
    let port = |entry: &[u8]| {
        let info = messages(entry, 2)?.into_iter().next()?;
        let kind = fields(info)?.into_iter().find_map(|(number, value)| match value {
            Field::Number(kind) if number == 2 => u32::try_from(kind).ok(),
            _ => None,
        })?;
        Some(TensorPort { name: text(entry, 1)?, tensor: text(info, 1)?, kind })
    };
    messages(signature, field)?.into_iter().map(port).collect()
}

/// Returns the messages of a field.
fn messages(of: &[u8], field: u32) -> Option<Vec<&[u8]>> {
    let messages = fields(of)?.into_iter().filter_map(|(number, value)| match value {
        Field::Bytes(bytes) if number == field => Some(bytes),
        _ => None,
    });
    Some(messages.collect())
}

fn text(of: &[u8], field: u32) -> Option<String> {
    let bytes = messages(of, field)?.into_iter().next()?;
    Some(std::str::from_utf8(bytes).ok()?.to_owned())
}
