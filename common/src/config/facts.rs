//! What resolving needs to know of the machine: a plain value, so that `resolve` stays pure.

use std::path::PathBuf;

/// The machine as far as the configuration depends on it. The launcher fills it in (launcher/src/facts.rs).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Cores this process may run on, at least 1.
    pub cores: usize,
    /// GPUs this process may use.
    pub gpus: usize,
    /// Whether the `enn-worker` that is started is built for CUDA.
    pub cuda_worker: bool,
    /// Working directory: paths given as flags are relative to it.
    pub cwd: PathBuf,
}
