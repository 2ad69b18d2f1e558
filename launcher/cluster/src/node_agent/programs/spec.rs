//! What a node is asked to run: any program that reads torchrun's environment.

use crate::{rendezvous::Settings, supervisor::GroupLimits};
use enn_process::{logs::LogPlan, preload::Preload};
use nix::sys::signal::Signal;
use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, time::Duration};

/// The command of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Program: an interpreter or the script itself; looked up on PATH when it has no slash.
    pub program: OsString,
    /// Its arguments, the same for every worker.
    pub args: Vec<OsString>,
}

/// How workers that fail are replaced (`--on-failure replace`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplaceSpec {
    /// Spares of this node.
    pub spares: u32,
    /// Each spare is for one device, and takes it before it has a seat.
    pub warm_device: bool,
    /// Workers with which a round goes on at once while others are missing.
    pub workers_min: u32,
    /// Short directory for the broker's socket, e.g. /tmp.
    pub socket_parent: PathBuf,
}

/// Everything the group of a node needs.
#[derive(Debug, Clone)]
pub struct GroupSpec {
    pub command: Command,
    /// What is imported once for all workers of this node, which are then forked; `None`: each is executed.
    pub preload: Option<Preload>,
    /// How the nodes meet; holds the run's name, role and number of workers.
    pub rendezvous: Settings,
    /// Run directory, absolute: events.jsonl, stacks, stores of cached files.
    pub run_dir: PathBuf,
    /// Where the workers' output goes.
    pub logs: LogPlan,
    /// Variables set for every worker over those inherited and before those of the contract, e.g. OMP_NUM_THREADS.
    pub variables: BTreeMap<String, OsString>,
    /// `TORCH_NCCL_ASYNC_ERROR_HANDLING` of the launcher's own environment; "1" when unset.
    pub nccl_async_error_handling: Option<String>,
    /// Each worker sees LOCAL_RANK 0 and its own device only (`--virtual-local-rank`).
    pub virtual_local_rank: bool,
    /// `HIP_VISIBLE_DEVICES`, else `CUDA_VISIBLE_DEVICES`, of the launcher, for virtual local ranks; `None`: 0, 1, …
    pub visible_devices: Option<Vec<String>>,
    /// Whether they are those of `HIP_VISIBLE_DEVICES`, which wins over the other and so is set for the worker, too.
    pub hip_devices: bool,
    /// CPUs of each worker by local rank (`--numa-binding`); empty: not bound.
    pub cpus: Vec<Vec<usize>>,
    /// `ENN_LAUNCH` of the launcher's own environment: this launch runs inside another.
    pub inherited_mark: Option<OsString>,
    /// Named pipe through which workers set timers (`TORCHELASTIC_ENABLE_FILE_TIMER`); `None`: they cannot.
    pub timer_file: Option<PathBuf>,
    /// Signals that stop the run (`--signals-to-handle`).
    pub signals: Vec<Signal>,
    /// When a round that failed is followed by another one.
    pub limits: GroupLimits,
    /// Time between TERM and KILL.
    pub grace: Duration,
    /// A worker that fails is replaced while the others live; `None`: all restart.
    pub replace: Option<ReplaceSpec>,
    /// Whether the launcher ends with the failed worker's own code (`--propagate-exit`).
    pub propagate_exit: bool,
    /// Whether what the workers started and left behind outlives a run that ended well (`--leave-background`).
    pub leave_background: bool,
}
