//! The run as it stands: a pure fold of events.
//!
//! **Invariant:** [`RunView::apply`] is total and bounded; the same events give the same view, live or read back. Time is
//! the time of the last event.

mod nodes;
mod processes;
mod training;
mod untold;

pub use nodes::{FailureView, HangView, NodeState, NodeView, WaitView};
pub use processes::{ExitView, ReadyView, RoundView, WorkerView};
pub use training::{CheckpointView, ModelView, StagedView, StepView, TrainedView};

use super::{error::JournalError, journal, lines, trace::Trace};
use enn_common::{
    artifact::classes::ClassFigures,
    event::{EpochReport, Event, What},
    metrics::Metrics,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Everything the events have said so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunView {
    /// Launches on this run directory, in order: a resumed run has several.
    pub sessions: Vec<SessionView>,
    /// Time of the last event, seconds since the Unix epoch.
    pub now: f64,
    /// Progress of staging: rows, bytes and bytes in all.
    pub staging: Option<(u64, u64, u64)>,
    /// The staged data.
    pub staged: Option<StagedView>,
    /// Split → baseline → errors in target units.
    pub baselines: BTreeMap<String, BTreeMap<String, Metrics>>,
    /// What the baselines had to leave out.
    pub baseline_notes: Vec<String>,
    pub model: Option<ModelView>,
    /// The last optimizer step told.
    pub latest: Option<StepView>,
    /// Training loss over steps, thinned.
    pub losses: Trace,
    /// Epochs that count: those of an undone part are replaced when it is trained again.
    pub epochs: Vec<EpochReport>,
    /// Rounds in order.
    pub rounds: Vec<RoundView>,
    /// Workers in order of their start, over all rounds.
    pub workers: Vec<WorkerView>,
    /// Nodes: those of the current round in its order, then the others.
    pub nodes: Vec<NodeView>,
    /// What the rendezvous waits for.
    pub waiting: Option<WaitView>,
    /// First failures of rounds, in order.
    pub failures: Vec<FailureView>,
    /// Hangs, in order.
    pub hangs: Vec<HangView>,
    /// Checkpoints, committed or failed, in order.
    pub checkpoints: Vec<CheckpointView>,
    /// Requests to stop: time, signal.
    pub stops: Vec<(f64, String)>,
    /// Split → what predictions of classes are worth there.
    pub classes: BTreeMap<String, ClassFigures>,
    /// Result of training.
    pub trained: Option<TrainedView>,
    /// Rows predicted and rows in all.
    pub predicted: Option<(u64, u64)>,
    /// What was gathered: path, files, bytes.
    pub gathered: Vec<(PathBuf, u64, u64)>,
    /// Warnings: time, message.
    pub warnings: Vec<(f64, String)>,
    /// What training computes with, and why.
    pub precision: Option<(String, String)>,
    /// What was decided about the model.
    pub decisions: Vec<String>,
    /// How a worker's share of the batch is cut, and why.
    pub micro_batches: Option<String>,
    /// Since when the run is paused.
    pub paused: Option<f64>,
    /// Into how many parts micro-batches are cut because memory was short; 0 and 1: into none.
    pub split: u32,
    /// Lines of the journal that could not be understood.
    pub unreadable: Vec<u64>,
    /// Time and step of the first step of the current round, from which the remaining time is judged.
    pace: Option<(f64, u64)>,
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionView {
    /// Name of the run.
    pub run: String,
    /// "train", "predict", …
    pub mode: String,
    /// Run directory.
    pub dir: PathBuf,
    /// Host of the launcher.
    pub host: String,
    /// Workers asked for.
    pub nproc: u32,
    /// Command line.
    pub argv: Vec<String>,
    /// Start, seconds since the Unix epoch.
    pub started: f64,
    /// How it ended.
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
    /// Restarts used.
    pub restarts: u32,
    /// Rounds it took.
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

    /// Takes one event in.
    pub fn apply(&mut self, event: &Event) {
        let time = event.time;
        self.now = self.now.max(time);
        match &event.what {
            What::RunStarted { .. } | What::RunEnded { .. } => self.apply_session(time, &event.what),
            What::StageProgressed { .. } | What::Staged { .. } => self.apply_staging(&event.what),
            What::BaselinesComputed { split, notes } => {
                self.baselines.clone_from(split);
                self.baseline_notes.clone_from(notes);
            }
            What::RoundStarted { .. }
            | What::RoundFormed { .. }
            | What::RoundFailed { .. }
            | What::RoundLeft { .. } => {
                self.apply_round(time, &event.what);
            }
            What::WorkerStarted { .. }
            | What::WorkerReady { .. }
            | What::WorkerExited { .. }
            | What::WorkerDismissed { .. }
            | What::SeatTaken { .. }
            | What::WorkerFailed { .. } => self.apply_worker(time, &event.what),
            What::BatchChosen { micro, accumulation, reason, .. } => {
                self.micro_batches = Some(format!("{micro} rows, {accumulation} a step ({reason})"));
            }
            What::PrecisionChosen { format, reason } => self.precision = Some((format.clone(), reason.clone())),
            What::Decided { decision } => self.decisions.push(decision.clone()),
            What::ModelBuilt { .. } | What::Stepped { .. } | What::EpochEnded(_) | What::Trained { .. } => {
                self.apply_training(time, &event.what);
            }
            What::CheckpointCommitted { .. } | What::CheckpointFailed { .. } | What::CheckpointDamaged { .. } => {
                self.apply_checkpoint(time, &event.what);
            }
            What::MicroBatchesSplit { .. }
            | What::MicroBatchesGrown { .. }
            | What::Straggler { .. }
            | What::Paused { .. }
            | What::Continued { .. }
            | What::Resized { .. } => self.apply_control(time, &event.what),
            What::StopRequested { signal, .. } => self.stops.push((time, signal.clone())),
            What::ClassesJudged { split, classes } => {
                self.classes.insert(split.clone(), (**classes).clone());
            }
            What::Predicted { rows, rows_total } => self.predicted = Some((*rows, *rows_total)),
            What::Gathered { path, files, bytes } => self.gathered.push((path.clone(), *files, *bytes)),
            What::Warned { message } | What::GaveUp { reason: message } => {
                self.warnings.push((time, message.clone()));
            }
            What::KernelQuarantined { entry, .. } => self.warnings.push((time, entry.sentence())),
            // Told when they happen.
            What::Preloaded { .. }
            | What::KernelRecovered { .. }
            | What::SpareStarted { .. }
            | What::SpareReady { .. }
            | What::SpareEnded { .. }
            | What::StateReceived { .. }
            | What::Recovered { .. } => {}
            What::Waiting { .. }
            | What::NodeJoined { .. }
            | What::NodeLost { .. }
            | What::FailureReported { .. }
            | What::HangDetected { .. } => self.apply_node(time, &event.what),
        }
    }

    fn apply_control(&mut self, time: f64, what: &What) {
        match what {
            What::MicroBatchesSplit { split, rank, .. } => {
                self.split = *split;
                self.warnings.push((time, lines::out_of_memory(*rank, *split)));
            }
            What::MicroBatchesGrown { split, .. } => self.split = *split,
            What::Straggler { rank, pid, slower_by, evicted, .. } => {
                self.warnings.push((time, lines::straggler((*rank, *pid), *slower_by, *evicted)));
            }
            What::Paused { .. } => self.paused = Some(time),
            What::Continued { .. } => self.paused = None,
            // The next round's size tells.
            _ => {}
        }
    }

    fn apply_session(&mut self, time: f64, what: &What) {
        match what {
            What::RunStarted { run, mode, dir, host, nproc, argv } => {
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
            What::RunEnded { code, seconds, restarts, rounds, .. } => {
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

    /// Name of the run: the directory's, as the first launch said it.
    pub fn name(&self) -> &str {
        self.sessions.first().map_or("", |session| &session.run)
    }

    /// The launch that trained last, or the last one of any kind.
    pub fn session(&self) -> Option<&SessionView> {
        self.sessions.iter().rev().find(|session| session.mode == "train").or(self.sessions.last())
    }
}

#[cfg(test)]
pub(super) mod tests;
