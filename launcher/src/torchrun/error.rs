//! What is wrong with a command line of `enn run`: a sentence with place, found, expected and a hint.

use crate::numa::NumaError;
use enn_common::exit::ExitCode;
use std::{io, path::PathBuf};

/// Why a launch cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A value that is none.
    #[error("{place} \"{found}\": expected {expected}\nhint: {hint}")]
    Value {
        place: String,
        found: String,
        /// What it may hold.
        expected: &'static str,
        hint: &'static str,
        /// Whether torchrun's parser refuses it too, and ends with 2.
        parser: bool,
    },
    /// Two flags that exclude each other.
    #[error("{first} and {second} were given together, expected one of them\nhint: {hint}")]
    Together { first: &'static str, second: &'static str, hint: &'static str },
    /// A flag that is not known, before words of which it cannot be told which one is the program.
    #[error("{flag} is not known to this version of enn, and {found}\nhint: {hint}")]
    UnknownFlag {
        flag: String,
        /// What makes it doubtful.
        found: String,
        hint: String,
    },
    /// Workers by device, without devices.
    #[error("{place} {found}: found no {device} that this process may use, expected at least one\nhint: {hint}")]
    NoDevices {
        place: String,
        found: &'static str,
        /// The device in words.
        device: &'static str,
        hint: &'static str,
    },
    /// Flags that torch's own torchrun does not have.
    #[error("{asked} is for torch's own torchrun, which has no {flags}\nhint: leave those out; {instead}")]
    Lost {
        /// What is asked for, and where.
        asked: String,
        flags: String,
        instead: &'static str,
    },
    /// A plug-in for torch's own torchrun, in an allocation that enn would divide.
    #[error(
        "{asked} is for torch's own torchrun, which does not find the nodes of a Slurm allocation\nhint: say where they meet, \
         --nnodes N --rdzv-backend c10d --rdzv-endpoint HOST:PORT, or leave it out"
    )]
    NotInSlurm {
        /// What is asked for, and where.
        asked: String,
    },
    /// A Python that does not answer.
    #[error("{asked}: cannot ask {python} for its plug-ins: {why}\nhint: set PYTHON_EXEC to the Python that has torch")]
    Python {
        /// What is asked for, and where.
        asked: String,
        python: String,
        why: String,
    },
    /// A Python without torch.
    #[error(
        "{asked} is for torch's own torchrun, and found no torch in {python}\nhint: activate the environment that has it, or set \
         PYTHON_EXEC; {instead}"
    )]
    NoTorch {
        /// What is asked for, and where.
        asked: String,
        python: String,
        instead: &'static str,
    },
    /// A plug-in that is not there.
    #[error("{asked}: expected {expected}\nhint: {instead}")]
    NoPlugIn {
        /// What is asked for, and where.
        asked: String,
        expected: String,
        instead: &'static str,
    },
    /// torch's own torchrun cannot be executed.
    #[error("cannot execute {program}: {source}\nhint: set PYTHON_EXEC to the Python that has torch")]
    Execute { program: String, source: io::Error },
    /// A rendezvous that ENN does not speak.
    #[error(
        "{place} \"{found}\": expected static or c10d\nhint: enn brings its own rendezvous; `--rdzv-backend c10d \
         --rdzv-endpoint HOST:PORT` needs no other server"
    )]
    Backend {
        place: String,
        /// What was asked for.
        found: String,
    },
    /// A node rank outside of the world.
    #[error(
        "{place} {found}: expected a number below {nodes}, the number of nodes\nhint: --nnodes N and --node-rank 0 to N-1 \
         go together"
    )]
    NodeRank { place: String, found: u32, nodes: u32 },
    /// Nodes that cannot meet because nobody knows where.
    #[error(
        "--standalone with {found} nodes, expected one\nhint: leave --standalone out and say where the nodes meet, \
         --rdzv-backend c10d --rdzv-endpoint HOST:PORT"
    )]
    StandaloneNodes {
        /// Least number of nodes.
        found: u32,
    },
    /// No Python.
    #[error(
        "found no {looked_for} on PATH, expected a Python to run {script} with\nhint: activate an environment, set \
         PYTHON_EXEC, or add --no-python for a program that is no Python script"
    )]
    NoInterpreter {
        /// What was looked for.
        looked_for: String,
        script: String,
    },
    /// The script or program is not there.
    #[error("found no {}, expected a {what}\nhint: {hint}", path.display())]
    Missing { path: PathBuf, what: &'static str, hint: &'static str },
    /// The script cannot be read.
    #[error("cannot read the script {}: {source}\nhint: check its permissions with `ls -l`", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// The program cannot be executed.
    #[error(
        "{} is not executable, expected a program\nhint: `chmod +x` makes it one; without --no-python it is run by Python",
        path.display()
    )]
    NotExecutable { path: PathBuf },
    /// Too few open files are allowed.
    #[error(
        "at most {allowed} open files are allowed (ulimit -Hn), expected {needed} for {workers} workers\nhint: raise the \
         hard limit in /etc/security/limits.conf or the service's LimitNOFILE"
    )]
    Descriptors { allowed: u64, needed: u64, workers: u32 },
    /// CPUs that cannot be bound as asked for.
    #[error("--numa-binding: {0}")]
    Numa(#[from] NumaError),
    /// The log directory cannot be made.
    #[error("cannot make the log directory {}: {source}\nhint: choose another by --log-dir", path.display())]
    LogDir { path: PathBuf, source: io::Error },
    /// The file of the token cannot be used.
    #[error("cannot {what} the token file {}: {source}\nhint: set ENN_TOKEN, or name a file by --token-file", path.display())]
    TokenFile { what: &'static str, path: PathBuf, source: io::Error },
    /// Others may read the token.
    #[error(
        "the token file {} has mode {mode:03o}, expected one that only its owner may read\nhint: chmod 600 {}",
        path.display(), path.display()
    )]
    TokenOpen { path: PathBuf, mode: u32 },
    /// A token that is too short to keep anybody out.
    #[error(
        "the token of {place} has {found} bytes, expected at least {least}\nhint: `head -c 32 /dev/urandom | base64` makes a \
         good one"
    )]
    TokenShort {
        place: String,
        /// Its bytes.
        found: usize,
        least: usize,
    },
}

impl RunError {
    /// The exit code of `enn run`.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::NoInterpreter { .. } | Self::Missing { .. } => ExitCode::NotFound,
            Self::Unreadable { .. } | Self::NotExecutable { .. } => ExitCode::NotExecutable,
            Self::NoTorch { .. } | Self::Python { .. } | Self::Execute { .. } => ExitCode::Machine,
            Self::NoDevices { .. } | Self::Descriptors { .. } | Self::LogDir { .. } | Self::Numa(_) => {
                ExitCode::Machine
            }
            _ => ExitCode::Usage,
        }
    }

    /// The exit code of torchrun: its parser ends with 2, everything after that with 1.
    pub fn torchrun_code(&self) -> ExitCode {
        match self {
            Self::Value { parser: true, .. } | Self::UnknownFlag { .. } => ExitCode::Usage,
            _ => ExitCode::WorkerFailed,
        }
    }
}
