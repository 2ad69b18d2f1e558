//! The file of weights, version 2: a header, then blobs, each after a header of its own.
//!
//! ```text
//! 0     u32 number of blobs, u32 version 2, zeros to 64
//! 64·k  u32 0xDEADBEEF, u32 element type, u64 bytes, u64 where the elements begin, u64 unused bits at the end, zeros to 64
//!       the elements, and zeros to a multiple of 64 unless they are the last
//! ```

use super::mil::MilKind;
use crate::ExportError;
use enn_common::{
    fs::{Disk, Storage},
    graph::{DType, GraphValue},
};
use std::{borrow::Cow, path::Path};

/// Alignment of everything in the file; also the size of the header and of a blob's header.
pub(super) const ALIGN: u64 = 64;
pub(super) const VERSION: u32 = 2;
/// First word of a blob's header.
pub(super) const MARK: u32 = 0xDEAD_BEEF;
/// Smallest number of elements in the file; smaller values are part of the program.
const ELEMENTS_MIN: u64 = 10;

#[derive(Debug)]
pub(super) struct Weights<'a> {
    blobs: Vec<Blob<'a>>,
    end: u64,
}

#[derive(Debug)]
struct Blob<'a> {
    value: &'a GraphValue,
    element: u32,
    at: u64,
    bytes: u64,
}

impl<'a> Weights<'a> {
    pub(super) fn new() -> Self {
        Self { blobs: Vec::new(), end: ALIGN }
    }

    /// Returns the offset of a known value's elements, if they belong into the file.
    pub(super) fn place(&mut self, value: &'a GraphValue) -> Option<u64> {
        let kind = MilKind::of(value.dtype);
        let count = enn_common::graph::numel(&value.shape);
        let element = kind.stored().filter(|_| count >= ELEMENTS_MIN)?;
        let at = self.end.next_multiple_of(ALIGN);
        let bytes = count * kind.bytes();
        self.blobs.push(Blob { value, element, at, bytes });
        self.end = at + ALIGN + bytes;
        Some(at)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blobs.is_empty()
    }

    /// Writes the file; returns its digest.
    pub(super) fn write(&self, path: &Path) -> Result<blake3::Hash, ExportError> {
        let mut hasher = blake3::Hasher::new();
        let file = Disk.create_sized(path, self.end)?;
        let mut end = 0;
        let mut put = |at: u64, bytes: &[u8]| {
            let gap = vec![0; (at - end) as usize];
            hasher.update(&gap).update(bytes);
            let written = file.write_at(end, &[&gap, bytes]);
            end = at + bytes.len() as u64;
            written
        };
        put(0, &block(&[&(self.blobs.len() as u32).to_le_bytes(), &VERSION.to_le_bytes()]))?;
        for blob in &self.blobs {
            let head: [&[u8]; 4] = [
                &MARK.to_le_bytes(),
                &blob.element.to_le_bytes(),
                &blob.bytes.to_le_bytes(),
                &(blob.at + ALIGN).to_le_bytes(),
            ];
            put(blob.at, &block(&head))?;
            put(blob.at + ALIGN, &elements(blob.value))?;
        }
        file.sync()?;
        Ok(hasher.finalize())
    }
}

fn block(parts: &[&[u8]]) -> Vec<u8> {
    let mut block = parts.concat();
    block.resize(ALIGN as usize, 0);
    block
}

/// Returns the elements of a known value as they are stored: bf16 as f32.
pub(super) fn elements(value: &GraphValue) -> Cow<'_, [u8]> {
    let bytes: &[u8] = value.data.as_ref().map_or(&[], |data| &data.bytes);
    match value.dtype {
        DType::Bf16 => bytes.chunks_exact(2).flat_map(|half| [0, 0, half[0], half[1]]).collect(),
        _ => bytes.into(),
    }
}
