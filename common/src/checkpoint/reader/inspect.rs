//! Looks at every item of a checkpoint without keeping it, and finds all that is wrong instead of the first.

use super::{Checkpoint, CopyError, ReadError, check_coverage, check_file};
use crate::{
    checkpoint::{
        element::Element,
        mention::{Mention, Mentions},
        metadata::{MetadataError, StoredChunk, TensorEntry},
        name,
        stored::{ItemError, PICKLE_BYTES_MAX, StoredItem},
        unpickle::UnpickleError,
    },
    fs::{FileError, RelPath},
};
use std::{collections::BTreeSet, os::unix::fs::FileExt, path::PathBuf};

/// Bytes looked at together.
const BLOCK_BYTES: u64 = 1 << 20;

#[derive(Debug, Default)]
pub struct Inspection {
    pub problems: Vec<ReadError>,
    /// Chunks and values whose bytes were compared with a checksum.
    pub checked: u64,
    /// Chunks and values that carry no checksum: PyTorch was told not to compute one.
    pub unchecked: u64,
    /// Globals in values that are no part of a checkpoint, by their names.
    pub mentions: Vec<(String, Mentions)>,
    /// Files of the directory that belong to no tensor and no value.
    pub unlisted: Vec<String>,
}

impl ReadError {
    /// The class or function for which a pickle was refused.
    pub fn refused_mention(&self) -> Option<Mention> {
        let pickle = match self {
            Self::Metadata { source: MetadataError::Pickle(error), .. } => error,
            Self::Item { source: ItemError::Pickle(error), .. } => error,
            _ => return None,
        };
        let UnpickleError::Global { module, name, at } = pickle else { return None };
        Some(Mention { module: module.clone(), name: name.clone(), at: *at })
    }

    /// Whether it is of a kind that is not read, and not damaged.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Item { source: ItemError::Unsupported { .. }, .. })
    }
}

impl Checkpoint {
    /// Reads all files and compares their digests with the manifest's. `progress` gets the bytes read since the last call.
    pub fn inspect_files(&self, progress: &mut dyn FnMut(u64)) -> Vec<ReadError> {
        let mut problems = Vec::new();
        for file in self.manifest.iter().flat_map(|manifest| &manifest.files) {
            let checked = file.path.locate(&self.dir).map_err(ReadError::from);
            problems.extend(checked.and_then(|path| check_file(&path, file, progress)).err());
        }
        problems
    }

    /// Reads all items: the coverage of every tensor, and every chunk and value against its own checksum.
    pub fn inspect(&self, progress: &mut dyn FnMut(u64)) -> Inspection {
        let mut found = Inspection::default();
        let mut note = |result: Result<bool, ReadError>| match result {
            Ok(true) => found.checked += 1,
            Ok(false) => found.unchecked += 1,
            Err(error) => found.problems.push(error),
        };
        for (fqn, entry) in &self.metadata.tensors {
            if let Err(error) = check_coverage(&self.dir, fqn, entry) {
                note(Err(error));
            }
            for chunk in &entry.chunks {
                let wrong = |error| self.copy_error(fqn, &chunk.place, error);
                note(self.inspect_chunk(entry, chunk, progress).map_err(wrong));
            }
        }
        let mut mentions = Vec::new();
        for (fqn, place) in &self.metadata.values {
            note(self.item(fqn).map(|(bytes, _)| {
                progress(bytes.len() as u64);
                place.length > 0
            }));
            // What cannot be opened was noted.
            let mentioned = self.open_item(place, PICKLE_BYTES_MAX).ok().and_then(|(file, place)| {
                StoredItem::open(&file.0, file.1, &place).and_then(|item| item.mentions()).ok()
            });
            mentions.extend(mentioned.filter(|found| *found != Mentions::default()).map(|found| (fqn.clone(), found)));
        }
        found.mentions = mentions;
        found.unlisted = self.unlisted();
        found
    }

    /// Reads a tensor and compares it with its checksums, without keeping it.
    pub(in crate::checkpoint) fn check_tensor(&self, fqn: &str) -> Result<(), ReadError> {
        let entry = self.entry(fqn)?;
        check_coverage(&self.dir, fqn, entry)?;
        for chunk in &entry.chunks {
            let checked = self.inspect_chunk(entry, chunk, &mut |_| {});
            checked.map_err(|error| self.copy_error(fqn, &chunk.place, error))?;
        }
        Ok(())
    }

    /// Whether the bytes of a chunk have a checksum. They are those of it, or it is an error.
    fn inspect_chunk(
        &self,
        entry: &TensorEntry,
        chunk: &StoredChunk,
        progress: &mut dyn FnMut(u64),
    ) -> Result<bool, CopyError> {
        let (file, stored) = self.open_tensor(chunk, &entry.dtype, entry.element().map_or(16, Element::bytes))?;
        let mut hasher = crc32fast::Hasher::new();
        let mut at = 0;
        let mut block = vec![0; usize::try_from(BLOCK_BYTES.min(stored.bytes)).unwrap_or_default()];
        while at < stored.bytes {
            let count = usize::try_from(stored.bytes - at).unwrap_or(usize::MAX).min(block.len());
            file.0.read_exact_at(&mut block[..count], stored.at + at).map_err(ItemError::Io)?;
            hasher.update(&block[..count]);
            at += count as u64;
            progress(count as u64);
        }
        let found = hasher.finalize();
        let expected = self.expected(&chunk.place).or((stored.crc32 != 0).then_some(stored.crc32));
        match expected {
            Some(expected) if expected != found => Err(ItemError::Checksum { found, expected }.into()),
            expected => Ok(expected.is_some() || stored.bytes == 0),
        }
    }

    fn unlisted(&self) -> Vec<String> {
        let known = self.listed();
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| {
            let name = entry.file_name().to_str()?.to_owned();
            // A thread of PyTorch's that had nothing to write leaves an empty file.
            (entry.metadata().ok()?.len() > 0).then_some(name)
        });
        let mut found: Vec<String> = names
            .filter(|found| found.ends_with(name::SHARD_END) && known.iter().all(|known| **known != *found.as_str()))
            .collect();
        found.sort();
        found
    }

    /// Files that were written after the metadata which lists them, a sentence each, where no manifest says what is in them: PyTorch
    /// writes the metadata last, and nothing else says of which save a file is.
    pub fn suspicions(&self) -> Vec<String> {
        let modified = |path: PathBuf| std::fs::metadata(path).and_then(|found| found.modified()).ok();
        let Some(listed) = modified(self.dir.join(name::METADATA)).filter(|_| self.manifest.is_none()) else {
            return Vec::new();
        };
        let is_newer = |file: &&RelPath| modified(file.below(&self.dir)).is_some_and(|written| written > listed);
        let newer = self.listed().into_iter().filter(is_newer);
        newer.map(|file| format!("{file} was written after .metadata: by a save that did not end, or a copy")).collect()
    }

    /// Files that hold tensors or values.
    fn listed(&self) -> BTreeSet<&RelPath> {
        let chunks = self.metadata.tensors.values().flat_map(|tensor| tensor.chunks.iter().map(|chunk| &chunk.place));
        chunks.chain(self.metadata.values.values()).map(|place| &place.file).collect()
    }

    /// Bytes of all files that hold tensors or values.
    pub fn file_bytes(&self) -> Result<u64, FileError> {
        self.listed().into_iter().try_fold(0, |sum, file| {
            let path = file.locate(&self.dir)?;
            Ok(sum + std::fs::metadata(&path).map_err(FileError::of("look at", &path))?.len())
        })
    }
}
