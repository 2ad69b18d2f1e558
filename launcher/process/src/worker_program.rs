//! The worker program of a user's installation, and the variables that every start of it sets.

use enn_common::config::train::Device;
use std::{ffi::OsString, path::PathBuf};

/// Workspace of cuBLAS for each stream, with which NVIDIA promises the same bits each time.
const CUBLAS_WORKSPACE_REPEATABLE: &str = ":4096:8";

/// Turns of a waiting thread, a few µs, before it sleeps. OpenMP's default of many turns keeps a processor from the thread that is waited
/// for: where two threads share two cores with others, a step of the weather model took 33 ms instead of 9.
const SPINS: &str = "1000";

/// How a worker process is started.
#[derive(Debug, Clone)]
pub struct WorkerSpec {
    /// Program, `enn-worker` or one built by the user.
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Directory with libtorch's shared objects, put first on `LD_LIBRARY_PATH`.
    pub library_dir: Option<PathBuf>,
    /// `LD_LIBRARY_PATH` of the launcher, kept behind `library_dir`.
    pub library_path: Option<OsString>,
    pub device: Device,
    /// Intra-op threads per worker, at least 1.
    pub threads: u32,
    /// Whether threads that wait for each other sleep almost at once; not where the environment says how they wait.
    pub sleeps: bool,
    /// Whether products on a GPU are to be the same bits each time.
    pub repeatable_products: bool,
}

impl WorkerSpec {
    /// Describes a program without arguments and without libtorch, on the CPU with one thread.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            args: Vec::new(),
            library_dir: None,
            library_path: None,
            device: Device::Cpu,
            threads: 1,
            sleeps: true,
            repeatable_products: false,
        }
    }

    /// Returns the device as the worker calls it.
    pub fn device_name(&self) -> &'static str {
        if self.device == Device::Cuda { "cuda" } else { "cpu" }
    }

    /// Returns the variables for OpenMP.
    pub fn openmp(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        let spins = self.sleeps.then(|| ("GOMP_SPINCOUNT", SPINS.into()));
        std::iter::once(("OMP_NUM_THREADS", self.threads.to_string().into())).chain(spins)
    }

    /// Returns the variable for cuBLAS, which reads it when it is first used.
    pub fn cublas(&self) -> Option<(&'static str, OsString)> {
        self.repeatable_products.then(|| ("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE_REPEATABLE.into()))
    }

    /// Returns `LD_LIBRARY_PATH` of the worker, libtorch first; `None` leaves it as it is inherited.
    pub fn libraries(&self) -> Option<OsString> {
        let mut path = self.library_dir.clone()?.into_os_string();
        if let Some(rest) = self.library_path.as_ref().filter(|rest| !rest.is_empty()) {
            path.push(":");
            path.push(rest);
        }
        Some(path)
    }
}
