//! Temporary files. Most have no name, so that nothing is left behind; files that another attempt resumes from have a name.

use super::error::StageError;
use enn_common::fs::FileError;
use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// An append-only file with random reads, usually without a name. It is created on the first write.
#[derive(Debug)]
pub(crate) struct Scratch {
    file: Option<File>,
    path: PathBuf,
    bytes: u64,
}

impl Scratch {
    pub(crate) fn new(dir: &Path) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { file: None, path: dir.join(format!(".scratch-{}-{number}", std::process::id())), bytes: 0 }
    }

    /// Opens or creates the file `path`, truncated to `bytes` bytes.
    pub(crate) fn named(path: PathBuf, bytes: u64) -> Result<Self, StageError> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(FileError::of("create", &path))?;
        file.set_len(bytes).map_err(FileError::of("cut", &path))?;
        Ok(Self { file: Some(file), path, bytes })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends bytes; returns their offset.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<u64, StageError> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let file = File::options().read(true).write(true).create_new(true).open(&self.path);
                let file = file.map_err(FileError::of("create", &self.path))?;
                std::fs::remove_file(&self.path).map_err(FileError::of("remove", &self.path))?;
                none.insert(file)
            }
        };
        let at = self.bytes;
        file.write_all_at(bytes, at).map_err(FileError::of("write", &self.path))?;
        self.bytes += bytes.len() as u64;
        Ok(at)
    }

    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), StageError> {
        match &self.file {
            Some(file) => Ok(file.read_exact_at(bytes, at).map_err(FileError::of("read", &self.path))?),
            None if bytes.is_empty() => Ok(()),
            None => Err(FileError::of("read", &self.path)(io::Error::from(io::ErrorKind::UnexpectedEof)).into()),
        }
    }
}

impl Write for Scratch {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
