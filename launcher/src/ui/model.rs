//! The run as it stands: a pure fold of events.
//!
//! **Invariant:** [`RunView::apply`] is total and bounded; the same events give the same view, live or read back. Time is
//! the time of the last event.

use super::{error::JournalError, journal, trace::Trace};
use enn_common::{
    event::{EpochReport, Event, What},
    metrics::{Baseline, Metrics},
    staged::meta::CleaningReport,
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
    pub baselines: BTreeMap<String, BTreeMap<String, Baseline>>,
    /// What the baselines had to leave out.
    pub baseline_notes: Vec<String>,
    /// The model.
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
    /// Checkpoints, committed or failed, in order.
    pub checkpoints: Vec<CheckpointView>,
    /// Requests to stop: time, signal.
    pub stops: Vec<(f64, String)>,
    /// Result of training.
    pub trained: Option<TrainedView>,
    /// Rows predicted and rows in all.
    pub predicted: Option<(u64, u64)>,
    /// What was gathered: path, files, bytes.
    pub gathered: Vec<(PathBuf, u64, u64)>,
    /// Warnings: time, message.
    pub warnings: Vec<(f64, String)>,
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

/// The staged data.
#[derive(Debug, Clone, PartialEq)]
pub struct StagedView {
    /// Staged directory.
    pub dir: PathBuf,
    /// Samples.
    pub rows: u64,
    /// Input columns.
    pub features: u64,
    /// Output grid.
    pub out_shape: Vec<usize>,
    /// Samples per split: train, validation, test.
    pub split_rows: [u64; 3],
    /// Unit of the target, empty when unknown.
    pub units: String,
    /// Whether it was found already staged.
    pub reused: bool,
    /// Duration, seconds.
    pub seconds: f64,
    /// What cleaning found.
    pub report: CleaningReport,
}

/// The model as built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelView {
    /// Learned numbers.
    pub parameters: u64,
    /// Identity of the recorded program.
    pub program_hash: String,
    /// Samples per optimizer step over all workers.
    pub batch: u64,
    /// Optimizer steps in an epoch.
    pub steps_per_epoch: u64,
    /// Optimizer steps in the run.
    pub steps_total: u64,
}

/// One optimizer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepView {
    /// Epoch, counted from 1.
    pub epoch: u64,
    /// Steps done.
    pub step: u64,
    /// Loss, standardised target space.
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// Samples per second over all workers.
    pub samples_per_s: f64,
}

/// One round.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundView {
    /// Number of the round.
    pub round: u64,
    /// Workers in it.
    pub world_size: u32,
    /// Attempt, counted from 0.
    pub attempt: u32,
    /// Step of the checkpoint it went on from.
    pub resume_step: Option<u64>,
    /// Start, seconds since the Unix epoch.
    pub started: f64,
    /// End, seconds since the Unix epoch.
    pub ended: Option<f64>,
    /// Cause of its failure, and whether another round followed.
    pub failure: Option<(String, bool)>,
}

/// One worker process.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    /// Round.
    pub round: u64,
    /// Global rank.
    pub rank: u32,
    /// Process id.
    pub pid: u32,
    /// Fork, seconds since the Unix epoch.
    pub started: f64,
    /// When it said it was ready.
    pub ready: Option<ReadyView>,
    /// How it ended.
    pub exit: Option<ExitView>,
    /// What it said before it failed.
    pub error: Option<String>,
}

/// A worker's readiness.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadyView {
    /// Seconds since the Unix epoch.
    pub time: f64,
    /// Device, e.g. "cpu".
    pub device: String,
    /// Process-group backend, e.g. "gloo".
    pub backend: String,
    /// Version of libtorch.
    pub libtorch: String,
    /// Seconds from fork to ready.
    pub seconds: f64,
}

/// A worker's end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExitView {
    /// Seconds since the Unix epoch.
    pub time: f64,
    /// Exit code, when it exited.
    pub code: Option<i32>,
    /// Signal, when it was killed.
    pub signal: Option<i32>,
    /// Seconds from death to notice.
    pub seconds_to_notice: f64,
}

/// A checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointView {
    /// Seconds since the Unix epoch.
    pub time: f64,
    /// Steps done.
    pub step: u64,
    /// Size, bytes; 0 when it failed.
    pub bytes: u64,
    /// Duration, seconds; 0 when it failed.
    pub seconds: f64,
    /// Validation MAE in it.
    pub metric: Option<f64>,
    /// Why it was abandoned.
    pub error: Option<String>,
}

