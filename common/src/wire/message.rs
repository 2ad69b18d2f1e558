//! Messages. Requests are imperative, reports past tense. Add a variant at the end; bump `PROTOCOL` when one changes.

use crate::{
    checkpoint::{layout::BoxOf, table::ShardTable},
    config::train::Precision,
    event::EpochReport,
    kernels::{KernelFault, OpKernels, Quarantined},
    metrics::Metrics,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, num::NonZeroU32, path::PathBuf};

/// Version both sides must share.
pub const PROTOCOL: u32 = 8;

/// From a worker to the broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromWorker {
    /// First message on a connection. The broker checks peer credentials, protocol and name. A worker connects once and then
    /// lives through as many rounds as it is given a seat in.
    Hello { protocol: u32, worker: u32, pid: u32 },
    /// Libtorch is loaded, data is mapped, the process group is made: the first step can begin.
    Ready { device: String, backend: String, libtorch: String },
    /// Rank 0 built the model.
    ModelBuilt { parameters: u64, program_hash: String, batch: u64, steps_per_epoch: u64, steps_total: u64 },
    /// Rank 0 did optimizer steps; sent at most ten times a second.
    Stepped { epoch: u64, step: u64, loss: f64, lr: f64, grad_norm: f64, samples_per_s: f64 },
    /// Rank 0 ended an epoch.
    EpochEnded(Box<EpochReport>),
    /// This rank's checkpoint shard is written and fsynced in `dir`; the launcher commits when all ranks said so.
    /// Training stood still for `blocked` seconds.
    ShardWritten { step: u64, epoch: u64, dir: PathBuf, metric: Option<f64>, table: ShardTable, blocked: f64 },
    /// This rank could not write its shard (disk full, …); the launcher abandons the step's checkpoint.
    ShardFailed { step: u64, error: String },
    /// Rank 0: final metrics of the best model.
    Trained { epoch: u64, step: u64, stopped_early: bool, split: BTreeMap<String, Metrics>, samples_per_s: f64 },
    /// A chunk of predictions is on disk: rows [start, end) of the staged order.
    ChunkWritten { start: u64, end: u64, path: PathBuf, blake3: String },
    /// Something the user should know.
    Warned { message: String },
    /// The worker cannot go on; one sentence with place, found, expected and hint.
    Failed { error: String },
    /// The worker is about to exit 0.
    Done { stopped: bool },
    /// A kernel was wrong or slow, or could not run: the launcher quarantines it for all ranks.
    KernelFaulted(Box<KernelFault>),
    /// A kernel in quarantine was tried again after its cool-down and was right.
    KernelRecovered { op: String, kernel: String, sig: u64, step: u64 },
    /// Rank 0: which kernels ran and which were passed over since it last said so.
    KernelsRan(Vec<OpKernels>),
    /// Rank 0: what training computes with, and why.
    PrecisionChosen { format: String, reason: String },
    /// The assignment of `round` has been taken: what follows belongs to that round.
    Entered { round: u64 },
    /// A spare has loaded what can be loaded before it has a seat.
    Warm,
    /// The worker has left the process group of `round`. It stands after `step` whole steps, and waits for an assignment. Unless it
    /// `kept` its state, that is of no use: the ranks shared it.
    Halted { round: u64, step: u64, kept: bool },
    /// The state of training came from rank `from`, who stood furthest, after `step` steps; no file was read.
    StateReceived { step: u64, from: u32, bytes: u64, seconds: f64 },
    /// This rank ran out of memory in the step after `step`, and changed nothing: smaller micro-batches may fit. It waits for the
    /// end of the round.
    OutOfMemory { step: u64, error: String },
    /// Rank 0: how the batch is cut, and why: `micro` rows at once on each worker, `accumulation` times a step.
    BatchChosen { batch: u64, micro: u64, accumulation: u64, recompute: bool, reason: String },
    /// Rank 0: something was decided about the model, in one sentence.
    Decided { decision: String },
    /// This rank left its share of a checkpoint in the memory behind its control page. The launcher writes it as this rank's shard
    /// in its `dir`, and gives the snapshot back when that is done or given up.
    ShardStaged(Box<StagedShard>),
    /// Comes before `Halted`: what it keeps is this share `of` so many, of use together with the others of the same step.
    ShareKept { round: u64, share: u32, of: u32 },
    /// Comes before `Failed`: the checkpoint in `path`, from which the round was to begin, is damaged, as `file` of it shows.
    CheckpointDamaged { path: PathBuf, file: Option<PathBuf> },
    /// Comes before `Failed`: what is wrong lies in what the run was given, and starting again would end the same way.
    Lasting,
    /// A script says that a step can be cut into so many equal parts, which the ranks share.
    BatchParts { parts: NonZeroU32 },
}

