//! Stages configured data and reports it.

use super::announce::Announcer;
use crate::{Error, error::Usage};
use enn_common::{
    config::{RunConfig, data::DataConfig},
    event::{EventKind, SourceShare},
    fs::private,
    staged::{Split, StagedMeta, meta::SourceMeta, mix},
};
use enn_data::stage::{self as stager, StageOptions, Staged};
pub use enn_ui::runs::STAGED_DIR;
use enn_ui::{Mode, Sink};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Staging progress is reported at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Stages the configured data under `out` without training; returns the staged directory and its description.
///
/// # Errors
/// The data are wrong, or the disk is too small.
pub fn stage(config: &RunConfig, out: &Path, mode: Mode) -> Result<Staged, Error> {
    let announcer = Announcer::start(Sink::bare(mode));
    stage_data(config, None, out, &announcer)
}

/// Stages the configured data and reports the progress.
pub(super) fn stage_data(
    config: &RunConfig,
    for_prediction: Option<StagedMeta>,
    out: &Path,
    announcer: &Announcer,
) -> Result<Staged, Error> {
    let (staged, seconds) = quietly_staged(config, for_prediction, out, announcer)?;
    announcer.send(staged_event(&staged, config, seconds));
    Ok(staged)
}

/// Stages the configured data like [`stage_data`] without the final event; returns the staged data and the seconds it took.
pub(super) fn quietly_staged(
    config: &RunConfig,
    for_prediction: Option<StagedMeta>,
    out: &Path,
    announcer: &Announcer,
) -> Result<(Staged, f64), Error> {
    if out.file_name().is_some_and(|name| name == STAGED_DIR) {
        // The directory lies among the runs, which only their user may read, and holds the same data.
        private::close_dir(out)?;
    }
    let data = config.data.as_ref().ok_or(Error::Usage(Usage::NoData))?;
    let began = Instant::now();
    let options = StageOptions { out: out.to_owned(), threads: 0, for_prediction };
    let mut reported: Option<Instant> = None;
    let staged = stager::stage(data, &options, &mut |progress| {
        if reported.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL) {
            reported = Some(Instant::now());
            let stager::Progress { rows, bytes, bytes_total } = progress;
            announcer.send(EventKind::StageProgressed { rows, bytes, bytes_total });
        }
    })?;
    Ok((staged, began.elapsed().as_secs_f64()))
}

pub(super) fn open_staged(dir: &Path) -> Result<Staged, Error> {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let meta = enn_common::staged::Staged::open(&dir)?.meta().clone();
    Ok(Staged { dir, meta, reused: true, resumed_rows: 0 })
}

pub(super) fn staged_event(staged: &Staged, config: &RunConfig, seconds: f64) -> EventKind {
    let meta = &staged.meta;
    EventKind::Staged {
        dir: staged.dir.clone(),
        rows: meta.rows,
        features: meta.features.len() as u64,
        out_shape: meta.out_shape.clone(),
        split_rows: meta.split_rows,
        sources: source_shares(meta, config),
        units: meta.units.clone(),
        reused: staged.reused,
        resumed_rows: staged.resumed_rows,
        seconds,
        report: meta.report.clone(),
    }
}

/// Returns the sources of the data and the number of rows that training draws from each.
fn source_shares(meta: &StagedMeta, config: &RunConfig) -> Vec<SourceShare> {
    let rows: Vec<u64> = meta.sources.iter().map(|source| source.split_rows[Split::Train as usize]).collect();
    let weights = config.data.as_ref().and_then(DataConfig::source_weights);
    let draws = weights.as_ref().map_or_else(|| rows.clone(), |weights| mix::draws(&rows, weights));
    let share = |(index, (source, draws)): (usize, (&SourceMeta, u64))| SourceShare {
        name: source.name.clone(),
        split_rows: source.split_rows,
        weight: weights.as_ref().and_then(|weights| weights.get(index).copied()),
        draws,
    };
    meta.sources.iter().zip(draws).enumerate().map(share).collect()
}
