//! Writes a checkpoint directory from tensors of any element type and from items as they were found: conversions.
//!
//! **Invariant:** the directory becomes a checkpoint only by the caller's rename; every byte in it is durable before `finish`
//! returns.

use super::{
    boxes::Region,
    element::Element,
    item,
    manifest::{Draft, FileEntry, Manifest},
    metadata::{Metadata, PathPart, StoredChunk, StoredPlace, TensorEntry},
    name,
    value::Value,
};
use crate::{
    artifact::seal::{self, SealError},
    fs::{FileError, Storage, StorageFile},
};
use std::path::{Path, PathBuf};

pub struct DirectoryWriter<'a> {
    storage: &'a dyn Storage,
    dir: PathBuf,
    shard_bytes: u64,
    shard: Option<Shard>,
    files: Vec<FileEntry>,
    metadata: Metadata,
}

/// The file that grows.
struct Shard {
    file: Box<dyn StorageFile>,
    entry: FileEntry,
    hasher: blake3::Hasher,
}

impl<'a> DirectoryWriter<'a> {
    /// Begins a directory. A file that has `shard_bytes` is followed by another one.
    pub fn create(storage: &'a dyn Storage, dir: &Path, shard_bytes: u64) -> Result<Self, FileError> {
        storage.create_dir(dir)?;
        let dir = dir.to_path_buf();
        Ok(Self { storage, dir, shard_bytes, shard: None, files: Vec::new(), metadata: Metadata::default() })
    }

    /// Writes a whole tensor: row-major elements in little-endian order, as many as its shape has.
    pub fn tensor(&mut self, fqn: &str, element: Element, shape: &[u64], bytes: &[u8]) -> Result<(), FileError> {
        let length = bytes.len() as u64;
        let crc32 = crc32fast::hash(bytes);
        let offset = self.shard()?.entry.bytes;
        let around = item::tensor(offset, element, shape, length, crc32);
        // Empty tensors have no checksum in the manifest: readers skip them.
        let place = self.put(&[&around.head, bytes, &around.tail], (length > 0).then_some(crc32))?;
        let chunk = StoredChunk { region: Region::whole(shape), place };
        let entry = TensorEntry { dtype: element.torch().to_owned(), shape: shape.to_vec(), chunks: vec![chunk] };
        self.metadata.tensors.insert(fqn.to_owned(), entry);
        Ok(())
    }

    pub fn value(&mut self, fqn: &str, value: &Value) -> Result<(), FileError> {
        let offset = self.shard()?.entry.bytes;
        let (bytes, crc32) = item::value(offset, value);
        self.item(fqn, &bytes, crc32)
    }

    /// Writes a value's item as it was found, with the CRC-32 of its pickle.
    pub fn item(&mut self, fqn: &str, bytes: &[u8], crc32: u32) -> Result<(), FileError> {
        let place = self.put(&[bytes], Some(crc32))?;
        self.metadata.values.insert(fqn.to_owned(), place);
        Ok(())
    }

    /// Where a name goes when the checkpoint becomes nested again.
    pub fn path(&mut self, fqn: &str, path: &[PathPart]) {
        self.metadata.paths.insert(fqn.to_owned(), path.to_vec());
    }

    /// Writes `.metadata` and, where a draft is given, the manifest. Returns the bytes of all files.
    pub fn finish(mut self, draft: Option<Draft>) -> Result<u64, SealError> {
        self.close()?;
        let save_id = draft.as_ref().map_or_else(|| "convert".to_owned(), Manifest::save_id);
        let dcp = self.metadata.to_bytes(&save_id);
        self.storage.write(&self.dir.join(name::METADATA), &[&dcp])?;
        let mut bytes = dcp.len() as u64 + self.files.iter().map(|file| file.bytes).sum::<u64>();
        if let Some(draft) = draft {
            let mut manifest = Manifest::new(draft, std::mem::take(&mut self.files), &self.metadata, &dcp);
            manifest.world = 1;
            let sealed = seal::seal(&self.dir.join(name::MANIFEST), &manifest)?;
            self.storage.write(&self.dir.join(name::MANIFEST), &[&sealed])?;
            bytes += sealed.len() as u64;
        }
        self.storage.sync_dir(&self.dir)?;
        Ok(bytes)
    }

    /// The file that is written to; another one when it is full.
    fn shard(&mut self) -> Result<&mut Shard, FileError> {
        if self.shard.as_ref().is_some_and(|shard| shard.entry.bytes >= self.shard_bytes) {
            self.close()?;
        }
        let shard = match self.shard.take() {
            Some(shard) => shard,
            None => {
                let path = name::piece(self.files.len());
                let file = self.storage.create(&path.below(&self.dir))?;
                let entry = FileEntry { path, bytes: 0, blake3: String::new(), whole_crc32: None, crc32: Vec::new() };
                Shard { file, entry, hasher: blake3::Hasher::new() }
            }
        };
        Ok(self.shard.insert(shard))
    }

    fn put(&mut self, parts: &[&[u8]], crc32: Option<u32>) -> Result<StoredPlace, FileError> {
        let shard = self.shard()?;
        let offset = shard.entry.bytes;
        shard.file.write_at(offset, parts)?;
        for part in parts {
            shard.hasher.update(part);
            shard.entry.bytes += part.len() as u64;
        }
        shard.entry.crc32.extend(crc32);
        let file = shard.entry.path.clone();
        let length = shard.entry.bytes - offset;
        Ok(StoredPlace { file, offset, length, transforms: Vec::new() })
    }

    fn close(&mut self) -> Result<(), FileError> {
        if let Some(mut shard) = self.shard.take() {
            shard.file.sync()?;
            shard.entry.blake3 = shard.hasher.finalize().to_hex().to_string();
            self.files.push(shard.entry);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{checkpoint::Checkpoint, fs::Disk};

    #[test]
    fn types_that_enn_does_not_compute_with_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = DirectoryWriter::create(&Disk, dir.path(), 1000).unwrap();
        let float8 = Element::of_torch("float8_e4m3fn").unwrap();
        let complex = Element::of_torch("complex64").unwrap();
        writer.tensor("a", float8, &[2, 3], &[1, 2, 3, 4, 5, 6]).unwrap();
        writer.tensor("b", complex, &[2], &[9; 16]).unwrap();
        writer.tensor("c", float8, &[0, 3], &[]).unwrap();
        writer.value("v", &Value::Int(7)).unwrap();
        let path = [PathPart::Key("x".into()), PathPart::Index(3)];
        writer.path("v", &path);
        writer.finish(Some(Draft { step: 4, ..Draft::default() })).unwrap();
        let open = Checkpoint::open(dir.path()).unwrap();
        open.verify(&mut |_| {}).unwrap();
        assert_eq!(open.raw("a", &Region::whole(&[2, 3])).unwrap(), (float8, vec![1, 2, 3, 4, 5, 6]));
        assert_eq!(open.raw("b", &Region::whole(&[2])).unwrap(), (complex, vec![9; 16]));
        assert_eq!(open.raw("c", &Region::whole(&[0, 3])).unwrap(), (float8, Vec::new()));
        assert_eq!(open.value("v").unwrap(), Value::Int(7));
        assert_eq!(open.metadata().paths["v"], path);
        assert!(open.tensor("a").unwrap_err().to_string().contains("float8_e4m3fn"));
        assert_eq!(open.manifest().unwrap().files.len(), 3, "two shards: a full one is followed by another");
    }
}
