//! What happened in a run: one line each in events.jsonl, and the only thing the user interface sees.

use crate::{
    artifact::classes::ClassFigures,
    failure::Failure,
    finite,
    id::{LocalRank, Rank, Round},
    kernels::Quarantine,
    metrics::Metrics,
    staged::meta::CleaningReport,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

/// An event with its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since the Unix epoch.
    pub time: f64,
    #[serde(flatten)]
    pub what: EventKind,
}

/// A source's part of an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceShare {
    pub name: String,
    /// Samples per split: train, val, test.
    pub split_rows: [u64; 3],
    /// Weight of the source; `None` where each training row is drawn once in an epoch.
    pub weight: Option<f64>,
    /// Samples drawn in an epoch.
    pub draws: u64,
}

/// The closed list of happenings. Past tense.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The launcher began a run.
    RunStarted { run: String, mode: String, dir: PathBuf, host: String, nproc: u32, argv: Vec<String> },
    /// Rows read so far while staging.
    StageProgressed { rows: u64, bytes: u64, bytes_total: u64 },
    /// Data was staged, or found already staged.
    Staged {
        dir: PathBuf,
        rows: u64,
        features: u64,
        out_shape: Vec<usize>,
        split_rows: [u64; 3],
        /// Size of each source, and how often it is drawn; empty when there is only one.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        sources: Vec<SourceShare>,
        /// Unit of the target, empty when unknown.
        #[serde(default)]
        units: String,
        reused: bool,
        /// Table rows that an attempt which was cut off had read already.
        #[serde(default, skip_serializing_if = "is_zero")]
        resumed_rows: u64,
        seconds: f64,
        report: CleaningReport,
    },
    /// Baselines were computed: split name → baseline name → errors.
    BaselinesComputed { split: BTreeMap<String, BTreeMap<String, Metrics>>, notes: Vec<String> },
    /// A round began: its workers are being started, or go on from `resume_step`.
    RoundStarted { round: Round, world_size: u32, attempt: u32, resume_step: Option<u64> },
    /// The fork server of `enn run` has these modules and forks workers from now on. Time that the run needed for it.
    Preloaded {
        modules: Vec<String>,
        seconds: f64,
        /// Whether the server lives between runs.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        warm: bool,
    },
    /// A worker process was started.
    WorkerStarted {
        round: Round,
        local_rank: LocalRank,
        rank: Rank,
        pid: u32,
        /// Host it runs on; empty: the launcher's.
        #[serde(default)]
        host: String,
        /// By the fork server; else it was executed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        forked: bool,
    },
    /// A worker said it is ready to take its first step.
    WorkerReady { round: Round, rank: Rank, device: String, backend: String, libtorch: String, seconds: f64 },
    /// The model was built; rank 0 says.
    ModelBuilt { parameters: u64, program_hash: String, batch: u64, steps_per_epoch: u64, steps_total: u64 },
    /// An optimizer step was done; throttled to ten a second.
    Stepped {
        epoch: u64,
        step: u64,
        #[serde(with = "finite")]
        loss: f64,
        lr: f64,
        #[serde(with = "finite")]
        grad_norm: f64,
        #[serde(with = "finite")]
        samples_per_s: f64,
    },
    /// An epoch ended, with validation.
    EpochEnded(Box<EpochReport>),
    /// A checkpoint was committed.
    CheckpointCommitted {
        step: u64,
        path: PathBuf,
        bytes: u64,
        /// Writing what was left in memory, and committing.
        seconds: f64,
        metric: Option<f64>,
        /// For which training stood still, on the rank where that took longest.
        #[serde(default)]
        blocked_seconds: f64,
    },
    /// A checkpoint could not be committed; the previous one stands.
    CheckpointFailed { step: u64, error: String },
    /// A checkpoint was found damaged when it was read, and is set aside; the run goes on from the one before it.
    CheckpointDamaged { step: u64, path: PathBuf, error: String },
    /// A worker process ended.
    WorkerExited { round: Round, rank: Rank, pid: u32, code: Option<i32>, signal: Option<i32>, seconds_to_notice: f64 },
    /// A worker reported an error in words before it ended.
    WorkerFailed { round: Round, rank: Rank, error: String },
    /// The round ended because of a failure and will be tried again, or will not.
    RoundFailed { round: Round, cause: String, restarting: bool, restarts_left: u32 },
    /// The rendezvous is not complete; said again only when the reason changes.
    Waiting { reason: String },
    /// A node joined the rendezvous.
    NodeJoined { host: String, workers: u32 },
    /// A node left the run or was lost.
    NodeLost { host: String, reason: String },
    /// The nodes of a round are known, in order of their node rank; `master` is where its workers meet, host:port.
    RoundFormed { round: Round, restart: u32, master: String, nodes: Vec<NodeBrief> },
    /// The first failure of a round, from whichever node.
    FailureReported { failure: Box<Failure> },
    /// The run ends for a reason other than a worker: nodes did not meet, were lost or refused, or another node stopped it.
    GaveUp { reason: String },
    /// No worker made progress for so long; `stacks` holds what they were doing.
    HangDetected { round: Round, seconds: f64, stacks: Option<PathBuf> },
    /// The nodes or workers of the round changed: those that are left meet again, which is no restart.
    RoundLeft { round: Round, reason: String },
    /// A process without a seat was started; it loads what it can and waits.
    SpareStarted {
        pid: u32,
        local_rank: LocalRank,
        /// Host it runs on; empty: the launcher's.
        #[serde(default)]
        host: String,
        /// By the fork server; else it was executed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        forked: bool,
    },
    /// A spare has loaded what can be loaded, so many seconds after its start.
    SpareReady { pid: u32, seconds: f64 },
    /// A spare ended without having had a seat; another one takes its place.
    SpareEnded { pid: u32, code: Option<i32>, signal: Option<i32> },
    /// A worker that lost its seat, in this round, has ended as it was told to: the run goes on without it.
    WorkerDismissed { round: Round, rank: Rank, pid: u32 },
    /// A living process has this seat in a round: one that stood by, or one that kept its state from the round before.
    SeatTaken {
        round: Round,
        rank: Rank,
        local_rank: LocalRank,
        pid: u32,
        spare: bool,
        /// Host it runs on; empty: the launcher's.
        #[serde(default)]
        host: String,
    },
    /// A worker has the state of training from rank `from`; no file was read.
    StateReceived { round: Round, rank: Rank, from: Rank, step: u64, bytes: u64, seconds: f64 },
    /// The first step after a failure is done, so many seconds after the failure was noticed. `from_rank`: who had the state;
    /// `None`: the newest checkpoint.
    Recovered { round: Round, seconds: f64, lost_steps: u64, from_rank: Option<Rank> },
    /// A rank ran out of memory: from the next round on every micro-batch is cut into `split`, on all ranks.
    MicroBatchesSplit { round: Round, split: u32, rank: Rank, error: String },
    /// Nothing was short of memory for long: the next round tries micro-batches cut into `split` only.
    MicroBatchesGrown { round: Round, split: u32 },
    /// The others wait for this worker: it computes `slower_by` times as long as they do.
    Straggler { round: Round, rank: Rank, pid: u32, slower_by: f64, evicted: bool },
    /// A device failed twice, or shows an uncorrectable error. `left_out`: no process is started on it any more; else the run cannot do
    /// without it.
    DeviceSick {
        local_rank: LocalRank,
        device: String,
        reason: String,
        left_out: bool,
        /// Host of the device; empty: the launcher's.
        #[serde(default)]
        host: String,
    },
    /// The run is to go on with so many workers.
    Resized { before: u32, workers: u32 },
    /// All workers left the round after `step` steps and wait, warm.
    Paused { round: Round, step: u64 },
    /// A run that was paused goes on.
    Continued { seconds: f64 },
    /// The user asked to stop.
    StopRequested { signal: String, second: bool },
    /// Training ended: final metrics of the best model per split.
    Trained {
        epoch: u64,
        step: u64,
        stopped_early: bool,
        split: BTreeMap<String, Metrics>,
        #[serde(with = "finite")]
        samples_per_s: f64,
        seconds: f64,
    },
    /// Figures of the best model's predicted classes on a split.
    ClassesJudged { split: String, classes: Box<ClassFigures> },
    /// Rows predicted so far.
    Predicted { rows: u64, rows_total: u64 },
    /// Files were gathered under a manifest.
    Gathered { path: PathBuf, files: u64, bytes: u64 },
    /// Something the user should know.
    Warned { message: String },
    /// A kernel may not run any more on such operands, on all ranks.
    KernelQuarantined { rank: Rank, entry: Box<Quarantine> },
    /// A kernel was tried again after its cool-down and was right.
    KernelRecovered { rank: Rank, entry: Box<Quarantine> },
    /// Number format of training, and why; rank 0 says.
    PrecisionChosen { format: String, reason: String },
    /// Something was decided about the model, in one sentence; rank 0 says.
    Decided { decision: String },
    /// How the batch is cut, and why; rank 0 says: `micro` rows at once on each worker, `accumulation` times a step.
    BatchChosen { batch: u64, micro: u64, accumulation: u64, recompute: bool, reason: String },
    RunEnded {
        code: u8,
        seconds: f64,
        restarts: u32,
        rounds: u64,
        /// Cause of the failure, in a sentence; absent after success, and in journals of 0.1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBrief {
    pub host: String,
    pub workers: u32,
}

