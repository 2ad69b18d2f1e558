//! What `.metadata` says: every tensor with its shape and chunks, every value, and where their items are.

mod error;
mod read;
mod write;

use super::{
    boxes::{CoverageError, Region, check_coverage},
    element::Element,
    table::{ItemKind, ShardItem, ShardTable, TensorDType},
};
use crate::fs::RelPath;
use std::collections::{BTreeMap, HashMap, HashSet};

pub use error::{MergeError, MetadataError};

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata {
    /// Tensors by fully qualified name.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// Plain values by fully qualified name.
    pub values: BTreeMap<String, StoredPlace>,
    /// Where names go when the checkpoint becomes nested dictionaries and lists again, as far as the file says it.
    pub paths: BTreeMap<String, Vec<PathPart>>,
}

/// A step from a container to what is in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathPart {
    /// Key of a dictionary.
    Key(String),
    /// Key of a dictionary that is a number, as an optimizer's state has; DCP has it as text.
    Number(i64),
    /// Place in a list.
    Index(u64),
}

/// A tensor and the chunks that make it up.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorEntry {
    /// PyTorch's name of the element type: "float32".
    pub dtype: String,
    /// Shape of the whole.
    pub shape: Vec<u64>,
    /// Chunks in no particular order.
    pub chunks: Vec<StoredChunk>,
}

/// A box of a tensor and where it is.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredChunk {
    pub region: Region,
    pub place: StoredPlace,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StoredPlace {
    /// File, relative to the checkpoint's directory.
    pub file: RelPath,
    pub offset: u64,
    pub length: u64,
    /// Transformations that were applied when writing ("stream.zstd/1"); none in what we write.
    pub transforms: Vec<String>,
}

impl TensorEntry {
    /// The element type; `None` when it is one that we do not read.
    pub fn dtype(&self) -> Option<TensorDType> {
        TensorDType::of_torch(&self.dtype)
    }

    /// The element type, also one that ENN only carries along; `None` when no format of ours knows it.
    pub fn element(&self) -> Option<Element> {
        Element::of_torch(&self.dtype)
    }

    /// Says whether the chunks tile the shape.
    pub fn check_coverage(&self) -> Result<(), CoverageError> {
        check_coverage(&self.shape, self.chunks.iter().map(|chunk| &chunk.region))
    }
}

impl Metadata {
    /// Puts the tables of all ranks together and checks that every tensor is covered exactly once.
    pub fn merge(tables: &[ShardTable]) -> Result<Self, MergeError> {
        let mut merged = Self::default();
        // Every rank has a chunk of most tensors.
        let mut tensors = HashMap::new();
        let mut files = HashSet::new();
        for table in tables {
            let file = table.path()?;
            if !files.insert(file.clone()) {
                return Err(MergeError::SameFile { file: table.file.clone() });
            }
            for item in &table.items {
                merged.add(&mut tensors, &file, item)?;
            }
        }
        merged.tensors = tensors.into_iter().map(|(fqn, tensor)| (fqn.to_owned(), tensor)).collect();
        merged.tensors.values_mut().for_each(TensorEntry::settle);
        for (fqn, tensor) in &merged.tensors {
            let clash = merged.values.get(fqn);
            if let Some(place) = clash {
                return Err(MergeError::Twice { fqn: fqn.clone(), file: place.file.to_string() });
            }
            let wrong = |error| MergeError::Coverage { fqn: fqn.clone(), source: Box::new(error) };
            tensor.check_coverage().map_err(wrong)?;
        }
        Ok(merged)
    }

    /// Adds what another rank says of its own files. Copies of the same chunk or value count once.
    pub(super) fn absorb(&mut self, other: Self) -> Result<(), MetadataError> {
        for (fqn, tensor) in other.tensors {
            let Some(known) = self.tensors.get_mut(&fqn) else {
                self.tensors.insert(fqn, tensor);
                continue;
            };
            if (&known.dtype, &known.shape) != (&tensor.dtype, &tensor.shape) {
                return Err(MetadataError::Disagree { name: fqn });
            }
            for chunk in tensor.chunks {
                if known.chunks.iter().all(|have| have.region != chunk.region) {
                    known.chunks.push(chunk);
                }
            }
        }
        for (fqn, place) in other.values {
            self.values.entry(fqn).or_insert(place);
        }
        self.paths.extend(other.paths);
        Ok(())
    }

    fn add<'a>(
        &mut self,
        tensors: &mut HashMap<&'a str, TensorEntry>,
        file: &RelPath,
        item: &'a ShardItem,
    ) -> Result<(), MergeError> {
        let fqn = &item.fqn;
        let place =
            StoredPlace { file: file.clone(), offset: item.offset, length: item.length, transforms: Vec::new() };
        let ItemKind::Tensor { dtype, global, offsets, sizes, .. } = &item.kind else {
            let twice = self.values.insert(fqn.clone(), place).is_some();
            let error = || MergeError::Twice { fqn: fqn.clone(), file: file.to_string() };
            return if twice { Err(error()) } else { Ok(()) };
        };
        let chunk = StoredChunk { region: Region { offsets: offsets.clone(), sizes: sizes.clone() }, place };
        let dtype = dtype.torch();
        let Some(known) = tensors.get_mut(fqn.as_str()) else {
            let entry = TensorEntry { dtype: dtype.to_owned(), shape: global.clone(), chunks: vec![chunk] };
            tensors.insert(fqn, entry);
            return Ok(());
        };
        if known.dtype != dtype || &known.shape != global {
            return Err(MergeError::Disagree {
                fqn: fqn.clone(),
                file: file.to_string(),
                found: format!("{dtype} {global:?}"),
                expected: format!("{} {:?}", known.dtype, known.shape),
            });
        }
        known.chunks.push(chunk);
        Ok(())
    }

    pub fn tensor_bytes(&self) -> u64 {
        let bytes = |tensor: &TensorEntry| {
            Region::whole(&tensor.shape).volume().saturating_mul(tensor.element().map_or(0, Element::bytes))
        };
        self.tensors.values().map(bytes).fold(0, u64::saturating_add)
    }
}

impl TensorEntry {
    /// Chunks are found by their offsets, so an empty one gives way to one that holds something, and one empty is enough.
    fn settle(&mut self) {
        if self.chunks.iter().all(|chunk| chunk.region.volume() > 0) {
            return;
        }
        let filled = self.chunks.iter().filter(|chunk| chunk.region.volume() > 0);
        let mut taken: HashSet<Vec<u64>> = filled.map(|chunk| chunk.region.offsets.clone()).collect();
        self.chunks.retain(|chunk| chunk.region.volume() > 0 || taken.insert(chunk.region.offsets.clone()));
    }
}

#[cfg(test)]
mod tests;
