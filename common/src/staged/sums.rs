//! Checksums of the staged arrays, by block: some are compared whenever the directory is opened, all by `enn data verify`.
//!
//! A directory that was staged before there were any has no `sums.json`, and is opened all the same.

use super::{ArrayName, StagedError};
use crate::{
    artifact::seal::{self, SealError},
    fs::{Disk, FileError, RelPath, regular},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

pub const SUMS: &str = "sums.json";
/// Bytes of a block: small enough that some of them are read at every start.
const BLOCK_BYTES: u64 = 1 << 20;
/// Blocks of each array that are compared at every start.
const SAMPLED: u64 = 3;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sums {
    pub block_bytes: u64,
    pub files: BTreeMap<RelPath, FileSums>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSums {
    pub bytes: u64,
    /// CRC-32C of every block.
    pub crc32c: Vec<u32>,
}

impl Sums {
    /// Computes those of the arrays in a directory. Arrays that are links to those of another directory keep the sums that came
    /// with them.
    pub(super) fn compute(dir: &Path) -> Result<Self, StagedError> {
        let shared = Self::read(dir)?.unwrap_or_default();
        let mut sums = Self { block_bytes: BLOCK_BYTES, files: BTreeMap::new() };
        for name in ArrayName::ALL.map(ArrayName::file) {
            let path = dir.join(name);
            let Ok(found) = std::fs::metadata(&path) else { continue };
            let known = shared
                .files
                .get(name)
                .filter(|known| shared.block_bytes == BLOCK_BYTES && found.nlink() > 1 && known.bytes == found.len());
            let file = match known {
                Some(known) => known.clone(),
                None => FileSums { bytes: found.len(), crc32c: blocks(&path, found.len())? },
            };
            sums.files.insert(RelPath::own(name), file);
        }
        Ok(sums)
    }

    pub(super) fn write(&self, dir: &Path) -> Result<(), StagedError> {
        seal::write(&Disk, &dir.join(SUMS), self).map_err(sealed)
    }

    /// Reads sums.json; `None` where there is none.
    pub fn read(dir: &Path) -> Result<Option<Self>, StagedError> {
        match seal::read(&dir.join(SUMS)) {
            Ok(sums) => Ok(Some(sums)),
            Err(SealError::File(error)) if error.is_missing() => Ok(None),
            Err(error) => Err(sealed(error)),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// Compares all blocks; what is wrong, a sentence each. `progress` gets the bytes read since the last call.
    pub fn verify(&self, dir: &Path, progress: &mut dyn FnMut(u64)) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, sums) in &self.files {
            let all = (0..sums.crc32c.len() as u64).collect::<Vec<_>>();
            if let Err(error) = self.check(dir, name, &all, progress) {
                problems.push(error.to_string());
            }
        }
        problems
    }

    /// Compares a few blocks of each array, others for another `seed`.
    pub(super) fn sample(&self, dir: &Path, seed: u64) -> Result<(), StagedError> {
        for (name, sums) in &self.files {
            let count = sums.crc32c.len() as u64;
            let mut mixed = seed;
            let chosen: Vec<u64> = (0..SAMPLED.min(count))
                .map(|_| {
                    mixed = mixed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (mixed >> 33) % count
                })
                .collect();
            self.check(dir, name, &chosen, &mut |_| {})?;
        }
        Ok(())
    }

    fn check(
        &self,
        dir: &Path,
        name: &RelPath,
        which: &[u64],
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), StagedError> {
        let path = name.below(dir);
        let Some(sums) = self.files.get(name) else { return Ok(()) };
        let file = regular::open(&path)?;
        let length = file.metadata().map_err(FileError::of("look at", &path))?.len();
        if length != sums.bytes {
            return Err(StagedError::mismatch(&path, "length in bytes", length, sums.bytes));
        }
        let count = sums.crc32c.len();
        if self.block_bytes == 0 || count as u64 != length.div_ceil(self.block_bytes) {
            return Err(StagedError::mismatch(&path, "number of checksums", count, "one for each block"));
        }
        for &block in which {
            let found = block_of(&file, &path, block, self.block_bytes, length, progress)?;
            if found != sums.crc32c[usize::try_from(block).unwrap_or(usize::MAX)] {
                let found = format!("other than written behind byte {}", block * self.block_bytes);
                return Err(StagedError::mismatch(&path, "content", found, "as it was staged"));
            }
        }
        Ok(())
    }
}

fn sealed(error: SealError) -> StagedError {
    match error {
        SealError::File(error) => error.into(),
        SealError::Damaged { path, what } => {
            StagedError::mismatch(&path, "the list of checksums", what, "as it was written")
        }
        SealError::Json { path, source } => StagedError::Meta { path, source },
    }
}

fn blocks(path: &Path, length: u64) -> Result<Vec<u32>, StagedError> {
    let file = regular::open(path)?;
    let sums =
        (0..length.div_ceil(BLOCK_BYTES)).map(|block| block_of(&file, path, block, BLOCK_BYTES, length, &mut |_| {}));
    sums.collect()
}

fn block_of(
    file: &File,
    path: &Path,
    block: u64,
    block_bytes: u64,
    length: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<u32, StagedError> {
    let mut at = block * block_bytes;
    let end = length.min((block + 1).saturating_mul(block_bytes));
    let mut bytes = vec![0; usize::try_from(BLOCK_BYTES.min(end - at)).unwrap_or_default()];
    let mut crc = 0;
    while at < end {
        let count = bytes.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        file.read_exact_at(&mut bytes[..count], at).map_err(FileError::of("read", path))?;
        crc = crc32c::crc32c_append(crc, &bytes[..count]);
        at += count as u64;
        progress(count as u64);
    }
    Ok(crc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_found_and_links_keep_their_sums() {
        let dir = tempfile::tempdir().unwrap();
        let x = dir.path().join("x.npy");
        let mut bytes = vec![5; 5 << 19];
        std::fs::write(&x, &bytes).unwrap();
        let sums = Sums::compute(dir.path()).unwrap();
        sums.write(dir.path()).unwrap();
        assert_eq!(Sums::read(dir.path()).unwrap().as_ref(), Some(&sums));
        assert_eq!((sums.bytes(), sums.files["x.npy"].crc32c.len()), (5 << 19, 3));
        assert!(sums.verify(dir.path(), &mut |_| {}).is_empty());

        let other = tempfile::tempdir_in(dir.path()).unwrap();
        for name in ["x.npy", SUMS] {
            std::fs::hard_link(dir.path().join(name), other.path().join(name)).unwrap();
        }
        assert_eq!(Sums::compute(other.path()).unwrap(), sums);

        bytes[(1 << 20) + 7] ^= 1;
        std::fs::write(&x, &bytes).unwrap();
        let problems = sums.verify(dir.path(), &mut |_| {});
        assert!(
            problems.len() == 1 && problems[0].contains("x.npy") && problems[0].contains("1048576"),
            "{problems:?}"
        );
        assert!((0..40).any(|seed| sums.sample(dir.path(), seed).is_err()), "one of three blocks, three at a time");
        std::fs::write(&x, &bytes[1..]).unwrap();
        assert!(sums.sample(dir.path(), 0).unwrap_err().to_string().contains("length"));
        std::fs::write(dir.path().join(SUMS), "{}").unwrap();
        assert!(Sums::read(dir.path()).is_err());
    }
}
