//! The real storage: POSIX files. Plain buffered `pwrite`, then `fsync`.

use super::{FileError, Storage, StorageFile};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// POSIX files below the given paths.
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk;

impl Storage for Disk {
    fn create(&self, path: &Path) -> Result<Box<dyn StorageFile>, FileError> {
        let file = File::create(path).map_err(FileError::of("create", path))?;
        Ok(Box::new(DiskFile { file, path: path.to_path_buf() }))
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

/// One open file with its name, for errors.
struct DiskFile {
    file: File,
    path: PathBuf,
}

impl StorageFile for DiskFile {
    fn write_at(&mut self, offset: u64, parts: &[&[u8]]) -> Result<(), FileError> {
        let mut at = offset;
        for part in parts {
            self.file.write_all_at(part, at).map_err(FileError::of("write", &self.path))?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), FileError> {
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
        let mut file = Disk.create(&path).unwrap();
        file.write_at(3, &[b"one", b"", b"two"]).unwrap();
        file.write_at(0, &[b"abc"]).unwrap();
        file.sync().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"abconetwo");
        assert_eq!(Disk.len(&path).unwrap(), 9);
    }

    #[test]
    fn exchange_swaps_directories() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
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