/// Numbers of a validation, at the end of an epoch or within it; of the training those of the epoch so far. Errors are in target units and of the model that would be kept (the average when there is one).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Epoch, counted from 1.
    pub epoch: u64,
    pub step: u64,
    /// Mean training loss over the epoch, standardised target space.
    #[serde(with = "finite")]
    pub train_loss: f64,
    pub val: Metrics,
    /// Whether this is the best model so far.
    pub best: bool,
    /// Learning rate at the end of the epoch.
    pub lr: f64,
    /// Mean gradient norm before clipping.
    #[serde(with = "finite")]
    pub grad_norm: f64,
    /// Mean gate p over validation samples.
    #[serde(with = "finite")]
    pub gate_mean: f64,
    /// Predicted spread over target spread, median over cells: 0 is a constant model.
    #[serde(with = "finite")]
    pub reactivity: f64,
    /// Mean step time, milliseconds, and its parts.
    pub step_ms: StepTimes,
    /// Training throughput over all workers.
    #[serde(with = "finite")]
    pub samples_per_s: f64,
    /// Steps skipped because loss or gradient was not finite.
    pub skipped: u64,
    /// How much of the epoch is done: 1 at its end.
    #[serde(default = "whole")]
    pub part: f64,
}

fn whole() -> f64 {
    1.0
}

impl EpochReport {
    pub fn epochs(&self) -> f64 {
        self.epoch as f64 - 1.0 + self.part
    }

    /// When it was, for people.
    pub fn name(&self) -> String {
        let Self { epoch, part, .. } = self;
        if *part < 1.0 { format!("epoch {epoch} at {:.0} %", 100.0 * part) } else { format!("epoch {epoch}") }
    }
}

/// Mean times per optimizer step, milliseconds, on the host's clock. On a CPU that is where the time went. A GPU works behind the host:
/// there `forward`, `backward` and `optimizer` are what it took to launch them, and its work shows where the host waits for it: in `comm`
/// among several ranks, else in what `total` has beyond its parts. `total` is right everywhere; a profile (`train.profile`) tells the GPU's own times.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StepTimes {
    pub total: f64,
    pub data: f64,
    pub forward: f64,
    pub backward: f64,
    /// Waiting for the ranks' sums: gradient reduction that is not hidden behind backward, and a GPU's work before it.
    pub comm: f64,
    pub optimizer: f64,
}

/// Whether a count is left out of an event.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}
