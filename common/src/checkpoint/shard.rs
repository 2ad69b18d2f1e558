//! Writes one rank's shard: items behind each other, checksums computed from memory, one fsync at the end.
//!
//! **Invariant:** the file is never read back. What `finish` tells of it is what was handed to the system.

use super::{
    boxes::{Region, volume},
    item, name,
    table::{ItemKind, ShardItem, ShardTable, TensorDType},
    value::Value,
};
use crate::fs::{Disk, FileError, Storage, StorageFile};
use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

/// Longest name of a tensor or value, bytes.
pub const NAME_BYTES_MAX: usize = 4096;
pub const VALUE_BYTES_MAX: usize = 64 << 20;

/// Why an item could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("tensor {fqn}: {found} bytes were given, a box of size {sizes:?} and type {dtype:?} has {expected}")]
    Bytes { fqn: String, sizes: Vec<u64>, dtype: TensorDType, found: u64, expected: u64 },
    #[error("tensor {fqn}: the box at {offsets:?} of size {sizes:?} does not lie in the shape {global:?}")]
    Outside { fqn: String, offsets: Vec<u64>, sizes: Vec<u64>, global: Vec<u64> },
    #[error("{fqn} at {offsets:?} was already written to this shard")]
    Twice {
        fqn: String,
        /// Beginning of the box; empty for a value.
        offsets: Vec<u64>,
    },
    #[error("the {what} of {fqn}… has {found} bytes, at most {limit} are allowed")]
    TooLong {
        /// "name" or "value".
        what: &'static str,
        fqn: String,
        found: usize,
        limit: usize,
    },
}

/// A box of a tensor: what the bytes that are written mean.
#[derive(Debug, Clone, Copy)]
pub struct TensorBox<'a> {
    pub fqn: &'a str,
    pub dtype: TensorDType,
    /// Shape of the whole tensor.
    pub global: &'a [u64],
    pub offsets: &'a [u64],
    pub sizes: &'a [u64],
}

pub struct ShardWriter {
    file: Box<dyn StorageFile>,
    path: PathBuf,
    table: ShardTable,
    hasher: crc32fast::Hasher,
    seen: HashSet<(String, Vec<u64>)>,
}

impl ShardWriter {
    /// Begins `dir/__{rank}_0.distcp`. The directory is made when it is missing.
    pub fn create(dir: &Path, rank: u32) -> Result<Self, FileError> {
        Self::create_on(&Disk, dir, rank)
    }

    pub fn create_on(storage: &dyn Storage, dir: &Path, rank: u32) -> Result<Self, FileError> {
        storage.create_dir(dir)?;
        let name = name::shard(rank);
        let path = dir.join(&name);
        let file = storage.create(&path)?;
        let table = ShardTable { file: name, ..ShardTable::default() };
        Ok(Self { file, path, table, hasher: crc32fast::Hasher::new(), seen: HashSet::new() })
    }

    /// Writes a whole tensor: row-major elements in little-endian order.
    pub fn whole(&mut self, fqn: &str, dtype: TensorDType, shape: &[u64], bytes: &[u8]) -> Result<(), ShardError> {
        let zeros = vec![0; shape.len()];
        self.tensor(&TensorBox { fqn, dtype, global: shape, offsets: &zeros, sizes: shape }, bytes)
    }

    /// Writes a box of a tensor: row-major elements in little-endian order.
    pub fn tensor(&mut self, part: &TensorBox<'_>, bytes: &[u8]) -> Result<(), ShardError> {
        let fqn = part.fqn.to_owned();
        let sizes = part.sizes.to_vec();
        let region = Region { offsets: part.offsets.to_vec(), sizes: sizes.clone() };
        if !region.lies_in(part.global) {
            return Err(ShardError::Outside { fqn, offsets: region.offsets, sizes, global: part.global.to_vec() });
        }
        let expected = volume(part.sizes).unwrap_or(u64::MAX).saturating_mul(part.dtype.bytes());
        let found = bytes.len() as u64;
        if found != expected {
            return Err(ShardError::Bytes { fqn, sizes, dtype: part.dtype, found, expected });
        }
        self.claim(part.fqn, part.offsets)?;
        let crc32 = crc32fast::hash(bytes);
        let around = item::tensor(self.table.bytes, part.dtype, part.sizes, found, crc32);
        let kind =
            ItemKind::Tensor { dtype: part.dtype, global: part.global.to_vec(), offsets: region.offsets, sizes, crc32 };
        self.put(fqn, kind, &[&around.head, bytes, &around.tail])
    }

    pub fn value(&mut self, fqn: &str, value: &Value) -> Result<(), ShardError> {
        self.claim(fqn, &[])?;
        let (bytes, crc32) = item::value(self.table.bytes, value);
        let found = bytes.len();
        if found > VALUE_BYTES_MAX {
            let fqn = fqn.to_owned();
            return Err(ShardError::TooLong { what: "value", fqn, found, limit: VALUE_BYTES_MAX });
        }
        self.put(fqn.to_owned(), ItemKind::Value { crc32 }, &[&bytes])
    }

    /// Makes the file durable and tells what is in it.
    pub fn finish(mut self) -> Result<ShardTable, ShardError> {
        self.file.sync()?;
        self.table.crc32 = Some(self.hasher.finalize());
        Ok(self.table)
    }

    /// The file being written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn claim(&mut self, fqn: &str, offsets: &[u64]) -> Result<(), ShardError> {
        if fqn.len() > NAME_BYTES_MAX {
            let start = fqn.chars().take(40).collect();
            let limit = NAME_BYTES_MAX;
            return Err(ShardError::TooLong { what: "name", fqn: start, found: fqn.len(), limit });
        }
        if !self.seen.insert((fqn.to_owned(), offsets.to_vec())) {
            return Err(ShardError::Twice { fqn: fqn.to_owned(), offsets: offsets.to_vec() });
        }
        Ok(())
    }

    fn put(&mut self, fqn: String, kind: ItemKind, parts: &[&[u8]]) -> Result<(), ShardError> {
        let offset = self.table.bytes;
        self.file.write_at(offset, parts)?;
        let mut length = 0;
        for part in parts {
            self.hasher.update(part);
            length += part.len() as u64;
        }
        self.table.bytes += length;
        self.table.items.push(ShardItem { fqn, offset, length, kind });
        Ok(())
    }
}
