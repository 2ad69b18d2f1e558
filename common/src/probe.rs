//! What `enn-worker --probe` prints, as one line of JSON, and `enn doctor` reads.

use serde::{Deserialize, Serialize};

/// A worker binary and the libtorch it runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    pub version: String,
    /// Version of libtorch whose headers it was compiled with.
    pub libtorch_built: String,
    /// Version of libtorch that was loaded.
    pub libtorch: String,
    /// Built with the feature `cuda`.
    pub cuda_build: bool,
    pub cuda_devices: u32,
    /// CUDA version of libtorch, in a CUDA build.
    pub cuda: Option<String>,
    /// Version of NCCL, in a CUDA build.
    pub nccl: Option<String>,
    /// Whether libtorch runs PT2 archives.
    pub runs_archives: bool,
    /// Vector instructions libtorch uses.
    pub cpu_capability: Option<String>,
    /// Threads one operation uses when nothing else is said.
    pub threads: u32,
}
