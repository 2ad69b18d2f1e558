//! Errors in an allocation, and in a request to Slurm.

use super::hostlist::HostlistError;
use enn_common::exit::ExitCode;
use std::{io, path::PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    #[error(
        "SLURM_JOB_ID is set but {name} is not: the environment of the allocation is incomplete\nhint: does a container or `env -i` drop it?"
    )]
    Missing { name: &'static str },
    #[error("{name}={value:?} is not a number")]
    Number { name: &'static str, value: String },
    #[error("{name}={value:?} is not a list of tasks such as 2(x3),1")]
    Tasks { name: &'static str, value: String },
    #[error("{name}: {source}")]
    Nodes { name: &'static str, source: HostlistError },
    #[error("{count_of}={count} but {list_of} names {listed} hosts")]
    Mismatch { count_of: &'static str, count: usize, list_of: &'static str, listed: usize },
    #[error("SLURM_NODEID={index} but {list_of} names only {listed} hosts")]
    Index { index: usize, list_of: &'static str, listed: usize },
    #[error("{program} was not found on PATH\nhint: run this on a login node of the cluster")]
    NoProgram { program: &'static str },
    #[error("cannot run {program}: {source}")]
    Run { program: &'static str, source: io::Error },
    #[error("{program} did not answer within {seconds} s and was killed")]
    Silent { program: &'static str, seconds: u64 },
    #[error("{program} failed with code {code}: {stderr}")]
    Refused {
        program: &'static str,
        /// Exit code; -1: killed.
        code: i32,
        stderr: String,
    },
    #[error("{program} answered {answer:?}, where {expected} was expected")]
    Answer { program: &'static str, answer: String, expected: &'static str },
    #[error("{option}: {value:?} {reason}")]
    Option { option: &'static str, value: String, reason: &'static str },
    #[error("cannot use {} to wait for the agent of this node: {source}", path.display())]
    Wait { path: PathBuf, source: io::Error },
    #[error("{} is open to others or belongs to someone else\nhint: remove it, or set TMPDIR to a folder of your own", path.display())]
    Foreign { path: PathBuf },
    #[error(
        "the first task of this node did not start `enn run` within {seconds} s; this one waits for it\nhint: srun --ntasks-per-node=1 starts one per node"
    )]
    NoAgent { seconds: u64 },
    #[error("the first task of this node, which ran the workers, was killed")]
    AgentGone,
    #[error(
        "--nnodes {found}, but the allocation has {nodes} nodes\nhint: leave --nnodes out, or give srun -N the same number"
    )]
    Nnodes { found: String, nodes: u32 },
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
