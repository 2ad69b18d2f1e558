//! Removes checkpoints that the policy lets go, and what dead attempts left behind.
//!
//! **Invariant:** a committed checkpoint disappears from its name in one step, before any of its files is touched; the
//! newest complete one is never removed.

use super::{
    Checkpoint, Manifest, ReadError, name,
    retain::{Candidate, Reason, Rule, decide},
};
use crate::fs::{Disk, FileError, Storage};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// A checkpoint, and whether it stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// Step.
    pub step: u64,
    /// Directory.
    pub path: PathBuf,
    /// Bytes of its files; 0 for a damaged one.
    pub bytes: u64,
    /// Whether it stays.
    pub keeps: bool,
    /// Why.
    pub reason: String,
}

/// Says what the policy lets go, oldest first.
///
/// Damaged checkpoints are left alone: they are evidence, `latest` passes them over, and they take no one's place: the newest
/// and the best are those of the sound ones. Sound is what a run can begin to resume from: its elements are not read.
pub fn judge(checkpoints: &Path, rule: Rule) -> Vec<Judged> {
    judge_by(checkpoints, rule, &mut |_| Ok(()))
}

/// The same, after reading every byte of the newest: one that is damaged is not the newest sound one.
pub fn judge_reading(checkpoints: &Path, rule: Rule, progress: &mut dyn FnMut(&Manifest, u64)) -> Vec<Judged> {
    judge_by(checkpoints, rule, &mut |newest| {
        let Some(manifest) = newest.manifest() else { return Ok(()) };
        newest.verify(&mut |bytes| progress(manifest, bytes))
    })
}

fn judge_by(
    checkpoints: &Path,
    rule: Rule,
    newest: &mut dyn FnMut(&Checkpoint) -> Result<(), ReadError>,
) -> Vec<Judged> {
    let (mut sound, mut candidates, mut judged) = (Vec::new(), Vec::new(), Vec::new());
    for (step, path) in name::list(checkpoints) {
        let open = Checkpoint::open(&path);
        let open = open.and_then(|open| if sound.is_empty() { newest(&open).map(|()| open) } else { Ok(open) });
        match open {
            Ok(open) => {
                let Some(manifest) = open.manifest() else { continue };
                let Manifest { epoch, wall_time, metric, .. } = *manifest;
                candidates.push(Candidate { step, epoch, time: wall_time, metric });
                sound.push((step, path, manifest.bytes()));
            }
            Err(error) => {
                judged.push(Judged { step, path, bytes: 0, keeps: true, reason: format!("it is damaged: {error}") })
            }
        }
    }
    let reasons: BTreeMap<u64, Reason> = decide(&candidates, rule).into_iter().collect();
    judged.extend(sound.into_iter().filter_map(|(step, path, bytes)| {
        let reason = reasons.get(&step)?;
        Some(Judged { step, path, bytes, keeps: reason.keeps(), reason: reason.to_string() })
    }));
    judged.sort_by_key(|one| one.step);
    judged
}

/// Removes what `judge` lets go. Returns what was removed.
pub fn remove(checkpoints: &Path, judged: &[Judged]) -> Result<Vec<PathBuf>, FileError> {
    remove_on(&Disk, checkpoints, judged)
}

/// `remove` on another storage.
pub fn remove_on(storage: &dyn Storage, checkpoints: &Path, judged: &[Judged]) -> Result<Vec<PathBuf>, FileError> {
    let mut removed = Vec::new();
    for one in judged.iter().filter(|one| !one.keeps) {
        let trash = checkpoints.join(name::trash(one.step));
        storage.rename(&one.path, &trash)?;
        storage.sync_dir(checkpoints)?;
        storage.remove_dir(&trash)?;
        removed.push(one.path.clone());
    }
    Ok(removed)
}

/// Removes what the policy lets go. Returns what was removed.
pub fn prune(checkpoints: &Path, rule: Rule) -> Result<Vec<PathBuf>, FileError> {
    remove(checkpoints, &judge(checkpoints, rule))
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