/// Result of training.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainedView {
    /// Epochs done.
    pub epoch: u64,
    /// Steps done.
    pub step: u64,
    /// Whether early stopping ended it.
    pub stopped_early: bool,
    /// Errors of the best model per split, target units.
    pub split: BTreeMap<String, Metrics>,
    /// Training throughput, samples per second.
    pub samples_per_s: f64,
    /// Duration, seconds.
    pub seconds: f64,
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
            What::RoundStarted { .. } | What::RoundFailed { .. } => self.apply_round(time, &event.what),
            What::WorkerStarted { .. }
            | What::WorkerReady { .. }
            | What::WorkerExited { .. }
            | What::WorkerFailed { .. } => self.apply_worker(time, &event.what),
            What::ModelBuilt { .. } | What::Stepped { .. } | What::EpochEnded(_) | What::Trained { .. } => {
                self.apply_training(time, &event.what);
            }
            What::CheckpointCommitted { step, bytes, seconds, metric, .. } => {
                self.checkpoints.push(CheckpointView {
                    time,
                    step: *step,
                    bytes: *bytes,
                    seconds: *seconds,
                    metric: *metric,
                    error: None,
                });
            }
            What::CheckpointFailed { step, error } => {
                let error = Some(error.clone());
                self.checkpoints.push(CheckpointView {
                    time,
                    step: *step,
                    bytes: 0,
                    seconds: 0.0,
                    metric: None,
                    error,
                });
            }
            What::StopRequested { signal, .. } => self.stops.push((time, signal.clone())),
            What::Predicted { rows, rows_total } => self.predicted = Some((*rows, *rows_total)),
            What::Gathered { path, files, bytes } => self.gathered.push((path.clone(), *files, *bytes)),
            What::Warned { message } => self.warnings.push((time, message.clone())),
            What::Waiting { .. }
            | What::NodeJoined { .. }
            | What::NodeLost { .. }
            | What::RoundFormed { .. }
            | What::FailureReported { .. }
            | What::HangDetected { .. } => {}
        }
    }

    fn apply_session(&mut self, time: f64, what: &What) {
        match what {
            What::RunStarted { run, mode, dir, host, nproc, argv } => self.sessions.push(SessionView {
                run: run.clone(),
                mode: mode.clone(),
                dir: dir.clone(),
                host: host.clone(),
                nproc: *nproc,
                argv: argv.clone(),
                started: time,
                ended: None,
            }),
            What::RunEnded { code, seconds, restarts, rounds } => {
                self.end_round(time);
                if let Some(session) = self.sessions.last_mut() {
                    let end = EndView { time, code: *code, seconds: *seconds, restarts: *restarts, rounds: *rounds };
                    session.ended = Some(end);
                }
            }
            _ => {}
        }
    }

    fn apply_staging(&mut self, what: &What) {
        match what {
            What::StageProgressed { rows, bytes, bytes_total } => self.staging = Some((*rows, *bytes, *bytes_total)),
            What::Staged { dir, rows, features, out_shape, split_rows, units, reused, seconds, report } => {
                self.staging = None;
                self.staged = Some(StagedView {
                    dir: dir.clone(),
                    rows: *rows,
                    features: *features,
                    out_shape: out_shape.clone(),
                    split_rows: *split_rows,
                    units: units.clone(),
                    reused: *reused,
                    seconds: *seconds,
                    report: report.clone(),
                });
            }
            _ => {}
        }
    }

    fn apply_round(&mut self, time: f64, what: &What) {
        match what {
            What::RoundStarted { round, world_size, attempt, resume_step } => {
                self.end_round(time);
                self.pace = None;
                self.rounds.push(RoundView {
                    round: round.0,
                    world_size: *world_size,
                    attempt: *attempt,
                    resume_step: *resume_step,
                    started: time,
                    ended: None,
                    failure: None,
                });
            }
            What::RoundFailed { round, cause, restarting, .. } => {
                if let Some(view) = self.rounds.iter_mut().rev().find(|view| view.round == round.0) {
                    view.failure = Some((cause.clone(), *restarting));
                    view.ended = Some(time);
                }
            }
            _ => {}
        }
    }

    fn end_round(&mut self, time: f64) {
        if let Some(round) = self.rounds.last_mut() {
            round.ended.get_or_insert(time);
        }
    }

    fn apply_worker(&mut self, time: f64, what: &What) {
        match what {
            What::WorkerStarted { round, rank, pid, .. } => self.workers.push(WorkerView {
                round: round.0,
                rank: rank.0,
                pid: *pid,
                started: time,
                ready: None,
                exit: None,
                error: None,
            }),
            What::WorkerReady { round, rank, device, backend, libtorch, seconds } => {
                if let Some(worker) = self.worker(round.0, rank.0) {
                    worker.ready = Some(ReadyView {
                        time,
                        device: device.clone(),
                        backend: backend.clone(),
                        libtorch: libtorch.clone(),
                        seconds: *seconds,
                    });
                }
            }
            What::WorkerExited { round, rank, code, signal, seconds_to_notice, .. } => {
                if let Some(worker) = self.worker(round.0, rank.0) {
                    let exit = ExitView { time, code: *code, signal: *signal, seconds_to_notice: *seconds_to_notice };
                    worker.exit = Some(exit);
                }
            }
            What::WorkerFailed { round, rank, error } => {
                if let Some(worker) = self.worker(round.0, rank.0) {
                    worker.error = Some(error.clone());
                }
            }
            _ => {}
        }
    }

    fn worker(&mut self, round: u64, rank: u32) -> Option<&mut WorkerView> {
        self.workers.iter_mut().rev().find(|worker| worker.round == round && worker.rank == rank)
    }

    fn apply_training(&mut self, time: f64, what: &What) {
        match what {
            What::ModelBuilt { parameters, program_hash, batch, steps_per_epoch, steps_total } => {
                self.model = Some(ModelView {
                    parameters: *parameters,
                    program_hash: program_hash.clone(),
                    batch: *batch,
                    steps_per_epoch: *steps_per_epoch,
                    steps_total: *steps_total,
                });
            }
            What::Stepped { epoch, step, loss, lr, samples_per_s, .. } => {
                self.pace.get_or_insert((time, *step));
                self.epochs.retain(|report| report.step <= *step);
                self.losses.push(*step, *loss);
                let samples_per_s = *samples_per_s;
                self.latest = Some(StepView { epoch: *epoch, step: *step, loss: *loss, lr: *lr, samples_per_s });
            }
            What::EpochEnded(report) => {
                self.epochs.retain(|earlier| earlier.epoch < report.epoch);
                self.epochs.push((**report).clone());
            }
            What::Trained { epoch, step, stopped_early, split, samples_per_s, seconds } => {
                self.trained = Some(TrainedView {
                    epoch: *epoch,
                    step: *step,
                    stopped_early: *stopped_early,
                    split: split.clone(),
                    samples_per_s: *samples_per_s,
                    seconds: *seconds,
                });
            }
            _ => {}
        }
    }

    /// Name of the run: the directory's, as the first launch said it.
    pub fn name(&self) -> &str {
        self.sessions.first().map_or("", |session| &session.run)
    }

    /// Unit of the target, empty when unknown.
    pub fn units(&self) -> &str {
        self.staged.as_ref().map_or("", |staged| &staged.units)
    }

    /// The launch that trained last, or the last one of any kind.
    pub fn session(&self) -> Option<&SessionView> {
        self.sessions.iter().rev().find(|session| session.mode == "train").or(self.sessions.last())
    }

    /// Workers of the current round that were started and have not ended, and the size of its world.
    pub fn alive(&self) -> (u32, u32) {
        let Some(round) = self.rounds.last() else { return (0, 0) };
        let alive = self.workers.iter().filter(|worker| worker.round == round.round && worker.exit.is_none());
        (u32::try_from(alive.count()).unwrap_or(u32::MAX), round.world_size)
    }

    /// The epoch whose model would be kept.
    pub fn best(&self) -> Option<&EpochReport> {
        self.epochs.iter().rev().find(|report| report.best)
    }

    /// Seconds until the last step at the pace of this round; `None` before its second step.
    pub fn remaining_s(&self) -> Option<f64> {
        let (since, first) = self.pace?;
        let (step, total) = (self.latest?.step, self.model.as_ref()?.steps_total);
        (step > first).then(|| (self.now - since) / (step - first) as f64 * total.saturating_sub(step) as f64)
    }

    /// Restarts over all launches: failed rounds that were tried again.
    pub fn restarts(&self) -> u64 {
        self.rounds.iter().filter(|round| matches!(round.failure, Some((_, true)))).count() as u64
    }
}

#[cfg(test)]
pub(super) mod tests;
