//! The run as it stands: a pure fold of events.
//!
//! **Invariant:** [`RunView::apply`] is total and bounded; the same events give the same view, live or read back. Time is
//! the time of the last event.

mod nodes;
mod processes;
mod rounds;
mod training;
mod unrecorded;

pub use nodes::{HangView, NodeState, NodeView, WaitView};
pub use processes::{ExitView, ReadyView, RoundView, WorkerView};
pub(super) use processes::{out_of_memory, sick_device, straggler};
pub use training::{CheckpointView, ModelView, StagedView, StepView, TrainedView};

use super::{error::JournalError, journal, trace::Trace};
use enn_common::{
    artifact::classes::ClassFigures,
    event::{EpochReport, Event, EventKind},
    failure::Failure,
    metrics::Metrics,
};
use nodes::push_bounded;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Mode of a run of any program, as RunStarted says it.
pub const ANY_PROGRAM: &str = "run";

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
    pub waiting: Option<WaitView>,
    /// First failures of rounds, in order.
    pub failures: Vec<Failure>,
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
    /// Warnings: time (seconds since the Unix epoch) and message.
    pub warnings: Vec<(f64, String)>,
    /// The precision of training, and the reason for it.
    pub precision: Option<(String, String)>,
    /// Sentences on decisions about the model.
    pub decisions: Vec<String>,
    /// Description of the micro-batches, and the reason for them.
    pub micro_batches: Option<String>,
    /// Sentences on the sick devices of this launch.
    pub sick_devices: Vec<String>,
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
    pub run: String,
    /// The mode, such as "train" or "predict".
    pub mode: String,
    pub dir: PathBuf,
    pub host: String,
    pub nproc: u32,
    pub argv: Vec<String>,
    /// Start, seconds since the Unix epoch.
    pub started: f64,
    pub ended: Option<EndView>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EndView {
    /// Seconds since the Unix epoch.
    pub time: f64,
    pub code: u8,
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

    #[expect(clippy::too_many_lines, reason = "one arm an event, and nothing besides")]
    pub fn apply(&mut self, event: &Event) {
        let time = event.time;
        self.now = self.now.max(time);
        match &event.what {
            EventKind::RunStarted { run, mode, dir, host, nproc, argv } => {
                // A launcher that was killed said no end.
                self.waiting = None;
                self.paused = None;
                self.split = 0;
                self.sick_devices.clear();
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
            EventKind::RunEnded { code, seconds, .. } => {
                self.end_round(time);
                self.waiting = None;
                if let Some(session) = self.sessions.last_mut() {
                    session.ended = Some(EndView { time, code: *code, seconds: *seconds });
                }
            }
            EventKind::StageProgressed { rows, bytes, bytes_total } => {
                self.staging = Some((*rows, *bytes, *bytes_total))
            }
            EventKind::Staged {
                dir,
                rows,
                features,
                out_shape,
                split_rows,
                sources,
                units,
                reused,
                seconds,
                report,
                ..
            } => {
                self.staging = None;
                self.staged = Some(StagedView {
                    dir: dir.clone(),
                    rows: *rows,
                    features: *features,
                    out_shape: out_shape.clone(),
                    split_rows: *split_rows,
                    sources: sources.clone(),
                    units: units.clone(),
                    reused: *reused,
                    seconds: *seconds,
                    report: report.clone(),
                });
            }
            EventKind::BaselinesComputed { split, notes } => {
                self.baselines.clone_from(split);
                self.baseline_notes.clone_from(notes);
            }
            EventKind::BatchChosen { micro, accumulation, reason, .. } => {
                self.micro_batches = Some(format!("{micro} rows, {accumulation} a step ({reason})"));
            }
            EventKind::PrecisionChosen { format, reason } => self.precision = Some((format.clone(), reason.clone())),
            EventKind::Decided { decision } => self.decisions.push(decision.clone()),
            EventKind::RoundStarted { round, world_size, attempt, resume_step } => {
                let view = self.begin_round(time, round.0);
                view.world_size = *world_size;
                view.attempt = *attempt;
                view.resume_step = *resume_step;
            }
            EventKind::RoundFormed { round, restart, master, nodes } => {
                let view = self.begin_round(time, round.0);
                view.world_size = nodes.iter().fold(0, |sum, node| node.workers.saturating_add(sum));
                view.attempt = *restart;
                view.nodes.clone_from(nodes);
                view.master.clone_from(master);
                self.place_nodes(nodes);
            }
            EventKind::RoundLeft { round, reason } => {
                if let Some(view) = self.leave_round(time, round.0) {
                    view.left = Some(reason.clone());
                }
            }
            EventKind::RoundFailed { round, cause, restarting, restarts_left } => {
                if let Some(view) = self.leave_round(time, round.0) {
                    view.failure = Some((cause.clone(), *restarting));
                    view.restarts_left = Some(*restarts_left);
                }
            }
            EventKind::WorkerStarted { round, local_rank, rank, pid, host, .. } => {
                self.workers.push(WorkerView::started(time, round.0, rank.0, local_rank.0, *pid, host));
            }
            EventKind::SeatTaken { round, rank, local_rank, pid, host, .. } => {
                self.seat_taken(WorkerView::started(time, round.0, rank.0, local_rank.0, *pid, host));
            }
            EventKind::WorkerReady { round, rank, device, backend, libtorch, seconds } => {
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
            EventKind::WorkerExited { round, rank, code, signal, seconds_to_notice, .. } => {
                let exit = ExitView { time, code: *code, signal: *signal, seconds_to_notice: *seconds_to_notice };
                self.on_exit(round.0, rank.0, exit);
            }
            EventKind::WorkerDismissed { round, rank, .. } => {
                self.on_exit(round.0, rank.0, ExitView { time, code: Some(0), signal: None, seconds_to_notice: 0.0 });
            }
            EventKind::WorkerFailed { round, rank, error } => {
                if let Some(worker) = self.worker(round.0, rank.0) {
                    worker.error = Some(error.clone());
                }
            }
            EventKind::Waiting { reason } => self.waiting = Some(WaitView { since: time, reason: reason.clone() }),
            EventKind::NodeJoined { host, workers } => self.node_joined(host, *workers),
            EventKind::NodeLost { host, reason } => {
                let lost = NodeState::Lost(reason.clone());
                let present = |node: &&mut NodeView| node.host == *host && !matches!(node.state, NodeState::Lost(_));
                match self.nodes.iter_mut().rev().find(present) {
                    Some(node) => node.state = lost,
                    None => self.add_node(NodeView { host: host.clone(), workers: 0, rank: None, state: lost }),
                }
            }
            EventKind::FailureReported { failure } => push_bounded(&mut self.failures, (**failure).clone()),
            EventKind::HangDetected { round, seconds, stacks } => {
                let hang = HangView { time, round: round.0, seconds: *seconds, stacks: stacks.clone() };
                push_bounded(&mut self.hangs, hang);
            }
            EventKind::ModelBuilt { parameters, program_hash, steps_per_epoch, steps_total, .. } => {
                self.model = Some(ModelView {
                    parameters: *parameters,
                    program_hash: program_hash.clone(),
                    steps_per_epoch: *steps_per_epoch,
                    steps_total: *steps_total,
                });
            }
            EventKind::Stepped { epoch, step, loss, lr, samples_per_s, .. } => {
                self.pace.get_or_insert((time, *step));
                self.epochs.retain(|report| report.step <= *step);
                self.losses.push(*step, time, *loss);
                let samples_per_s = *samples_per_s;
                self.latest = Some(StepView { epoch: *epoch, step: *step, loss: *loss, lr: *lr, samples_per_s });
            }
            EventKind::EpochEnded(report) => {
                self.epochs.retain(|earlier| earlier.step < report.step);
                self.epochs.push((**report).clone());
            }
            EventKind::Trained { epoch, step, stopped_early, split, samples_per_s, seconds } => {
                self.classes.clear();
                self.trained = Some(TrainedView {
                    epoch: *epoch,
                    step: *step,
                    stopped_early: *stopped_early,
                    split: split.clone(),
                    samples_per_s: *samples_per_s,
                    seconds: *seconds,
                });
            }
            EventKind::CheckpointCommitted { step, bytes, seconds, .. } => self.checkpoints.push(CheckpointView {
                time,
                step: *step,
                bytes: *bytes,
                seconds: *seconds,
                error: None,
            }),
            EventKind::CheckpointFailed { step, error } | EventKind::CheckpointDamaged { step, error, .. } => {
                let error = Some(error.clone());
                self.checkpoints.push(CheckpointView { time, step: *step, bytes: 0, seconds: 0.0, error });
            }
            EventKind::MicroBatchesSplit { split, rank, .. } => {
                self.split = *split;
                self.warnings.push((time, processes::out_of_memory(*rank, *split)));
            }
            EventKind::MicroBatchesGrown { split, .. } => self.split = *split,
            EventKind::Straggler { rank, pid, slower_by, evicted, .. } => {
                self.warnings.push((time, processes::straggler(*rank, *pid, *slower_by, *evicted)));
            }
            EventKind::DeviceSick { device, reason, left_out, host, .. } => {
                let sentence = processes::sick_device(device, host, reason, *left_out);
                self.sick_devices.push(sentence.clone());
                self.warnings.push((time, sentence));
            }
            EventKind::Paused { .. } => self.paused = Some(time),
            EventKind::Continued { .. } => self.paused = None,
            EventKind::StopRequested { signal, .. } => self.stops.push((time, signal.clone())),
            EventKind::ClassesJudged { split, classes } => {
                self.classes.insert(split.clone(), (**classes).clone());
            }
            EventKind::Predicted { rows, rows_total } => self.predicted = Some((*rows, *rows_total)),
            EventKind::Warned { message } | EventKind::GaveUp { reason: message } => {
                self.warnings.push((time, message.clone()));
            }
            EventKind::KernelQuarantined { entry, .. } => self.warnings.push((time, entry.sentence())),
            // Shown when they happen. The size of the next round shows that a run was resized.
            EventKind::Preloaded { .. }
            | EventKind::Resized { .. }
            | EventKind::Gathered { .. }
            | EventKind::KernelRecovered { .. }
            | EventKind::SpareStarted { .. }
            | EventKind::SpareReady { .. }
            | EventKind::SpareEnded { .. }
            | EventKind::StateReceived { .. }
            | EventKind::Recovered { .. } => {}
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
