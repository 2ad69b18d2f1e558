//! What the agent is asked to do, and what became of it.

use super::hand::Heritage;
use enn_common::{
    config::train::{Precision, Recovery},
    id::Round,
    metrics::Metrics,
    wire::follower::Ending,
};
use enn_process::{Guard, WorkerSpec};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// A run of workers.
#[derive(Debug, Clone)]
pub struct AgentSpec {
    /// How to start one worker.
    pub worker: WorkerSpec,
    /// Workers, when none is missing.
    pub world: u32,
    /// Workers with which a round goes on at once; 1 to `world`.
    pub workers_min: u32,
    /// Workers that the machine has room for: the run may be resized up to there.
    pub workers_most: u32,
    /// What happens after a failure. Only training re-forms.
    pub policy: Recovery,
    /// Processes that stand by; only under `Recovery::Reform`.
    pub spares: u32,
    /// Whether a worker that the others wait for loses its seat to a warm spare.
    pub evict_stragglers: bool,
    /// Time between two looks at who waits for whom.
    pub straggler_window: Duration,
    /// Time that workers have to leave a round together when they are asked to: they finish a step first.
    pub regroup_wait: Duration,
    /// Time without progress of any worker after which one is taken for dead.
    pub hang_timeout: Option<Duration>,
    /// Name of this host.
    pub host: String,
    /// Run directory, absolute; logs go into it.
    pub run_dir: PathBuf,
    /// Number of the first round: 0, or one more than the last round of the run that is resumed.
    pub first_round: Round,
    /// What the workers do.
    pub job: Job,
    /// Failures that are recovered from: in a row without a step between them under `Reform`, in all under `Restart`.
    pub max_restarts: u32,
    /// Time to finish the step and checkpoint after the first signal.
    pub grace: Duration,
    /// Short directory for the broker's socket, e.g. /tmp.
    pub socket_parent: PathBuf,
    /// Whether SIGINT, SIGTERM, SIGHUP and SIGQUIT stop the run. A program with handlers of its own says no.
    pub handle_signals: bool,
}

/// A node on which the head of another node lets workers work.
#[derive(Debug, Clone)]
pub struct HandSpec {
    /// How to start one worker.
    pub worker: WorkerSpec,
    /// Workers, when none is missing.
    pub world: u32,
    /// Workers that the machine has room for.
    pub workers_most: u32,
    /// Name of this host.
    pub host: String,
    /// Short directory for the broker's socket, e.g. /tmp/nodes-w.
    pub socket_parent: PathBuf,
    /// Whether SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 stop the run.
    pub handle_signals: bool,
}

/// How the run ended for a hand.
#[derive(Debug)]
pub enum HandEnd {
    /// As the head says.
    Ended(Ending),
    /// The node was asked to stop before it had a part in the run.
    Stopped(Signal),
    /// No workers are wanted here any more.
    Drained,
    /// This node cannot go on, and why.
    Failed(String),
    /// The head is gone and this node leads.
    TookOver(Guard, Box<Heritage>),
}

/// What the workers do.
#[derive(Debug, Clone)]
pub enum Job {
    /// Train on a staged directory, from the newest checkpoint of the run.
    Train {
        /// Staged data.
        staged: PathBuf,
        /// Checkpoint to begin with when the run has none of its own.
        init: Option<PathBuf>,
    },
    /// Predict every row.
    Predict {
        /// Staged data.
        staged: PathBuf,
        checkpoint: PathBuf,
        /// Directory for chunks.
        out: PathBuf,
        /// Rows per chunk.
        chunk_rows: u64,
        /// Rows in all.
        rows: u64,
        /// Row ranges that are complete already.
        done: Vec<(u64, u64)>,
        /// What the encoder computes in.
        precision: Precision,
    },
    /// Write initial weights.
    Init {
        /// meta.json of the data's shape.
        meta: PathBuf,
    },
}

/// A signal that asks to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM, also SIGHUP and SIGQUIT.
    Terminate,
    /// SIGUSR1: the time limit of the job is near.
    TimeLimit,
}

impl Signal {
    /// The signal of this name; one that only stops is as good as SIGTERM.
    pub fn named(name: &str) -> Self {
        match name {
            "SIGINT" => Self::Interrupt,
            "SIGUSR1" => Self::TimeLimit,
            _ => Self::Terminate,
        }
    }

    /// Whether one more signal is a second wish of the user's, after the `first` that this node got. Slurm ends what it puts back
    /// into the queue: what follows SIGUSR1 is none.
    pub(super) fn is_second(first: Option<Self>) -> bool {
        first.is_some_and(|first| first != Self::TimeLimit)
    }

    /// The signal's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::TimeLimit => "SIGUSR1",
        }
    }
}

/// How the run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    /// Every worker finished its work.
    Finished,
    /// A signal asked to stop; the newest checkpoint stands.
    Stopped(Signal),
    /// A worker failed and no restart was left.
    Failed {
        /// The first failure of the last round, with the worker's own words.
        cause: String,
    },
}

/// A range of predicted rows on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// First row.
    pub start: u64,
    /// Row after the last.
    pub end: u64,
    pub path: PathBuf,
    /// Digest, hex.
    pub blake3: String,
}

/// What became of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// How it ended.
    pub ended: Ended,
    /// It has not: another node leads it now.
    pub handed_over: bool,
    /// Rounds that began from a checkpoint because nobody had kept the state.
    pub restarts: u32,
    /// Rounds begun.
    pub rounds: u64,
    /// Final metrics per split, when training ended by itself.
    pub metrics: Option<BTreeMap<String, Metrics>>,
    /// Step and directory of the newest checkpoint committed or found.
    pub checkpoint: Option<(u64, PathBuf)>,
    /// Training ended by itself, and its last state is in no checkpoint: why.
    pub unsaved: Option<String>,
    /// Chunks written by this agent, by first row.
    pub chunks: Vec<Chunk>,
}
