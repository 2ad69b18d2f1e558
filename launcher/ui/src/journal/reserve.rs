//! Room on the disk that is kept free for the last lines of a journal: on a disk that is full to the end, they say what is missing.

use nix::fcntl::{FallocateFlags, fallocate};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

/// Name of the file in a run directory, while a launcher works there.
const FILE: &str = ".events.reserve";
pub(super) const BYTES: usize = 64 << 10;

/// A file that only occupies disk space. It is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
}

impl Reserve {
    /// Allocates the space; `None` where that fails.
    pub(super) fn take(run_dir: &Path) -> Option<Self> {
        let reserve = Self { path: run_dir.join(FILE) };
        let file = File::create(&reserve.path).ok()?;
        let bytes = i64::try_from(BYTES).ok()?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes).ok()?;
        Some(reserve)
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // What cannot be removed costs its bytes; the next launch takes it over.
        let _kept = fs::remove_file(&self.path);
    }
}
