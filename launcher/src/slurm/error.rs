//! What can be wrong with an allocation, and with asking Slurm for one.

use super::hostlist::HostlistError;
use enn_common::exit::ExitCode;
use std::{io, path::PathBuf};

/// One sentence each.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// A variable that an allocation has is not set.
    #[error(
        "SLURM_JOB_ID is set but {name} is not: the environment of the allocation is incomplete\nhint: does a container or `env -i` drop it?"
    )]
    Missing { name: &'static str },
    /// A variable that is no number.
    #[error("{name}={value:?} is not a number")]
    Number { name: &'static str, value: String },
    /// A list of tasks that cannot be read.
    #[error("{name}={value:?} is not a list of tasks such as 2(x3),1")]
    Tasks { name: &'static str, value: String },
    /// A list of hosts that cannot be read.
    #[error("{name}: {source}")]
    Nodes { name: &'static str, source: HostlistError },
    /// Variables that contradict each other.
    #[error("{count_of}={count} but {list_of} names {listed} hosts")]
    Mismatch {
        /// Variable with the number.
        count_of: &'static str,
        count: usize,
        /// Variable with the list.
        list_of: &'static str,
        /// Hosts of the list.
        listed: usize,
    },
    /// This node is none of the list.
    #[error("SLURM_NODEID={index} but {list_of} names only {listed} hosts")]
    Index {
        index: usize,
        /// Variable with the list.
        list_of: &'static str,
        /// Hosts of the list.
        listed: usize,
    },
    /// Slurm's command is not there.
    #[error("{program} was not found on PATH\nhint: run this on a login node of the cluster")]
    NoProgram { program: &'static str },
    /// Slurm's command could not be started or read.
    #[error("cannot run {program}: {source}")]
    Run { program: &'static str, source: io::Error },
    /// Slurm's command did not end.
    #[error("{program} did not answer within {seconds} s and was killed")]
    Silent {
        program: &'static str,
        /// How long we waited.
        seconds: u64,
    },
    /// Slurm said no.
    #[error("{program} failed with code {code}: {stderr}")]
    Refused {
        program: &'static str,
        /// Its exit code; -1: killed.
        code: i32,
        stderr: String,
    },
    /// Slurm said yes in words we do not know.
    #[error("{program} answered {answer:?}, where {expected} was expected")]
    Answer { program: &'static str, answer: String, expected: &'static str },
    /// An option for the script that cannot be written into it.
    #[error("{option}: {value:?} {reason}")]
    Option { option: &'static str, value: String, reason: &'static str },
    /// The tasks of a node could not find each other.
    #[error("cannot use {} to wait for the agent of this node: {source}", path.display())]
    Wait {
        /// Pipe or its folder.
        path: PathBuf,
        source: io::Error,
    },
    /// The folder where the tasks of a node find each other belongs to someone else.
    #[error("{} is open to others or belongs to someone else\nhint: remove it, or set TMPDIR to a folder of your own", path.display())]
    Foreign { path: PathBuf },
    /// The first task of the node did not come.
    #[error(
        "the first task of this node did not start `enn run` within {seconds} s; this one waits for it\nhint: srun --ntasks-per-node=1 starts one per node"
    )]
    NoAgent {
        /// How long we waited.
        seconds: u64,
    },
    /// The first task of the node is gone without a word.
    #[error("the first task of this node, which ran the workers, was killed")]
    AgentGone,
    /// `--nnodes` against the allocation.
    #[error(
        "--nnodes {found}, but the allocation has {nodes} nodes\nhint: leave --nnodes out, or give srun -N the same number"
    )]
    Nnodes {
        found: String,
        /// Nodes of the allocation.
        nodes: u32,
    },
    /// What is to be run is not there.
    #[error("found no {}, expected a script or a configuration", path.display())]
    NoTarget { path: PathBuf },
}

impl SlurmError {
    /// The exit code of `enn`.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Option { .. } | Self::Nnodes { .. } => ExitCode::Usage,
            Self::NoTarget { .. } => ExitCode::NotFound,
            Self::AgentGone => ExitCode::WorkerFailed,
            _ => ExitCode::Machine,
        }
    }
}
