//! Temporary directories that are removed with their process or by the next one.

use crate::Error;
use enn_common::fs::FileError;
use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Prefix of the names of working directories, followed by the process id and the directory's number in the process.
const WORK: &str = ".stream-";
/// The number of the next working directory.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A temporary directory of one stream, which is removed on drop. If the process is killed the worker removes it; if both are killed the
/// next stream does.
pub(super) struct WorkDir {
    pub(super) path: PathBuf,
}

impl WorkDir {
    pub(super) fn create(parent: &Path) -> Result<Self, Error> {
        fs::create_dir_all(parent).map_err(FileError::of("make the directory", parent))?;
        sweep(parent);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{WORK}{}.{number}", std::process::id()));
        // A previous process with the same id may have left it.
        let _absent = fs::remove_dir_all(&path);
        DirBuilder::new().mode(0o700).create(&path).map_err(FileError::of("make the directory", &path))?;
        Ok(Self { path })
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // Leftovers are removed by the next stream.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the working directories of processes that have ended, as far as possible.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(WORK)?.split('.').next()?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
