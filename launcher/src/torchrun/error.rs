//! Errors in a command line of `enn run`: a sentence with the place, the value found, the value expected and a hint.

use enn_common::exit::ExitCode;
use enn_process::numa::NumaError;
use std::{io, path::PathBuf};

/// Reasons for which a launch cannot begin. `asked`: a plug-in, and the flag or variable that requests it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("{place} \"{found}\": expected {expected}\nhint: {hint}")]
    Value {
        place: String,
        found: String,
        expected: &'static str,
        hint: &'static str,
        /// Whether torchrun's parser rejects the value as well and ends with code 2.
        parser: bool,
    },
    #[error("{first} and {second} were given together, expected one of them\nhint: {hint}")]
    Together { first: &'static str, second: &'static str, hint: &'static str },
    #[error(
        "{flag} without --on-failure replace: found a run whose workers all restart, expected one whose workers are replaced\nhint: add \
         --on-failure replace, for scripts that use the Python package enn"
    )]
    NeedsReplace { flag: String },
    #[error(
        "--warm-device with {spares} spares for {workers} workers of this node: expected one spare for each, as each takes the device of \
         one worker\nhint: --spares {workers}, or leave --warm-device out"
    )]
    WarmDevices { spares: u32, workers: u32 },
    #[error("{flag} is not known to this version of enn, and {found}\nhint: {hint}")]
    UnknownFlag { flag: String, found: String, hint: String },
    #[error("{place} {found}: found no {device} that this process may use, expected at least one\nhint: {hint}")]
    NoDevices { place: String, found: &'static str, device: &'static str, hint: &'static str },
    #[error("{asked} is for torch's own torchrun, which has no {flags}\nhint: leave those out; {instead}")]
    Lost { asked: String, flags: String, instead: &'static str },
    #[error(
        "{asked} is for torch's own torchrun, which does not find the nodes of a Slurm allocation\nhint: say where they meet, \
         --nnodes N --rdzv-backend c10d --rdzv-endpoint HOST:PORT, or leave it out"
    )]
    NotInSlurm { asked: String },
    #[error("{asked}: cannot ask {python} for its plug-ins: {why}\nhint: set PYTHON_EXEC to the Python that has torch")]
    Python { asked: String, python: String, why: String },
    #[error(
        "{asked} is for torch's own torchrun, and found no torch in {python}\nhint: activate the environment that has it, or set \
         PYTHON_EXEC; {instead}"
    )]
    NoTorch { asked: String, python: String, instead: &'static str },
    #[error("{asked}: expected {expected}\nhint: {instead}")]
    NoPlugIn { asked: String, expected: String, instead: &'static str },
    #[error("cannot execute {program}: {source}\nhint: set PYTHON_EXEC to the Python that has torch")]
    Execute { program: String, source: io::Error },
    #[error(
        "{place} \"{found}\": expected static or c10d\nhint: enn brings its own rendezvous; `--rdzv-backend c10d \
         --rdzv-endpoint HOST:PORT` needs no other server"
    )]
    Backend { place: String, found: String },
    #[error(
        "{place} {found}: expected a number below {nodes}, the number of nodes\nhint: --nnodes N and --node-rank 0 to N-1 \
         go together"
    )]
    NodeRank { place: String, found: u32, nodes: u32 },
    #[error(
        "--standalone with {found} nodes, expected one\nhint: leave --standalone out and say where the nodes meet, \
         --rdzv-backend c10d --rdzv-endpoint HOST:PORT"
    )]
    StandaloneNodes { found: u32 },
    #[error(
        "found no {looked_for} on PATH, expected a Python to run {script} with\nhint: activate an environment, set \
         PYTHON_EXEC, or add --no-python for a program that is no Python script"
    )]
    NoInterpreter { looked_for: String, script: String },
    #[error("found no {}, expected a {what}\nhint: {hint}", path.display())]
    Missing { path: PathBuf, what: &'static str, hint: &'static str },
    #[error("cannot read the script {}: {source}\nhint: check its permissions with `ls -l`", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "{} is not executable, expected a program\nhint: `chmod +x` makes it one; without --no-python it is run by Python",
        path.display()
    )]
    NotExecutable { path: PathBuf },
    #[error(
        "at most {allowed} open files are allowed (ulimit -Hn), expected {needed} for {workers} workers\nhint: raise the \
         hard limit in /etc/security/limits.conf or the service's LimitNOFILE"
    )]
    Descriptors { allowed: u64, needed: u64, workers: u32 },
    #[error("--numa-binding: {0}")]
    Numa(#[from] NumaError),
    #[error("cannot make the log directory {}: {source}\nhint: choose another by --log-dir", path.display())]
    LogDir { path: PathBuf, source: io::Error },
    #[error("cannot {what} the token file {}: {source}\nhint: set ENN_TOKEN, or name a file by --token-file", path.display())]
    TokenFile { what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the token file {} has mode {mode:03o}, expected one that only its owner may read\nhint: chmod 600 {}",
        path.display(), path.display()
    )]
    TokenOpen { path: PathBuf, mode: u32 },
    #[error(
        "the token of {place} has {found} bytes, expected at least {least}\nhint: `head -c 32 /dev/urandom | base64` makes a \
         good one"
    )]
    TokenShort { place: String, found: usize, least: usize },
}

impl RunError {
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

    /// Returns the exit code of torchrun: its parser ends with 2, everything after that with 1.
    pub fn torchrun_code(&self) -> ExitCode {
        match self {
            Self::Value { parser: true, .. } | Self::UnknownFlag { .. } => ExitCode::Usage,
            _ => ExitCode::WorkerFailed,
        }
    }
}
