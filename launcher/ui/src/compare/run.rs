//! One run as a comparison sees it: its state, its configuration and its figures.

use crate::{
    RunView, configuration,
    error::JournalError,
    journal, metrics,
    runs::{RunState, RunSummary},
};
use enn_common::{
    artifact::ranking::{RankedForecaster, best_baseline},
    event::{Event, EventKind},
    metrics::Metrics,
};
use enn_process::run_dir;
use std::{collections::BTreeSet, fs, path::Path};

/// A run that is compared with others.
#[derive(Debug, Clone)]
pub struct ComparedRun {
    pub summary: RunSummary,
    pub view: RunView,
    /// Keys of run.json and their values; empty for a run of `enn run`.
    pub config: Vec<(String, String)>,
    /// Failures and hangs that were reported.
    reported: u64,
    /// Failures after which training recorded that it did another step.
    recovered: u64,
}

impl ComparedRun {
    /// Reads the run in `path`; `None` where there is none. A run that has not begun has an empty view.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn read(path: &Path) -> Result<Option<Self>, JournalError> {
        let Some(summary) = RunSummary::read(path) else { return Ok(None) };
        let config = fs::read(path.join(run_dir::RUN_JSON)).ok();
        let config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let config = config.as_ref().map(configuration::keys).unwrap_or_default();
        let mut run = Self::new(summary, config);
        let has_journal = !matches!(run.summary.state, RunState::Loaded | RunState::Empty);
        if has_journal && path.join(journal::FILE).is_file() {
            let _unreadable = journal::read(path, |event| run.apply(&event))?;
        }
        Ok(Some(run))
    }

    pub(super) fn apply(&mut self, event: &Event) {
        match &event.what {
            EventKind::FailureReported { .. } | EventKind::HangDetected { .. } => self.reported += 1,
            EventKind::Recovered { .. } => self.recovered += 1,
            _ => {}
        }
        self.view.apply(event);
    }

    /// Returns the failures; a round may have failed without a report.
    pub fn failures(&self) -> u64 {
        let rounds = self.view.rounds.iter().filter(|round| round.failure.is_some()).count() as u64;
        self.reported.max(rounds)
    }

    /// Returns the failures after which training went on.
    pub fn recoveries(&self) -> u64 {
        self.recovered.max(self.view.restarts())
    }

    /// Makes a run of a summary and a configuration, to which events are then applied.
    pub(super) fn new(summary: RunSummary, config: Vec<(String, String)>) -> Self {
        Self { summary, view: RunView::default(), config, reported: 0, recovered: 0 }
    }

    /// Returns the value of a key of run.json.
    pub fn key(&self, key: &str) -> Option<&str> {
        self.config.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Returns the metrics of the best model on a split, "val" or "test".
    pub fn metrics(&self, split: &str) -> Option<Metrics> {
        metrics::split(&self.view).get(split).filter(|metrics| metrics.n > 0).copied()
    }

    /// Returns the best baseline of the run on one split.
    pub fn best_baseline(&self, split: &str) -> Option<RankedForecaster<'_>> {
        best_baseline(self.view.baselines.get(split)?)
    }

    /// Returns the epoch whose weights are kept so far.
    pub fn best_epoch(&self) -> Option<f64> {
        self.view.best().map(|report| (report.epochs() * 100.0).round() / 100.0)
    }

    /// Returns the epochs that were done.
    pub fn epochs(&self) -> Option<f64> {
        let of_reports = self.view.epochs.last().map(|report| (report.epochs() * 100.0).round() / 100.0);
        of_reports.or_else(|| self.view.trained.as_ref().map(|trained| trained.epoch as f64))
    }

    pub fn steps(&self) -> Option<u64> {
        self.view.trained.as_ref().map(|trained| trained.step).or(self.view.latest.map(|step| step.step))
    }

    pub fn parameters(&self) -> Option<u64> {
        self.view.model.as_ref().map(|model| model.parameters)
    }

    /// Returns the time of all launches that trained or ran a program, seconds; that of one under way until its last event.
    pub fn seconds(&self) -> Option<f64> {
        let sessions = &self.view.sessions;
        let counted =
            sessions.iter().enumerate().filter(|(_, session)| ["train", "run"].contains(&session.mode.as_str()));
        let seconds: Vec<f64> = counted
            .map(|(at, session)| match session.ended {
                Some(end) => end.seconds,
                // A launcher that was killed wrote nothing after its last event.
                None if at + 1 == sessions.len() => self.view.now - session.started,
                None => 0.0,
            })
            .collect();
        (!seconds.is_empty()).then(|| seconds.iter().sum())
    }

    /// Returns the workers of the last round.
    pub fn workers(&self) -> Option<u32> {
        self.view.rounds.last().map(|round| round.world_size)
    }

    /// Returns the kinds of devices that workers had, such as "cpu" or "cuda".
    pub fn devices(&self) -> Option<String> {
        let ready = self.view.workers.iter().filter_map(|worker| worker.ready.as_ref());
        let kinds: BTreeSet<&str> = ready.filter_map(|ready| ready.device.split(':').next()).collect();
        (!kinds.is_empty()).then(|| kinds.into_iter().collect::<Vec<_>>().join(" and "))
    }
}
