//! The checkpoints of a training: DCP directories with a manifest, committed whole, old ones removed.

use super::{
    checkpoints::{CheckpointFailure, Checkpoints},
    fence::Fence,
};
use crate::supervisor::{
    CompleteCheckpoint,
    input::{CommittedCheckpoint, FoundCheckpoint},
};
use enn_common::{
    artifact::model_card::Findings,
    checkpoint::{
        self, Draft,
        commit::commit_on,
        latest,
        listing::FindError,
        name,
        prune::{self, Judged},
        remove_attempt, remove_leftovers,
        retain::{Candidate, Rule},
    },
    config::train::TrainConfig,
    fs::{Disk, FileError, Storage, StorageFile, atomic},
    metrics::Metrics,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Tells the user something.
type Warn = Box<dyn Fn(String) + Send>;

/// Returns what is known of the model at this moment, for the next manifest.
pub type Known = Box<dyn Fn() -> (BTreeMap<String, Metrics>, Findings) + Send>;

/// Hears of every checkpoint that was committed, before an older one is removed. It must not wait.
pub type Then = Box<dyn Fn(&Path) + Send>;

/// Checkpoints below one directory.
pub struct CheckpointStore {
    directory: PathBuf,
    keep: Rule,
    /// Parts of a manifest that are the same for all checkpoints: run, configuration, data.
    draft: Draft,
    /// Hears of damaged checkpoints that were passed over.
    warn: Warn,
    pub known: Option<Known>,
    pub then: Option<Then>,
    fence: Fence,
}

impl CheckpointStore {
    /// Makes the store of checkpoints in `directory`; those that `train` says are kept besides the newest and the best. `draft` is completed
    /// with step, epoch, metric and time at each commit. `warn` hears of damaged checkpoints and of old ones that cannot be removed.
    pub fn new(directory: PathBuf, train: &TrainConfig, draft: Draft, warn: Warn) -> Self {
        let fence = Fence::default();
        Self { directory, keep: retention_rule(train), draft, warn, known: None, then: None, fence }
    }

    /// Finds the newest whole checkpoint.
    fn find(&self) -> Result<Option<FoundCheckpoint>, CheckpointFailure> {
        let latest = latest(&self.directory);
        for (path, error) in &latest.skipped {
            (self.warn)(format!("checkpoint {} is passed over: {error}", path.display()));
        }
        if let (None, Some((_, reason))) = (&latest.found, latest.skipped.into_iter().next()) {
            // To begin again from nothing in a run that had come somewhere is not for us to decide.
            return Err(Box::new(FindError::Incomplete { path: self.directory.clone(), reason: Box::new(reason) }));
        }
        Ok(latest.found.and_then(|found| {
            let step = found.manifest()?.step;
            Some(FoundCheckpoint { step, path: found.dir().to_owned() })
        }))
    }

    fn disk(&self) -> FencedDisk<'_> {
        FencedDisk(&self.fence)
    }

    fn remove(&self, judged: &[Judged]) -> Result<Vec<PathBuf>, FileError> {
        prune::remove_on(&self.disk(), &self.directory, judged)
    }
}

pub fn retention_rule(train: &TrainConfig) -> Rule {
    Rule { last: train.checkpoint_keep, epochs: train.checkpoint_keep_epochs, hours: train.checkpoint_keep_hours }
}

impl Checkpoints for CheckpointStore {
    fn set_fence(&mut self, fence: Fence) {
        self.fence = fence;
    }

    fn prepare(&mut self) -> Result<Option<FoundCheckpoint>, CheckpointFailure> {
        self.fence.check()?;
        atomic::make_dir(&self.directory)?;
        remove_leftovers(&self.directory)?;
        self.find()
    }

    fn set_aside(&mut self, path: &Path, file: Option<&Path>) -> Result<Option<String>, CheckpointFailure> {
        self.fence.check()?;
        Ok(checkpoint::set_aside(path, file)?.map(|damage| damage.to_string()))
    }

    fn commit(&mut self, shards: &CompleteCheckpoint) -> Result<CommittedCheckpoint, CheckpointFailure> {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (metrics, findings) = self.known.as_ref().map_or_else(Default::default, |known| known());
        let draft = Draft {
            metrics,
            findings,
            attempt: shards.attempt.clone(),
            step: shards.step,
            epoch: shards.epoch,
            metric: shards.metric,
            wall_time: since_epoch.as_secs_f64(),
            ..self.draft.clone()
        };
        let target = self.directory.join(name::committed(shards.step));
        let done = commit_on(&self.disk(), &shards.dir, &target, &shards.tables, draft)?;
        if let Some(then) = &self.then {
            then(&done.path);
        }
        // The new checkpoint stands; that an old one could not be removed costs disk only.
        if let Err(error) = self.remove(&prune::verdicts(&self.directory, self.keep)) {
            (self.warn)(format!("an old checkpoint could not be removed: {error}"));
        }
        Ok(CommittedCheckpoint { path: done.path, bytes: done.bytes, metric: shards.metric })
    }

