//! Where the logs of an attempt are: `<dir>/attempt_<n>/<local rank>/{stdout,stderr}.log`, `error.json`, and the filtered
//! copies beside the ranks. The names are torchrun's; tools look for them. Spares of `enn run --spares` have `<dir>/spares/<number>/`.

use super::LogError;
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// File of a worker's standard output.
pub(super) const STDOUT: &str = "stdout.log";
/// File of a worker's standard error.
pub(super) const STDERR: &str = "stderr.log";
/// File that torch's `@record` writes.
const ERROR: &str = "error.json";
/// Directory of the logs of spares.
const SPARES: &str = "spares";
/// Files of the filtered copies of all workers.
const FILTERED_STDOUT: &str = "filtered_stdout.log";
const FILTERED_STDERR: &str = "filtered_stderr.log";

#[derive(Debug, Clone)]
pub(super) struct AttemptDir {
    dir: PathBuf,
}

impl AttemptDir {
    /// Makes the directory. A directory of an earlier attempt of the same number is removed first, as torchrun does.
    pub(super) fn create(dir: &Path, number: u32) -> Result<Self, LogError> {
        let dir = dir.join(format!("attempt_{number}"));
        match fs::remove_dir_all(&dir) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(LogError::Directory { path: dir, source }),
            _ => make(dir).map(|dir| Self { dir }),
        }
    }

    pub(super) fn rank(&self, local_rank: u32) -> Result<PathBuf, LogError> {
        make(self.dir.join(local_rank.to_string()))
    }

    pub(super) fn filtered_stdout(&self) -> PathBuf {
        self.dir.join(FILTERED_STDOUT)
    }

    pub(super) fn filtered_stderr(&self) -> PathBuf {
        self.dir.join(FILTERED_STDERR)
    }
}

/// Makes the directory of the logs of a spare, which belong to no attempt until it has a seat.
pub(super) fn spare(dir: &Path, name: u32) -> Result<PathBuf, LogError> {
    make(dir.join(SPARES).join(name.to_string()))
}

/// Makes the log files in `from` appear in `to`, too.
pub(super) fn link(from: &Path, to: &Path) -> Result<(), LogError> {
    for name in [STDOUT, STDERR] {
        let path = to.join(name);
        match fs::hard_link(from.join(name), &path) {
            // Streams that are not kept have no files.
            Err(source) if source.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(LogError::File { path, source }),
            Ok(()) => {}
        }
    }
    Ok(())
}

pub(super) fn error_file(rank: &Path) -> PathBuf {
    rank.join(ERROR)
}

/// Makes an empty file, so that it exists before the first line is written.
pub(super) fn touch(path: PathBuf) -> Result<PathBuf, LogError> {
    match File::create(&path) {
        Ok(_) => Ok(path),
        Err(source) => Err(LogError::File { path, source }),
    }
}

fn make(path: PathBuf) -> Result<PathBuf, LogError> {
    match fs::create_dir_all(&path) {
        Ok(()) => Ok(path),
        Err(source) => Err(LogError::Directory { path, source }),
    }
}