/// A share of a checkpoint in memory, laid out as the file that it is to become.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StagedShard {
    pub step: u64,
    pub epoch: u64,
    /// The temporary directory of all ranks.
    pub dir: PathBuf,
    pub metric: Option<f64>,
    /// The snapshot's ticket on the control page.
    pub ticket: u64,
    /// Where it begins in the memory, a multiple of a page.
    pub at: u64,
    /// Items of the shard; their places follow from them (`Layout`).
    pub boxes: Vec<BoxOf>,
    /// Whether the file gets a blake3.
    pub blake3: bool,
    /// Seconds for which training stood still.
    pub blocked: f64,
    /// No later one makes up for it: what cannot be written is tried once more.
    pub must: bool,
}

/// From the broker to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// A seat in a round: who the worker is there and what it does. Comes after `Hello` or `Stand`, and again after each `Halted`.
    Assign(Box<Assignment>),
    /// The checkpoint of `step` is committed under `path`.
    Committed { step: u64, path: PathBuf },
    /// The checkpoint of `step` was abandoned.
    Abandoned { step: u64, error: String },
    /// The worker is not wanted: protocol, round or credentials do not fit.
    Refused { error: String },
    /// Kernels in quarantine, all of them; each entry takes effect with its epoch, at the same step on all ranks.
    Kernels(Box<Quarantined>),
    /// No seat yet: load what can be loaded, say `Warm`, and wait.
    Stand(Box<Standby>),
    /// The round is over: leave its process group, whatever is in flight, say `Halted`, and wait for an assignment.
    RoundEnded { round: u64, reason: String },
    /// The worker is not needed any more: end, which is no failure.
    Dismissed,
    /// A round begins without this worker, a script that had a seat: it waits for another seat with the same local rank.
    Parked,
}

/// Setup for which a spare can prepare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Standby {
    /// "cpu" or "cuda".
    pub device: String,
    /// Index of the device it will most likely get.
    pub local_rank: u32,
    /// Ranks of the world in which it will most likely be.
    pub world_size: u32,
    /// Host of the c10d store; empty where there is none.
    pub store_host: String,
    pub store_port: u16,
    pub threads: u32,
    pub run_dir: PathBuf,
    pub staged: PathBuf,
}

/// A worker's identity in a round, and its task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    pub round: u64,
    pub rank: u32,
    pub world_size: u32,
    /// Index on this node, also the device index.
    pub local_rank: u32,
    pub local_world_size: u32,
    pub store_host: String,
    pub store_port: u16,
    /// "cpu" or "cuda".
    pub device: String,
    pub threads: u32,
    pub run_dir: PathBuf,
    /// Kernels in quarantine, in force from the first step.
    pub kernels: Quarantined,
    /// Number of parts into which each micro-batch is split, on all ranks alike: more than 1 after a rank ran out of memory.
    pub split: u32,
    pub task: WorkerTask,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum WorkerTask {
    /// Train on `staged`, from `resume` when given (a committed checkpoint directory).
    Train { staged: PathBuf, resume: Option<PathBuf>, attempt: String },
    /// Predict every row of `staged` with the best weights of `checkpoint`, in chunks under `out`, the encoder in
    /// `precision`; `done` chunks are skipped.
    Predict {
        staged: PathBuf,
        checkpoint: PathBuf,
        out: PathBuf,
        chunk_rows: u64,
        done: Vec<(u64, u64)>,
        precision: Precision,
    },
    /// Write seeded initial weights for data of the given shape as a checkpoint and end.
    Init { meta: PathBuf, attempt: String },
    /// Save the state that the workers of this round kept, without a further step, and end. The world is those that hold the whole
    /// state.
    Save { attempt: String },
    /// Run a program of the user's own. `source`: who has the state with which the round begins; `None`: nobody.
    Script { attempt: String, source: Option<StateSource> },
}

/// Where the state of training is when a round begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSource {
    /// Rank in the round that begins.
    pub rank: u32,
    /// Steps done.
    pub step: u64,
}