    fn make_room(&mut self, coming: &CompleteCheckpoint) -> bool {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let CompleteCheckpoint { step, epoch, metric, .. } = *coming;
        let judged = prune::verdicts_with(&self.directory, self.keep, Candidate { step, epoch, time, metric });
        match self.remove(&judged) {
            Ok(removed) => {
                let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let names = removed.iter().map(name).collect::<Vec<_>>().join(" and ");
                if !removed.is_empty() {
                    (self.warn)(format!("the disk is full: {names} made room for the checkpoint of step {step}"));
                }
                !removed.is_empty()
            }
            Err(error) => {
                (self.warn)(format!("an old checkpoint could not make room for that of step {step}: {error}"));
                false
            }
        }
    }

    fn discard(&mut self, attempt: &str, below: u64) {
        if !self.fence.holds() {
            return;
        }
        if let Err(error) = remove_attempt(&self.directory, attempt, below) {
            (self.warn)(format!("an unfinished checkpoint could not be removed: {error}"));
        }
    }
}

/// The disk for a leader: names change only while the run directory is its own.
struct FencedDisk<'a>(&'a Fence);

impl FencedDisk<'_> {
    fn check(&self, action: &'static str, path: &Path) -> Result<(), FileError> {
        self.0.check().map_err(FileError::of(action, path))
    }
}

impl Storage for FencedDisk<'_> {
    fn create(&self, path: &Path) -> Result<Box<dyn StorageFile>, FileError> {
        Disk.create(path)
    }

    fn create_sized(&self, path: &Path, bytes: u64) -> Result<Box<dyn StorageFile>, FileError> {
        Disk.create_sized(path, bytes)
    }

    fn create_dir(&self, path: &Path) -> Result<(), FileError> {
        Disk.create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), FileError> {
        self.check("rename to", to)?;
        Disk.rename(from, to)
    }

    fn exchange(&self, one: &Path, other: &Path) -> Result<(), FileError> {
        self.check("exchange with", other)?;
        Disk.exchange(one, other)
    }

    fn sync_dir(&self, path: &Path) -> Result<(), FileError> {
        Disk.sync_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<(), FileError> {
        self.check("remove directory", path)?;
        Disk.remove_dir(path)
    }

    fn len(&self, path: &Path) -> Result<u64, FileError> {
        Disk.len(path)
    }

    fn exists(&self, path: &Path) -> bool {
        Disk.exists(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::checkpoint::{ShardWriter, TensorDType};
    use enn_process::run_dir::RunDir;
    use std::time::Duration;

    fn shards(directory: &Path, step: u64) -> CompleteCheckpoint {
        let dir = directory.join(name::temporary(step, "0-a"));
        let mut shard = ShardWriter::create(&dir, 0).unwrap();
        shard.whole("w", TensorDType::F32, &[64], &[7; 256]).unwrap();
        let tables = vec![shard.finish().unwrap()];
        CompleteCheckpoint { step, epoch: 1, attempt: "0-a".into(), dir, metric: None, blocked: 0.0, tables }
    }

    #[test]
    fn a_leader_that_lost_its_directory_commits_and_removes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create_at(&dir.path().join("run")).unwrap();
        let train = TrainConfig { checkpoint_keep: 1, ..TrainConfig::default() };
        let directory = run.checkpoints();
        let mut store = CheckpointStore::new(directory.clone(), &train, Draft::default(), Box::new(|_| {}));
        store.set_fence(Fence::begin(run.path(), run.witness().unwrap()).unwrap());
        assert_eq!(store.prepare().unwrap(), None);
        let path = store.commit(&shards(&directory, 3)).unwrap().path;
        assert_eq!(store.find().unwrap(), Some(FoundCheckpoint { step: 3, path }));
        let late = shards(&directory, 5);
        let _successor = RunDir::take_over(run.path(), Duration::from_millis(10)).unwrap();
        let error = store.commit(&late).unwrap_err().to_string();
        assert!(error.contains("another node leads the run"), "{error}");
        store.discard("0-a", 9);
        assert!(!store.make_room(&late) && store.prepare().is_err());
        let steps: Vec<u64> = name::list(&directory).into_iter().map(|(step, _)| step).collect();
        assert_eq!((steps, late.dir.exists()), (vec![3], true));
    }
}
