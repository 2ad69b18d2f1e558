//! The real storage: POSIX files. Plain buffered `pwrite`, then `fsync`; large files on a local disk past the page cache.

use super::{FileError, Storage, StorageFile};
use nix::{
    fcntl::{AT_FDCWD, OFlag, RenameFlags, renameat2},
    sys::statfs::{EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, fstatfs},
};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// Alignment of the memory and the offsets of a direct write: a page, and no disk's sector is larger.
const DIRECT_ALIGN: usize = 4096;
/// Smaller files gain nothing by direct writes.
const DIRECT_BYTES_MIN: u64 = 8 << 20;

/// POSIX files below the given paths.
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk;

impl Storage for Disk {
    fn create(&self, path: &Path) -> Result<Box<dyn StorageFile>, FileError> {
        let file = File::create(path).map_err(FileError::of("create", path))?;
        Ok(Box::new(DiskFile { file, direct: None, path: path.to_path_buf() }))
    }

    fn create_sized(&self, path: &Path, bytes: u64) -> Result<Box<dyn StorageFile>, FileError> {
        let file = File::create(path).map_err(FileError::of("create", path))?;
        if bytes >= DIRECT_BYTES_MIN {
            // Writes that do not extend the file need not wait for each other.
            file.set_len(bytes).map_err(FileError::of("extend", path))?;
        }
        let direct = if bytes >= DIRECT_BYTES_MIN { direct(&file, path) } else { None };
        Ok(Box::new(DiskFile { file, direct, path: path.to_path_buf() }))
    }

    fn create_dir(&self, path: &Path) -> Result<(), FileError> {
        fs::create_dir_all(path).map_err(FileError::of("create directory", path))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), FileError> {
        fs::rename(from, to).map_err(FileError::of("rename to", to))
    }

    fn exchange(&self, one: &Path, other: &Path) -> Result<(), FileError> {
        renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE)
            .map_err(|errno| FileError::of("exchange with", other)(io::Error::from(errno)))
    }

    fn sync_dir(&self, path: &Path) -> Result<(), FileError> {
        let dir = File::open(path).map_err(FileError::of("open directory", path))?;
        dir.sync_all().map_err(FileError::of("sync directory", path))
    }

    fn remove_dir(&self, path: &Path) -> Result<(), FileError> {
        fs::remove_dir_all(path).map_err(FileError::of("remove directory", path))
    }

    fn len(&self, path: &Path) -> Result<u64, FileError> {
        Ok(fs::metadata(path).map_err(FileError::of("look at", path))?.len())
    }

    fn exists(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok()
    }
}

/// Opens the file for writes past the page cache. On file systems where that was measured: with dirty pages of others about,
/// a fifth of the time of buffered writes and their fsync. Network file systems and those in memory have their own ways.
fn direct(file: &File, path: &Path) -> Option<Direct> {
    let kind = fstatfs(file).ok()?.filesystem_type();
    if kind != EXT4_SUPER_MAGIC && kind != XFS_SUPER_MAGIC {
        return None;
    }
    let file = File::options().write(true).custom_flags(OFlag::O_DIRECT.bits()).open(path).ok()?;
    Some(Direct { file, refused: AtomicBool::new(false) })
}

struct Direct {
    file: File,
    /// The disk did not take a direct write: the page cache takes them all.
    refused: AtomicBool,
}

/// One open file with its name, for errors.
struct DiskFile {
    file: File,
    direct: Option<Direct>,
    path: PathBuf,
}

impl DiskFile {
    /// Writes the beginning of `part` past the page cache where that can be done; how many bytes.
    fn write_direct(&self, at: u64, part: &[u8]) -> io::Result<usize> {
        let Some(direct) = self.direct.as_ref().filter(|direct| !direct.refused.load(Relaxed)) else { return Ok(0) };
        let whole = part.len() / DIRECT_ALIGN * DIRECT_ALIGN;
        let aligned = part.as_ptr().addr().is_multiple_of(DIRECT_ALIGN) && at.is_multiple_of(DIRECT_ALIGN as u64);
        if whole == 0 || !aligned {
            return Ok(0);
        }
        match direct.file.write_all_at(&part[..whole], at) {
            Ok(()) => Ok(whole),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                direct.refused.store(true, Relaxed);
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }
}

impl StorageFile for DiskFile {
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> Result<(), FileError> {
        let mut at = offset;
        for part in parts {
            let done = self.write_direct(at, part).map_err(FileError::of("write", &self.path))?;
            self.file.write_all_at(&part[done..], at + done as u64).map_err(FileError::of("write", &self.path))?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn alignment(&self) -> usize {
        if self.direct.is_some() { DIRECT_ALIGN } else { 1 }
    }

    fn sync(&self) -> Result<(), FileError> {
        self.file.sync_all().map_err(FileError::of("sync", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_land_one_after_the_other_at_the_offset() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let file = Disk.create(&path).unwrap();
        file.write_at(3, &[b"one", b"", b"two"]).unwrap();
        file.write_at(0, &[b"abc"]).unwrap();
        file.sync().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"abconetwo");
        assert_eq!(Disk.len(&path).unwrap(), 9);
    }

    #[test]
    fn large_parts_land_like_small_ones_whatever_their_alignment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let bytes: Vec<u8> = (0..DIRECT_BYTES_MIN + 12_345).map(|at| (at % 251) as u8).collect();
        let file = Disk.create_sized(&path, bytes.len() as u64).unwrap();
        let start = bytes.as_ptr().addr().wrapping_neg() % DIRECT_ALIGN;
        // Aligned in memory only; in both but for its end; in neither.
        let cuts = [0, start, start + 5 * DIRECT_ALIGN + 77, bytes.len()];
        for cut in cuts.windows(2) {
            file.write_at(cut[0] as u64, &[&bytes[cut[0]..cut[1]]]).unwrap();
        }
        let moved = &bytes[start..start + 2 * DIRECT_ALIGN + 9];
        file.write_at(DIRECT_ALIGN as u64, &[moved]).unwrap();
        file.sync().unwrap();
        let mut expected = bytes.clone();
        expected[DIRECT_ALIGN..DIRECT_ALIGN + moved.len()].copy_from_slice(moved);
        assert!(fs::read(&path).unwrap() == expected);
    }

    #[test]
    fn exchange_swaps_directories() {
        let dir = tempfile::tempdir().unwrap();
        let a = dir.path().join("a");
        let b = dir.path().join("b");
        fs::create_dir(&a).unwrap();
        fs::create_dir(&b).unwrap();
        fs::write(a.join("x"), "1").unwrap();
        Disk.exchange(&a, &b).unwrap();
        assert!(b.join("x").exists() && !a.join("x").exists());
    }

    #[test]
    fn errors_name_the_path() {
        let error = Disk.len(Path::new("/nonexistent/file")).unwrap_err();
        assert!(error.is_missing());
        assert!(error.to_string().starts_with("cannot look at /nonexistent/file: "), "{error}");
    }
}
