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
    pub step: u64,
    pub path: PathBuf,
    /// Bytes of its files; 0 for a damaged one.
    pub bytes: u64,
    pub keeps: bool,
    pub reason: String,
}

/// Says what the policy lets go, oldest first.
///
/// Damaged checkpoints are left alone: they are evidence, `latest` passes them over, and they take no one's place: the newest
/// and the best are those of the sound ones. Sound is what a run can begin to resume from: its elements are not read.
pub fn verdicts(checkpoints: &Path, rule: Rule) -> Vec<Judged> {
    verdicts_by(checkpoints, rule, &mut |_| Ok(()))
}

/// Prunes after reading every byte of the newest checkpoint: one that is damaged is not the newest sound one.
pub fn verdicts_with_progress(checkpoints: &Path, rule: Rule, progress: &mut dyn FnMut(&Manifest, u64)) -> Vec<Judged> {
    verdicts_by(checkpoints, rule, &mut |newest| {
        let Some(manifest) = newest.manifest() else { return Ok(()) };
        newest.verify(&mut |bytes| progress(manifest, bytes))
    })
}

fn verdicts_by(
    checkpoints: &Path,
    rule: Rule,
    newest: &mut dyn FnMut(&Checkpoint) -> Result<(), ReadError>,
) -> Vec<Judged> {
    let found = look(checkpoints, newest);
    let reasons = reasons(&found.candidates, rule);
    found.judged(|step| reasons.get(&step).map(|reason| (reason.keeps(), reason.to_string())))
}

/// Returns the checkpoints that the policy will delete once the checkpoint `coming` exists, for which there is no room yet. Every byte of the newest is
/// read, and what is the newest sound one or the best one now stays.
pub fn verdicts_with(checkpoints: &Path, rule: Rule, coming: Candidate) -> Vec<Judged> {
    let found = look(checkpoints, &mut |newest| newest.verify(&mut |_| {}));
    let now = reasons(&found.candidates, rule);
    let candidates: Vec<Candidate> =
        found.candidates.iter().copied().filter(|known| known.step != coming.step).chain([coming]).collect();
    let then = reasons(&candidates, rule);
    found.judged(|step| {
        let now = now.get(&step).filter(|reason| matches!(reason, Reason::Newest | Reason::Best));
        let reason = now.or(then.get(&step))?;
        Some((reason.keeps(), reason.to_string()))
    })
}

/// Removes what the policy will let go when `coming` is there. Returns what was removed.
///
/// # Errors
/// What the system says; what was removed before is gone.
pub fn make_room(checkpoints: &Path, rule: Rule, coming: Candidate) -> Result<Vec<PathBuf>, FileError> {
    remove(checkpoints, &verdicts_with(checkpoints, rule, coming))
}

fn reasons(candidates: &[Candidate], rule: Rule) -> BTreeMap<u64, Reason> {
    decide(candidates, rule).into_iter().collect()
}

/// The checkpoints of a directory.
struct Looked {
    sound: Vec<(u64, PathBuf, u64)>,
    candidates: Vec<Candidate>,
    damaged: Vec<Judged>,
}

impl Looked {
    /// All of them with what `of` says of the sound ones, oldest first.
    fn judged(self, of: impl Fn(u64) -> Option<(bool, String)>) -> Vec<Judged> {
        let mut judged = self.damaged;
        judged.extend(self.sound.into_iter().filter_map(|(step, path, bytes)| {
            let (keeps, reason) = of(step)?;
            Some(Judged { step, path, bytes, keeps, reason })
        }));
        judged.sort_by_key(|one| one.step);
        judged
    }
}

/// Opens all, and tells `newest` of the newest that opens.
fn look(checkpoints: &Path, newest: &mut dyn FnMut(&Checkpoint) -> Result<(), ReadError>) -> Looked {
    let mut looked = Looked { sound: Vec::new(), candidates: Vec::new(), damaged: Vec::new() };
    let Looked { sound, candidates, damaged } = &mut looked;
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
                damaged.push(Judged { step, path, bytes: 0, keeps: true, reason: format!("it is damaged: {error}") })
            }
        }
    }
    looked
}

/// Removes what `verdicts` lets go. Returns what was removed.
pub fn remove(checkpoints: &Path, judged: &[Judged]) -> Result<Vec<PathBuf>, FileError> {
    remove_on(&Disk, checkpoints, judged)
}

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
    remove(checkpoints, &verdicts(checkpoints, rule))
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
    use crate::checkpoint::{Draft, ShardWriter, TensorDType, commit};

    /// A checkpoint of this step and error.
    fn saved(dir: &Path, step: u64, metric: Option<f64>) {
        let temporary = dir.join(name::temporary(step, "a"));
        let mut shard = ShardWriter::create(&temporary, 0).unwrap();
        shard.whole("w", TensorDType::F32, &[64], &[7; 256]).unwrap();
        let tables = [shard.finish().unwrap()];
        let draft = Draft { step, metric, ..Draft::default() };
        commit(&temporary, &dir.join(name::committed(step)), &tables, draft).unwrap();
    }

    fn steps(dir: &Path) -> Vec<u64> {
        name::list(dir).into_iter().map(|(step, _)| step).rev().collect()
    }

    #[test]
    fn old_checkpoints_make_room_before_the_newest_is_there_but_neither_the_newest_whole_one_nor_the_best() {
        let coming = |metric| Candidate { step: 9, epoch: 0, time: 0.0, metric };
        let filled = || {
            let dir = tempfile::tempdir().unwrap();
            for (step, metric) in [(1, 0.1), (2, 0.5), (3, 0.4), (4, 0.3), (5, 0.2)] {
                saved(dir.path(), step, Some(metric));
            }
            dir
        };
        let dir = filled();
        make_room(dir.path(), Rule::last(2), coming(Some(0.6))).unwrap();
        assert_eq!(steps(dir.path()), [1, 4, 5], "those that stay beside the newest when it is there");
        make_room(dir.path(), Rule::last(2), coming(Some(0.6))).unwrap();
        assert_eq!(steps(dir.path()), [1, 4, 5]);
        make_room(dir.path(), Rule::last(0), coming(Some(0.01))).unwrap();
        assert_eq!(steps(dir.path()), [1, 5], "what is to be better is not there yet");
        let dir = filled();
        let newest = dir.path().join(name::committed(5)).join(name::shard(0));
        let length = std::fs::metadata(&newest).unwrap().len();
        let mut bytes = std::fs::read(&newest).unwrap();
        let at = bytes.windows(64).position(|window| window == [7; 64]).unwrap();
        bytes[at] = 8;
        std::fs::write(&newest, &bytes).unwrap();
        assert_eq!(std::fs::metadata(&newest).unwrap().len(), length);
        make_room(dir.path(), Rule::last(0), coming(None)).unwrap();
        assert_eq!(steps(dir.path()), [1, 4, 5], "the newest is damaged: the one before it stays");
    }

    #[test]
    fn what_an_attempt_left_goes_and_what_others_write_stays() {
        let dir = tempfile::tempdir().unwrap();
        let step = name::temporary(8, "1-aa");
        let other = name::temporary(16, "11-aa");
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
