//! A run that is to be gone on with and has nothing left to do: its journal, its report and its checkpoints stay as they are.

use super::{mirror, parent, train::TrainedRun};
use crate::{
    Error,
    agent::Ended,
    error::Usage,
    run_dir::{self, RunDir},
    ui::{RunView, model::TrainedView, standing::Standing},
};
use enn_common::{checkpoint::listing, config::RunConfig, staged::StagedMeta};
use std::path::{Path, PathBuf};

/// What has been done in it.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedRun {
    dir: PathBuf,
    checkpoint: PathBuf,
    trained: TrainedView,
    /// Epochs it was to do.
    wanted: u64,
}

/// The run in `run`, if going on with it by `config` would train nothing: all its epochs are done, or it stopped early and is asked for
/// no more of them.
///
/// # Errors
/// It has done more epochs than it is to do.
pub fn finished(config: &RunConfig, run: &Path) -> Result<Option<FinishedRun>, Error> {
    let Ok(view) = RunView::read(run) else { return Ok(None) };
    let ended = Standing::of(&view, run_dir::is_living(run));
    let Some((manifest, checkpoint)) = parent::trained(run).zip(listing::find(run).ok()) else { return Ok(None) };
    let Ok(before) = serde_json::from_value::<RunConfig>(manifest.config.clone()) else { return Ok(None) };
    let Some(rows) = parent::described(&manifest.meta).ok().map(|meta: StagedMeta| meta.split_rows[0]) else {
        return Ok(None);
    };
    let done = manifest.epoch;
    // What is left open is as it was.
    let wanted =
        run_dir::read_config(run).map_or_else(|_| config.clone(), |before| config.after(&before)).train.passes(rows);
    if done > wanted {
        return Err(Error::Usage(Usage::EpochsDone { run: parent::name_of(run), done, wanted }));
    }
    let Some(trained) = view.trained.filter(|trained| ended == Standing::Finished && trained.step == manifest.step)
    else {
        return Ok(None);
    };
    // The worker's own rule for what goes on.
    let is_longer = wanted > before.train.passes(rows) || config.train.patience != before.train.patience;
    let goes_on = done < wanted && (is_longer || !trained.stopped_early);
    let checkpoint = checkpoint.dir().to_owned();
    Ok((!goes_on).then(|| FinishedRun { dir: run.to_owned(), checkpoint, trained, wanted }))
}

impl FinishedRun {
    /// A sentence, and how to go on.
    pub fn told(&self) -> String {
        let done = self.trained.epoch;
        let wanted = self.wanted;
        let name = parent::name_of(&self.dir);
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

    /// What training leaves that has nothing to do. Where the run is kept at an address, what is not there yet comes there.
    pub(super) fn leave(self, config: &RunConfig) -> Result<TrainedRun, Error> {
        if mirror::is_kept(config, &self.dir) {
            mirror::end(config, &RunDir::open(&self.dir)?)?;
        }
        Ok(TrainedRun {
            dir: self.dir,
            ended: Ended::Finished,
            metrics: Some(self.trained.split),
            checkpoint: Some(self.checkpoint),
            restarts: 0,
            rounds: 0,
            led: true,
        })
    }
}
