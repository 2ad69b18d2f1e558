//! blake3 of files, read in blocks.

use super::FileError;
use std::{fs::File, io::Read, path::Path};

/// Bytes hashed at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// Length and blake3 (hex) of a file. `progress` gets the bytes read since the last call.
pub fn of_file(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<(u64, String), FileError> {
    let mut file = File::open(path).map_err(FileError::of("open", path))?;
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; BLOCK_BYTES];
    let mut bytes = 0;
    loop {
        let count = file.read(&mut block).map_err(FileError::of("read", path))?;
        if count == 0 {
            return Ok((bytes, hasher.finalize().to_hex().to_string()));
        }
        hasher.update(&block[..count]);
        bytes += count as u64;
        progress(count as u64);
    }
}
