//! Checksums of files, read in blocks.

use super::{FileError, regular};
use std::{io::Read, path::Path};

/// Bytes hashed at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// Length and blake3 (hex) of a file. `progress` gets the bytes read since the last call.
pub fn of_file(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<(u64, String), FileError> {
    let mut hasher = blake3::Hasher::new();
    let bytes = blocks(path, progress, &mut |block| {
        hasher.update(block);
    })?;
    Ok((bytes, hasher.finalize().to_hex().to_string()))
}

pub fn crc32_of_file(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<u32, FileError> {
    let mut hasher = crc32fast::Hasher::new();
    blocks(path, progress, &mut |block| hasher.update(block))?;
    Ok(hasher.finalize())
}

fn blocks(path: &Path, progress: &mut dyn FnMut(u64), take: &mut dyn FnMut(&[u8])) -> Result<u64, FileError> {
    let mut file = regular::open(path)?;
    let mut block = vec![0; BLOCK_BYTES];
    let mut bytes = 0;
    loop {
        let count = file.read(&mut block).map_err(FileError::of("read", path))?;
        if count == 0 {
            return Ok(bytes);
        }
        take(&block[..count]);
        bytes += count as u64;
        progress(count as u64);
    }
}
