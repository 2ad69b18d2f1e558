//! Whether this process still leads its run: another node that took over may commit in the same directory.
//!
//! **Invariant:** a leader that was frozen or cut off renames and removes nothing after its successor has begun: the successor replaces
//! the lock of the run directory and writes its own name into the term file first.

use enn_process::run_dir::LockWitness;
use std::{
    fs,
    hash::{BuildHasher, Hasher, RandomState},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// File of the run directory with the name of the present leader's term.
const TERM_FILE: &str = ".term";

/// Right of a leader to write in its run directory. Clones stand for the same leader.
#[derive(Debug, Clone, Default)]
pub struct Fence(Option<Arc<Term>>);

#[derive(Debug)]
struct Term {
    lock: LockWitness,
    file: PathBuf,
    name: String,
}

impl Fence {
    /// Begins a term in `run_dir`, whose lock this process holds: whoever led before may write nothing more.
    ///
    /// # Errors
    /// The term file cannot be written.
    pub fn begin(run_dir: &Path, lock: LockWitness) -> io::Result<Self> {
        let file = run_dir.join(TERM_FILE);
        // Keyed by the operating system's randomness.
        let name = format!("{:016x}", RandomState::new().build_hasher().finish());
        let beside = run_dir.join(format!("{TERM_FILE}.{name}"));
        fs::write(&beside, &name)?;
        fs::rename(&beside, &file)?;
        Ok(Self(Some(Arc::new(Term { lock, file, name }))))
    }

    /// Returns whether the run directory is still this leader's. A term file that cannot be read, or is gone, takes nothing away: then the
    /// lock decides.
    pub fn holds(&self) -> bool {
        let Some(term) = &self.0 else { return true };
        let is_own = || fs::read(&term.file).map_or(true, |found| found == term.name.as_bytes());
        term.lock.is_current() && is_own()
    }

    /// Returns the error of a leader that has lost its run directory.
    ///
    /// # Errors
    /// The run directory is another leader's.
    pub fn check(&self) -> io::Result<()> {
        if self.holds() { Ok(()) } else { Err(io::Error::other("another node leads the run in this directory")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_process::run_dir::RunDir;
    use std::time::Duration;

    #[test]
    fn a_successor_ends_the_term_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let first = RunDir::create_at(&path).unwrap();
        let fence = Fence::begin(&path, first.witness().unwrap()).unwrap();
        assert!(fence.holds() && fence.check().is_ok() && Fence::default().holds());
        // The lock of a leader that is cut off is replaced.
        let second = RunDir::take_over(&path, Duration::from_millis(10)).unwrap();
        assert!(!fence.holds());
        let own = Fence::begin(&path, second.witness().unwrap()).unwrap();
        assert!(own.holds() && fence.check().is_err());
        // Another one with the same lock.
        let next = Fence::begin(&path, second.witness().unwrap()).unwrap();
        assert!(next.holds() && !own.holds());
        fs::remove_file(path.join(TERM_FILE)).unwrap();
        assert!(next.holds());
    }
}
