//! Looks at the machine: what is there, unjudged. Every look that can take time has a limit.

use crate::{
    libtorch::Libtorch,
    preload::{self, Preload, Trial},
    process::{OutputError, output_within},
};
use enn_common::{fs::memory, probe::Probe, secrets};
use nix::sys::{
    resource::{RLIM_INFINITY, Resource, getrlimit},
    statvfs::statvfs,
};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Longest time the worker may take to load libtorch and say what it is; a cold disk needs ten seconds.
const PROBE_WAIT_MAX: Duration = Duration::from_secs(60);

/// What the launcher knows already (launcher/src/facts.rs) and doctor builds on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// The enn-worker that would be started.
    pub worker: Option<PathBuf>,
    /// The libtorch that workers would be given, or all that was tried.
    pub libtorch: Result<Libtorch, String>,
    /// `LD_LIBRARY_PATH` that workers would be given; `None` leaves it as it is.
    pub library_path: Option<OsString>,
    /// Cores this process may run on.
    pub cores: usize,
    /// GPUs this process may use.
    pub gpus: usize,
    /// The Python that `enn run` starts scripts with.
    pub python: Option<PathBuf>,
    /// Directory for what need not last.
    pub temporary_dir: PathBuf,
    /// Working directory: where runs would be written.
    pub cwd: PathBuf,
    /// Variables of [`super::variables::VARIABLES`] that are set, with their values.
    pub variables: Vec<(String, String)>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Findings {
    /// As given.
    pub surroundings: Surroundings,
    /// What the worker said of itself and its libtorch.
    pub probe: Result<Probe, ProbeFailure>,
    /// Whether `enn run` can fork scripts of PyTorch, or why not; `None` where there is no Python.
    pub fork_server: Option<Result<Trial, String>>,
    /// The kernel module's version, when an NVIDIA driver is loaded.
    pub nvidia_driver: Option<String>,
    /// NVIDIA devices the machine shows, allowed or not.
    pub gpu_devices: usize,
    /// Bytes of memory available without swapping.
    pub memory_available: Option<u64>,
    /// Bytes free where runs are written.
    pub disk_free: Option<u64>,
    /// Bytes free in /dev/shm.
    pub shm_free: Option<u64>,
    /// Soft limits; `None` is unlimited.
    pub limits: Limits,
}

/// Soft resource limits; `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Open files.
    pub nofile: Option<u64>,
    /// Bytes of locked memory.
    pub memlock: Option<u64>,
    /// Bytes of a core file.
    pub core: Option<u64>,
}

/// Why the worker said nothing useful.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeFailure {
    /// There is no enn-worker.
    NoWorker,
    /// It could not be started, or ended in an error; its last line.
    Failed(String),
    /// It said nothing in time.
    TimedOut(Duration),
}

/// Looks. Nothing here fails: what cannot be seen is absent from the findings.
pub fn look(surroundings: &Surroundings) -> Findings {
    Findings {
        surroundings: surroundings.clone(),
        probe: probe(surroundings),
        fork_server: surroundings.python.as_deref().map(|python| fork_server(python, &surroundings.temporary_dir)),
        nvidia_driver: nvidia_driver(),
        gpu_devices: gpu_devices(Path::new("/dev")),
        memory_available: memory::available_bytes(),
        disk_free: free_bytes(&surroundings.cwd),
        shm_free: free_bytes(Path::new("/dev/shm")),
        limits: Limits {
            nofile: soft_limit(Resource::RLIMIT_NOFILE),
            memlock: soft_limit(Resource::RLIMIT_MEMLOCK),
            core: soft_limit(Resource::RLIMIT_CORE),
        },
    }
}

fn probe(surroundings: &Surroundings) -> Result<Probe, ProbeFailure> {
    let worker = surroundings.worker.as_ref().ok_or(ProbeFailure::NoWorker)?;
    let mut command = secrets::command(worker);
    command.arg("--probe");
    if let Some(path) = &surroundings.library_path {
        command.env("LD_LIBRARY_PATH", path);
    }
    let output = output_within(command, PROBE_WAIT_MAX).map_err(|error| match error {
        OutputError::Start(error) => ProbeFailure::Failed(error.to_string()),
        OutputError::Failed(line) => ProbeFailure::Failed(line),
        OutputError::TimedOut(limit) => ProbeFailure::TimedOut(limit),
    })?;
    serde_json::from_str(output.trim()).map_err(|error| ProbeFailure::Failed(format!("{}: {error}", worker.display())))
}

/// Starts a fork server, which imports PyTorch, and ends it.
fn fork_server(python: &Path, temporary: &Path) -> Result<Trial, String> {
    let dir =
        tempfile::Builder::new().prefix("enn-doctor-").tempdir_in(temporary).map_err(|error| error.to_string())?;
    let preload = Preload { modules: vec!["torch".to_owned()], asked: true, behind: false, warm: None };
    preload::try_out(secrets::command(python), preload, dir.path()).map_err(|error| error.to_string())
}

fn nvidia_driver() -> Option<String> {
    let text = fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_owned())
}

/// Device files nvidia0, nvidia1, … under `dev`.
fn gpu_devices(dev: &Path) -> usize {
    let Ok(entries) = fs::read_dir(dev) else { return 0 };
    entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let digits = name.to_str().and_then(|name| name.strip_prefix("nvidia"));
            digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .count()
}

/// Bytes this user may still write under `path`, or under its nearest ancestor that exists.
fn free_bytes(path: &Path) -> Option<u64> {
    let there = path.ancestors().find(|ancestor| ancestor.exists())?;
    let found = statvfs(there).ok()?;
    Some(found.blocks_available() * found.fragment_size())
}

fn soft_limit(resource: Resource) -> Option<u64> {
    match getrlimit(resource) {
        Ok((RLIM_INFINITY, _)) | Err(_) => None,
        Ok((soft, _)) => Some(soft),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_by_their_device_files() {
        let dev = tempfile::tempdir().unwrap();
        for name in ["nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "nvidia", "sda1"] {
            fs::write(dev.path().join(name), "").unwrap();
        }
        assert_eq!(gpu_devices(dev.path()), 2);
    }

    #[test]
    fn free_space_is_that_of_the_nearest_folder_that_exists() {
        let there = free_bytes(Path::new("/tmp")).unwrap();
        assert!(there > 0);
        assert!(free_bytes(Path::new("/tmp/not/there/yet")).is_some());
    }
}
