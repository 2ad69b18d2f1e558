//! A run that is to be resumed but has nothing left to do: its journal, report and checkpoints are not changed.

use super::{mirror, pretrained, trained_run::TrainedRun};
use crate::{Error, error::Usage};
use enn_cluster::supervise::RunEnd;
use enn_common::{checkpoint::listing, config::RunConfig, staged::StagedMeta};
use enn_process::run_dir::{self, RunDir};
use enn_ui::{RunView, model::TrainedView, run_status::RunStatus};
use std::path::{Path, PathBuf};

/// A run whose training is complete.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedRun {
    dir: PathBuf,
    checkpoint: PathBuf,
    trained: TrainedView,
    /// The number of configured epochs.
    wanted: u64,
}

/// Returns the run in `run` if resuming it by `config` would train nothing: all epochs are done, or it stopped early and no more epochs are
/// configured.
///
/// # Errors
/// The run has done more epochs than are configured.
pub fn finished(config: &RunConfig, run: &Path) -> Result<Option<FinishedRun>, Error> {
    let Ok(view) = RunView::read(run) else { return Ok(None) };
    let ended = RunStatus::of(&view, run_dir::is_living(run));
    let Some((manifest, checkpoint)) = pretrained::trained(run).zip(listing::find(run).ok()) else { return Ok(None) };
    let Ok(before) = serde_json::from_value::<RunConfig>(manifest.config.clone()) else { return Ok(None) };
    let Some(rows) = pretrained::described(&manifest.meta).ok().map(|meta: StagedMeta| meta.split_rows[0]) else {
        return Ok(None);
    };
    let done = manifest.epoch;
    // Settings that the configuration leaves open keep the run's values.
    let wanted =
        run_dir::read_config(run).map_or_else(|_| config.clone(), |before| config.after(&before)).train.passes(rows);
    if done > wanted {
        return Err(Error::Usage(Usage::EpochsDone { run: pretrained::name_of(run), done, wanted }));
    }
    let Some(trained) = view.trained.filter(|trained| ended == RunStatus::Finished && trained.step == manifest.step)
    else {
        return Ok(None);
    };
    // The worker decides by the same rule.
    let is_longer = wanted > before.train.passes(rows) || config.train.patience != before.train.patience;
    let goes_on = done < wanted && (is_longer || !trained.stopped_early);
    let checkpoint = checkpoint.dir().to_owned();
    Ok((!goes_on).then(|| FinishedRun { dir: run.to_owned(), checkpoint, trained, wanted }))
}

impl FinishedRun {
    /// Describes the finished run and how to continue from it.
    pub fn message(&self) -> String {
        let done = self.trained.epoch;
        let wanted = self.wanted;
        let name = pretrained::name_of(&self.dir);
        let how = if self.trained.stopped_early {
            format!("{done} of {wanted} epochs, stopped early")
        } else {
            format!("{done} epochs")
        };
        let more = wanted.saturating_mul(2);
        format!(
            "{name} is finished ({how}): nothing is left to do, and nothing is changed\n  hint: `enn train --resume {name} --set \
             train.epochs={more}` goes on with it; `enn train CONFIG --from {name}` begins a new run with its weights"
        )
    }

    /// Returns the result of a training that had nothing to do. Checkpoints that have not been uploaded yet are uploaded.
    pub(super) fn leave(self, config: &RunConfig) -> Result<TrainedRun, Error> {
        if mirror::is_kept(config, &self.dir) {
            mirror::end(config, &RunDir::open(&self.dir)?)?;
        }
        let metrics = Some(self.trained.split);
        let checkpoint = Some(self.checkpoint);
        Ok(TrainedRun { metrics, checkpoint, ..TrainedRun::new(self.dir, RunEnd::Finished) })
    }
}
