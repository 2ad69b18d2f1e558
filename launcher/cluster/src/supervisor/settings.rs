//! Settings of a run for its supervisor. `enn train`, prediction and `enn run` differ in these and in nothing else.

use super::group_budget::GroupLimits;
use crate::rendezvous::NodeId;
use enn_common::config::train::{Precision, Recovery};
use std::{path::PathBuf, time::Duration};

/// How workers learn of their seats and say what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contract {
    /// Workers of ours: they connect to the broker of their node, and a control page shows what they do.
    Broker,
    /// Any program. One that attaches to the broker of its node can leave a round and join another one; exit code 0 says that its work
    /// is done.
    Script,
    /// Any program that reads torchrun's environment: it is heard of by its output, its files and its end.
    Env(GroupLimits),
}

/// Settings of a run, as its launcher asks for it.
#[derive(Debug, Clone)]
pub struct RunSettings {
    pub contract: Contract,
    /// Workers with which a round goes on at once; at least 1. A run whose size is fixed wants all of them.
    pub workers_min: u32,
    /// What happens after a failure. Only training re-forms.
    pub on_failure: Recovery,
    /// Maximum number of recoveries: without a step between them under `Reform`, in all under `Restart`.
    pub max_restarts: u32,
    /// Spares of each node; only under `Reform`.
    pub spares: u32,
    /// A spare has taken the device for which it was started: it can take no other seat.
    pub spares_are_bound: bool,
    /// A worker that the others wait for loses its seat to a warm spare.
    pub evict_stragglers: bool,
    /// Time between two looks at who waits for whom.
    pub straggler_window: Duration,
    /// Time that workers have to leave a round together when they are asked to: they finish a step first.
    pub regroup_wait: Duration,
    /// Time without progress of any worker after which one is taken for dead.
    pub hang_timeout: Option<Duration>,
    /// Time to finish the step and save after a request to stop.
    pub grace: Duration,
    /// Number of the first round: 0, or one more than the last round of the run that is resumed.
    pub first_round: u64,
    /// Run directory, absolute; logs go into it.
    pub run_dir: PathBuf,
    pub job: RunJob,
}

/// Settings of a supervisor: the run, and who leads it where.
#[derive(Debug, Clone)]
pub struct SupervisorSettings {
    pub run: RunSettings,
    /// Node agent of the leader itself.
    pub own: NodeId,
    /// Host of the leader.
    pub host: String,
    /// Several nodes may take part: events name hosts.
    pub several_nodes: bool,
    /// Nodes needed.
    pub nodes_min: u32,
    /// Workers that the run was started with on this node; a run with `workers_min` of at least as many has a fixed size.
    pub workers: u32,
    /// Longest silence of a node agent whose connection stands.
    pub agent_silence_max: Duration,
    /// Identifies this launch among those in the same run directory; part of each attempt's name.
    pub launch: String,
    /// Address of the store in which the workers meet, `host:port`, for the journal; empty where there is none.
    pub store: String,
    /// "cpu" or "cuda".
    pub device: &'static str,
    /// Intra-op threads per worker.
    pub threads: u32,
}

/// What the workers of a run do.
#[derive(Debug, Clone)]
pub enum RunJob {
    /// Train on a staged directory, from the newest checkpoint of the run.
    Train {
        staged: PathBuf,
        /// Checkpoint to begin with when the run has none of its own.
        init: Option<PathBuf>,
        /// Digest of the run's configuration file, for the other nodes.
        config: String,
    },
    Predict {
        staged: PathBuf,
        checkpoint: PathBuf,
        /// Directory for chunks.
        out: PathBuf,
        chunk_rows: u64,
        rows: u64,
        /// Row ranges that are complete already.
        done: Vec<(u64, u64)>,
        /// What the encoder computes in.
        precision: Precision,
    },
    /// Write initial weights for data of this meta.json.
    Init { meta: PathBuf },
    /// Run a program, of which the supervisor knows nothing.
    Program,
}
