//! Removes checkpoints that the policy lets go, and what dead attempts left behind.
//!
//! **Invariant:** a committed checkpoint disappears from its name in one step, before any of its files is touched; the
//! newest complete one is never removed.

use super::{
    Manifest, name,
    retain::{Candidate, Reason, decide},
};
use crate::fs::{Disk, FileError, Storage};
use std::path::{Path, PathBuf};

/// Removes what the policy lets go. `keep` is the number kept besides the newest and the best. Returns what was removed.
///
/// Directories without a readable manifest are left alone: they are evidence, and `latest` passes them over.
pub fn prune(checkpoints: &Path, keep: usize) -> Result<Vec<PathBuf>, FileError> {
    let known = name::list(checkpoints).into_iter().filter_map(|(step, path)| {
        let manifest = Manifest::read(&path).ok()?;
        Some(Candidate { step, metric: manifest.metric })
    });
    let candidates: Vec<_> = known.collect();
    let gone = decide(&candidates, keep).into_iter().filter(|(_, reason)| *reason == Reason::Superseded);
    let mut removed = Vec::new();
    for (step, _) in gone {
        let (path, trash) = (checkpoints.join(name::committed(step)), checkpoints.join(name::trash(step)));
        Disk.rename(&path, &trash)?;
        Disk.sync_dir(checkpoints)?;
        Disk.remove_dir(&trash)?;
        removed.push(path);
    }
    Ok(removed)
}

/// Removes checkpoints that were being written or removed by processes that are gone. Call it only when no worker of this
/// run is alive. Returns what was removed.
pub fn remove_leftovers(checkpoints: &Path) -> Result<Vec<PathBuf>, FileError> {
    remove_all(checkpoints, name::is_leftover)
}

/// Removes checkpoints of steps before `below` that the workers of `attempt` began and nobody will commit. Others may write at the
/// same time.
pub fn remove_attempt(checkpoints: &Path, attempt: &str, below: u64) -> Result<Vec<PathBuf>, FileError> {
    remove_all(checkpoints, |name| name::being_written(name).is_some_and(|(step, of)| of == attempt && step < below))
}

fn remove_all(checkpoints: &Path, unwanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, FileError> {
    let mut removed = Vec::new();
    for entry in std::fs::read_dir(checkpoints).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(&unwanted) {
            Disk.remove_dir(&entry.path())?;
            removed.push(entry.path());
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_attempt_left_goes_and_what_others_write_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (step, other) = (name::temporary(8, "1-aa"), name::temporary(16, "11-aa"));
        let stays = [other, name::temporary(8, "2-aa"), name::committed(8), "notes.tmp-1-aa".to_owned()];
        for name in stays.iter().chain([&step]) {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("shard"), "x").unwrap();
        }
        assert!(remove_attempt(dir.path(), "1-aa", 8).unwrap().is_empty());
        assert_eq!(remove_attempt(dir.path(), "1-aa", 9).unwrap(), [dir.path().join(&step)]);
        assert!(stays.iter().all(|name| dir.path().join(name).join("shard").exists()));
    }
}
