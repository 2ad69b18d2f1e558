//! The run's real checkpoints: DCP directories with a manifest, committed whole, old ones let go.

use super::{
    committer::{Checkpoints, Committed},
    shards::ShardSet,
};
use enn_common::{
    artifact::model_card::Findings,
    checkpoint::{
        self, Draft, latest,
        listing::FindError,
        name, prune,
        prune::make_room,
        remove_attempt, remove_leftovers,
        retain::{Candidate, Rule},
    },
    config::train::TrainConfig,
    fs::atomic,
    metrics::Metrics,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::SystemTime,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Tells the user something.
type Warn = Box<dyn Fn(String) + Send>;

/// What is known of the model at this moment, for the next manifest.
pub type Known = Box<dyn Fn() -> (BTreeMap<String, Metrics>, Findings) + Send>;

/// Hears of every checkpoint that was committed, before an older one is let go. It must not wait.
pub type Then = Box<dyn Fn(&Path) + Send>;

/// Checkpoints below one directory.
pub struct Durable {
    directory: PathBuf,
    keep: Rule,
    /// What every manifest says besides its step: run, configuration, data.
    draft: Draft,
    /// Damaged checkpoints that were passed over are told here.
    warn: Warn,
    known: Option<Known>,
    then: Option<Then>,
}

impl Durable {
    /// Checkpoints in `directory`; those that `train` says are kept besides the newest and the best. `draft` is completed with step, epoch,
    /// metric and time at each commit. `warn` hears of damaged checkpoints and of old ones that cannot be removed.
    pub fn new(directory: PathBuf, train: &TrainConfig, draft: Draft, warn: Warn) -> Self {
        Self { directory, keep: rule(train), draft, warn, known: None, then: None }
    }

    /// Every manifest says what `known` says when it is written.
    #[must_use]
    pub fn knowing(self, known: Known) -> Self {
        Self { known: Some(known), ..self }
    }

    /// Every committed checkpoint is told to `then`.
    #[must_use]
    pub fn telling(self, then: Option<Then>) -> Self {
        Self { then, ..self }
    }
}

/// Which checkpoints stay.
pub fn rule(train: &TrainConfig) -> Rule {
    Rule { last: train.checkpoint_keep, epochs: train.checkpoint_keep_epochs, hours: train.checkpoint_keep_hours }
}

impl Checkpoints for Durable {
    fn prepare(&mut self) -> Result<Option<Committed>, Failure> {
        atomic::make_dir(&self.directory)?;
        remove_leftovers(&self.directory)?;
        let latest = latest(&self.directory);
        for (path, error) in &latest.skipped {
            (self.warn)(format!("checkpoint {} is passed over: {error}", path.display()));
        }
        if let (None, Some((_, reason))) = (&latest.found, latest.skipped.into_iter().next()) {
            // To begin again from nothing in a run that had come somewhere is not for us to decide.
            return Err(Box::new(FindError::Incomplete { path: self.directory.clone(), reason: Box::new(reason) }));
        }
        Ok(latest.found.and_then(|found| {
            let manifest = found.manifest()?;
            let step = manifest.step;
            let bytes = manifest.bytes();
            let metric = manifest.metric;
            Some(Committed { step, path: found.dir().to_owned(), bytes, metric })
        }))
    }

    fn set_aside(&mut self, path: &Path, file: Option<&Path>) -> Result<Option<String>, Failure> {
        Ok(checkpoint::set_aside(path, file)?.map(|damage| damage.to_string()))
    }

    fn commit(&mut self, shards: &ShardSet) -> Result<Committed, Failure> {
        let attempt = shards.attempt();
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (metrics, findings) = self.known.as_ref().map_or_else(Default::default, |known| known());
        let draft = Draft {
            metrics,
            findings,
            attempt,
            step: shards.step,
            epoch: shards.epoch,
            metric: shards.metric,
            wall_time: since_epoch.as_secs_f64(),
            ..self.draft.clone()
        };
        let target = self.directory.join(name::committed(shards.step));
        let done = checkpoint::commit(&shards.dir, &target, &shards.tables, draft)?;
        if let Some(then) = &self.then {
            then(&done.path);
        }
        // The new checkpoint stands; that an old one could not be removed costs disk only.
        if let Err(error) = prune(&self.directory, self.keep) {
            (self.warn)(format!("an old checkpoint could not be removed: {error}"));
        }
        Ok(Committed { step: done.step, path: done.path, bytes: done.bytes, metric: shards.metric })
    }

    fn make_room(&mut self, coming: &ShardSet) -> bool {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let ShardSet { step, epoch, metric, .. } = *coming;
        match make_room(&self.directory, self.keep, Candidate { step, epoch, time, metric }) {
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

    fn abandon(&mut self, attempt: &str, below: u64) {
        if let Err(error) = remove_attempt(&self.directory, attempt, below) {
            (self.warn)(format!("an unfinished checkpoint could not be removed: {error}"));
        }
    }
}
