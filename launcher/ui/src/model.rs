//! The run as it stands: a pure fold of events.
//!
//! **Invariant:** [`RunView::apply`] is total and bounded; the same events give the same view, live or read back. Time is
//! the time of the last event.

mod nodes;
mod processes;
mod training;
mod unrecorded;

pub use nodes::{FailureView, HangView, NodeState, NodeView, WaitView};
pub use processes::{ExitView, ReadyView, RoundView, WorkerView};
pub use training::{CheckpointView, ModelView, StagedView, StepView, TrainedView};

use super::{error::JournalError, journal, lines, trace::Trace};
use enn_common::{
    artifact::classes::ClassFigures,
    event::{EpochReport, Event, EventKind},
    metrics::Metrics,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The state of a run after the events so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunView {
    /// Launches on this run directory, in order: a resumed run has several.
    pub sessions: Vec<SessionView>,
    /// Time of the last event, seconds since the Unix epoch.
    pub now: f64,
    /// Progress of staging: rows, bytes and bytes in all.
    pub staging: Option<(u64, u64, u64)>,
    pub staged: Option<StagedView>,
    /// Split → baseline → errors in target units.
    pub baselines: BTreeMap<String, BTreeMap<String, Metrics>>,
    /// Notes on what the baselines left out.
    pub baseline_notes: Vec<String>,
    pub model: Option<ModelView>,
    /// The last recorded optimizer step.
    pub latest: Option<StepView>,
    /// Training loss over steps, thinned.
    pub losses: Trace,
    /// Epochs that count: those of an undone part are replaced when it is trained again.
    pub epochs: Vec<EpochReport>,
    pub rounds: Vec<RoundView>,
    /// Workers in order of their start, over all rounds.
    pub workers: Vec<WorkerView>,
    /// Nodes: those of the current round in its order, then the others.
    pub nodes: Vec<NodeView>,
    /// The reason for which the rendezvous waits, if it does.
    pub waiting: Option<WaitView>,
    /// First failures of rounds, in order.
    pub failures: Vec<FailureView>,
    pub hangs: Vec<HangView>,
    /// Checkpoints, committed or failed, in order.
    pub checkpoints: Vec<CheckpointView>,
    /// Requests to stop: time, signal.
    pub stops: Vec<(f64, String)>,
    /// Split → metrics of predicted classes.
    pub classes: BTreeMap<String, ClassFigures>,
    pub trained: Option<TrainedView>,
    /// Rows predicted and rows in all.
    pub predicted: Option<(u64, u64)>,
    /// Gathered checkpoints: path, files, bytes.
    pub gathered: Vec<(PathBuf, u64, u64)>,
    /// Warnings: time (seconds since the Unix epoch) and message.
    pub warnings: Vec<(f64, String)>,
    /// The precision of training, and the reason for it.
    pub precision: Option<(String, String)>,
    /// Sentences on decisions about the model.
    pub decisions: Vec<String>,
    /// Description of the micro-batches, and the reason for them.
    pub micro_batches: Option<String>,
    /// Since when the run is paused.
    pub paused: Option<f64>,
    /// Number of parts into which micro-batches are split because memory was short; 0 and 1: not split.
    pub split: u32,
    /// Numbers of the journal's lines that could not be parsed.
    pub unreadable: Vec<u64>,
    /// Time and step of the first step of the current round, from which the remaining time is estimated.
    pace: Option<(f64, u64)>,
}

/// A launch on the run directory.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionView {
    /// Name of the run.
    pub run: String,
    /// The mode, such as "train" or "predict".
    pub mode: String,
    pub dir: PathBuf,
    /// Host of the launcher.
    pub host: String,
    /// Number of requested workers.
    pub nproc: u32,
    pub argv: Vec<String>,
    /// Start, seconds since the Unix epoch.
    pub started: f64,
    pub ended: Option<EndView>,
}

/// The end of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EndView {
    /// Seconds since the Unix epoch.
    pub time: f64,
    /// Exit code of `enn`.
    pub code: u8,
    /// Duration, seconds.
    pub seconds: f64,
    pub restarts: u32,
    pub rounds: u64,
}

impl RunView {
    /// Reads the journal of `run_dir`.
    ///
    /// # Errors
    /// The journal is missing or cannot be read.
    pub fn read(run_dir: &Path) -> Result<Self, JournalError> {
        let mut view = Self::default();
        view.unreadable = journal::read(run_dir, |event| view.apply(&event))?;
        Ok(view)
    }

