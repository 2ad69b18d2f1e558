//! The seam between what is written and the disk: few operations, so that a test can fail or crash at the k-th one.
//!
//! **Invariant:** everything that must survive a crash goes through this trait. Durability is never implied: bytes are
//! durable after `StorageFile::sync`, names after `Storage::sync_dir` of the directory that holds them.

use super::FileError;
use std::path::Path;

/// Names: what changes directories.
pub trait Storage {
    /// Makes an empty file, or empties it when it is there, open for writing.
    fn create(&self, path: &Path) -> Result<Box<dyn StorageFile>, FileError>;
    /// `create` of a file that will have so many bytes, written in large pieces by several threads.
    fn create_sized(&self, path: &Path, _bytes: u64) -> Result<Box<dyn StorageFile>, FileError> {
        self.create(path)
    }
    /// Makes a file of these parts, one after the other, and makes its bytes durable.
    fn write(&self, path: &Path, parts: &[&[u8]]) -> Result<(), FileError> {
        let file = self.create(path)?;
        file.write_at(0, parts)?;
        file.sync()
    }
    /// Makes a directory and its missing parents. One that is there is no error.
    fn create_dir(&self, path: &Path) -> Result<(), FileError>;
    /// Gives a file or directory another name; a file that has the name is replaced in one step.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), FileError>;
    /// Swaps the names of two existing files or directories in one step.
    fn exchange(&self, one: &Path, other: &Path) -> Result<(), FileError>;
    /// Makes the names inside a directory durable.
    fn sync_dir(&self, path: &Path) -> Result<(), FileError>;
    /// Removes a directory with everything in it.
    fn remove_dir(&self, path: &Path) -> Result<(), FileError>;
    fn len(&self, path: &Path) -> Result<u64, FileError>;
    /// Whether the name is taken.
    fn exists(&self, path: &Path) -> bool;
}

/// Bytes of one open file. Threads may write different parts of it at the same time.
pub trait StorageFile: Send + Sync {
    /// Writes the parts one after the other, beginning at byte `offset`. All or an error; never short.
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> Result<(), FileError>;
    /// Large parts whose memory and offset are multiples of this are written the shortest way; 1: all are.
    fn alignment(&self) -> usize {
        1
    }
    /// Makes everything written so far durable.
    fn sync(&self) -> Result<(), FileError>;
}
