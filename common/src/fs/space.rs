//! Is there room? Asked before writing, so that a full disk is one clear sentence and not a torn file.

use super::FileError;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Why there is no room, or why it is not known.
#[derive(Debug, thiserror::Error)]
pub enum SpaceError {
    #[error(
        "{} has {} free, {} are needed; free some space or choose another directory",
        path.display(), readable(*free_bytes), readable(*needed_bytes)
    )]
    TooLittle {
        path: PathBuf,
        /// Bytes that an unprivileged process may still use.
        free_bytes: u64,
        needed_bytes: u64,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Bytes an unprivileged process may still write on the file system of `path`; `u64::MAX` where that counts none, as some in memory and
/// many of a network do. The path must exist.
pub fn free_bytes(path: &Path) -> Result<u64, FileError> {
    let stat = nix::sys::statvfs::statvfs(path)
        .map_err(|errno| FileError::of("ask the free space of", path)(io::Error::from(errno)))?;
    let counts = stat.blocks() > 0;
    Ok(if counts { stat.blocks_available() * stat.fragment_size() } else { u64::MAX })
}

/// Says no when fewer than `needed_bytes` are free on the file system of `path`.
pub fn require(path: &Path, needed_bytes: u64) -> Result<(), SpaceError> {
    let free_bytes = free_bytes(path)?;
    if free_bytes < needed_bytes {
        return Err(SpaceError::TooLittle { path: path.to_path_buf(), free_bytes, needed_bytes });
    }
    Ok(())
}

/// Whether an error comes from a disk, or a share of one, that is full.
pub fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
    let is_it = |error: &(dyn std::error::Error + 'static)| {
        let is_short = matches!(error.downcast_ref(), Some(SpaceError::TooLittle { .. }));
        is_short || error.downcast_ref::<io::Error>().is_some_and(|error| full.contains(&error.kind()))
    };
    std::iter::successors(Some(error), |error| error.source()).any(is_it)
}

/// Bytes for people: three figures and a binary unit.
pub fn readable(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 99.95 { 0 } else { 1 };
    format!("{value:.decimals$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_space_is_one_sentence() {
        let dir = tempfile::tempdir().unwrap();
        require(dir.path(), 1).unwrap();
        let error = require(dir.path(), u64::MAX).unwrap_err();
        assert!(error.to_string().contains("16384 PiB are needed"), "{error}");
    }

    #[test]
    fn a_file_system_that_counts_nothing_is_not_full() {
        require(Path::new("/proc"), u64::MAX).unwrap();
    }

    #[test]
    fn a_full_disk_is_known_however_deep_it_is_told() {
        let error = |code| FileError::of("write", Path::new("x"))(io::Error::from_raw_os_error(code));
        assert!(is_full(&error(28)) && is_full(&SpaceError::from(error(28))) && !is_full(&error(5)));
    }

    #[test]
    fn bytes_are_readable() {
        assert_eq!(readable(999), "999 B");
        assert_eq!(readable(1536), "1.5 KiB");
        assert_eq!(readable(3 << 30), "3.0 GiB");
    }
}