    pub fn apply(&mut self, event: &Event) {
        let time = event.time;
        self.now = self.now.max(time);
        match &event.what {
            EventKind::RunStarted { .. } | EventKind::RunEnded { .. } => self.apply_session(time, &event.what),
            EventKind::StageProgressed { .. } | EventKind::Staged { .. } => self.apply_staging(&event.what),
            EventKind::BaselinesComputed { split, notes } => {
                self.baselines.clone_from(split);
                self.baseline_notes.clone_from(notes);
            }
            EventKind::RoundStarted { .. }
            | EventKind::RoundFormed { .. }
            | EventKind::RoundFailed { .. }
            | EventKind::RoundLeft { .. } => {
                self.apply_round(time, &event.what);
            }
            EventKind::WorkerStarted { .. }
            | EventKind::WorkerReady { .. }
            | EventKind::WorkerExited { .. }
            | EventKind::WorkerDismissed { .. }
            | EventKind::SeatTaken { .. }
            | EventKind::WorkerFailed { .. } => self.apply_worker(time, &event.what),
            EventKind::BatchChosen { micro, accumulation, reason, .. } => {
                self.micro_batches = Some(format!("{micro} rows, {accumulation} a step ({reason})"));
            }
            EventKind::PrecisionChosen { format, reason } => self.precision = Some((format.clone(), reason.clone())),
            EventKind::Decided { decision } => self.decisions.push(decision.clone()),
            EventKind::ModelBuilt { .. }
            | EventKind::Stepped { .. }
            | EventKind::EpochEnded(_)
            | EventKind::Trained { .. } => {
                self.apply_training(time, &event.what);
            }
            EventKind::CheckpointCommitted { .. }
            | EventKind::CheckpointFailed { .. }
            | EventKind::CheckpointDamaged { .. } => {
                self.apply_checkpoint(time, &event.what);
            }
            EventKind::MicroBatchesSplit { .. }
            | EventKind::MicroBatchesGrown { .. }
            | EventKind::Straggler { .. }
            | EventKind::Paused { .. }
            | EventKind::Continued { .. }
            | EventKind::Resized { .. } => self.apply_control(time, &event.what),
            EventKind::StopRequested { signal, .. } => self.stops.push((time, signal.clone())),
            EventKind::ClassesJudged { split, classes } => {
                self.classes.insert(split.clone(), (**classes).clone());
            }
            EventKind::Predicted { rows, rows_total } => self.predicted = Some((*rows, *rows_total)),
            EventKind::Gathered { path, files, bytes } => self.gathered.push((path.clone(), *files, *bytes)),
            EventKind::Warned { message } | EventKind::GaveUp { reason: message } => {
                self.warnings.push((time, message.clone()));
            }
            EventKind::KernelQuarantined { entry, .. } => self.warnings.push((time, entry.sentence())),
            // Told when they happen.
            EventKind::Preloaded { .. }
            | EventKind::KernelRecovered { .. }
            | EventKind::SpareStarted { .. }
            | EventKind::SpareReady { .. }
            | EventKind::SpareEnded { .. }
            | EventKind::StateReceived { .. }
            | EventKind::Recovered { .. } => {}
            EventKind::Waiting { .. }
            | EventKind::NodeJoined { .. }
            | EventKind::NodeLost { .. }
            | EventKind::FailureReported { .. }
            | EventKind::HangDetected { .. } => self.apply_node(time, &event.what),
        }
    }

    fn apply_control(&mut self, time: f64, what: &EventKind) {
        match what {
            EventKind::MicroBatchesSplit { split, rank, .. } => {
                self.split = *split;
                self.warnings.push((time, lines::out_of_memory(*rank, *split)));
            }
            EventKind::MicroBatchesGrown { split, .. } => self.split = *split,
            EventKind::Straggler { rank, pid, slower_by, evicted, .. } => {
                self.warnings.push((time, lines::straggler(*rank, *pid, *slower_by, *evicted)));
            }
            EventKind::Paused { .. } => self.paused = Some(time),
            EventKind::Continued { .. } => self.paused = None,
            // The next round's size tells.
            _ => {}
        }
    }

    fn apply_session(&mut self, time: f64, what: &EventKind) {
        match what {
            EventKind::RunStarted { run, mode, dir, host, nproc, argv } => {
                // A launcher that was killed said no end.
                self.waiting = None;
                self.paused = None;
                self.split = 0;
                self.dismiss_nodes();
                self.sessions.push(SessionView {
                    run: run.clone(),
                    mode: mode.clone(),
                    dir: dir.clone(),
                    host: host.clone(),
                    nproc: *nproc,
                    argv: argv.clone(),
                    started: time,
                    ended: None,
                });
            }
            EventKind::RunEnded { code, seconds, restarts, rounds, .. } => {
                self.end_round(time);
                self.waiting = None;
                if let Some(session) = self.sessions.last_mut() {
                    let end = EndView { time, code: *code, seconds: *seconds, restarts: *restarts, rounds: *rounds };
                    session.ended = Some(end);
                }
            }
            _ => {}
        }
    }

    /// Returns the name of the run: that of the directory, as the first launch recorded it.
    pub fn name(&self) -> &str {
        self.sessions.first().map_or("", |session| &session.run)
    }

    /// Returns the launch that trained last, or the last one of any kind.
    pub fn session(&self) -> Option<&SessionView> {
        self.sessions.iter().rev().find(|session| session.mode == "train").or(self.sessions.last())
    }
}

#[cfg(test)]
pub(super) mod tests;
