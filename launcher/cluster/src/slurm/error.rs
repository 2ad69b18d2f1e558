//! Errors in an allocation, and in a request to Slurm.

use super::hostlist::HostlistError;
use enn_common::exit::ExitCode;
use std::{io, path::PathBuf};

/// Errors, one sentence each.
#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    /// A variable that every allocation has is not set.
    #[error(
        "SLURM_JOB_ID is set but {name} is not: the environment of the allocation is incomplete\nhint: does a container or `env -i` drop it?"
    )]
    Missing { name: &'static str },
    /// The variable is no number.
    #[error("{name}={value:?} is not a number")]
    Number { name: &'static str, value: String },
    /// The list of tasks cannot be parsed.
    #[error("{name}={value:?} is not a list of tasks such as 2(x3),1")]
    Tasks { name: &'static str, value: String },
    /// The list of hosts cannot be parsed.
    #[error("{name}: {source}")]
    Nodes { name: &'static str, source: HostlistError },
    /// Two variables contradict each other.
    #[error("{count_of}={count} but {list_of} names {listed} hosts")]
    Mismatch {
        /// Variable with the number.
        count_of: &'static str,
        count: usize,
        /// Variable with the list.
        list_of: &'static str,
        /// Length of the list.
        listed: usize,
    },
    /// The index of this node exceeds the list.
    #[error("SLURM_NODEID={index} but {list_of} names only {listed} hosts")]
    Index {
        index: usize,
        /// Variable with the list.
        list_of: &'static str,
        /// Length of the list.
        listed: usize,
    },
    /// Slurm's command is not installed.
    #[error("{program} was not found on PATH\nhint: run this on a login node of the cluster")]
    NoProgram { program: &'static str },
    /// Slurm's command could not be started, or its output not read.
    #[error("cannot run {program}: {source}")]
    Run { program: &'static str, source: io::Error },
    /// Slurm's command did not end in time.
    #[error("{program} did not answer within {seconds} s and was killed")]
    Silent {
        program: &'static str,
        /// Time limit in seconds.
        seconds: u64,
    },
    /// Slurm's command failed.
    #[error("{program} failed with code {code}: {stderr}")]
    Refused {
        program: &'static str,
        /// Exit code; -1: killed.
        code: i32,
        stderr: String,
    },
    /// The output of Slurm's command cannot be parsed.
    #[error("{program} answered {answer:?}, where {expected} was expected")]
    Answer { program: &'static str, answer: String, expected: &'static str },
    /// An option cannot be written into the script.
    #[error("{option}: {value:?} {reason}")]
    Option { option: &'static str, value: String, reason: &'static str },
    /// The tasks of a node could not synchronize.
    #[error("cannot use {} to wait for the agent of this node: {source}", path.display())]
    Wait {
        /// Named pipe or its folder.
        path: PathBuf,
        source: io::Error,
    },
    /// The folder in which the tasks of a node synchronize belongs to another user.
    #[error("{} is open to others or belongs to someone else\nhint: remove it, or set TMPDIR to a folder of your own", path.display())]
    Foreign { path: PathBuf },
    /// The first task of the node did not start.
    #[error(
        "the first task of this node did not start `enn run` within {seconds} s; this one waits for it\nhint: srun --ntasks-per-node=1 starts one per node"
    )]
    NoAgent {
        /// Time limit in seconds.
        seconds: u64,
    },
    /// The first task of the node ended without an exit code.
    #[error("the first task of this node, which ran the workers, was killed")]
    AgentGone,
    /// `--nnodes` contradicts the allocation.
    #[error(
        "--nnodes {found}, but the allocation has {nodes} nodes\nhint: leave --nnodes out, or give srun -N the same number"
    )]
    Nnodes {
        found: String,
        /// Nodes of the allocation.
        nodes: u32,
    },
    /// The script or configuration does not exist.
    #[error("found no {}, expected a script or a configuration", path.display())]
    NoTarget { path: PathBuf },
}

impl SlurmError {
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Option { .. } | Self::Nnodes { .. } => ExitCode::Usage,
            Self::NoTarget { .. } => ExitCode::NotFound,
            Self::AgentGone => ExitCode::WorkerFailed,
            _ => ExitCode::Machine,
        }
    }
}
