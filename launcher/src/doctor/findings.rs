//! Examines the machine without judging what it finds. Every step that can take time has a limit.

use crate::libtorch::{Installation, Libtorch};
use enn_common::{fs::memory, probe::Probe, secrets};
use enn_process::{
    OutputError, devices, output_within,
    preload::{self, Preload, Trial},
};
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

/// The facts that the launcher knows before doctor examines the machine, made from [`crate::facts::Facts`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoctorInputs {
    /// The enn-worker that would be started, or all places that were tried.
    pub worker: Result<PathBuf, String>,
    pub installation: Installation,
    /// The libtorch that workers would load, or all places that were tried.
    pub libtorch: Result<Libtorch, String>,
    /// `LD_LIBRARY_PATH` that workers would be given; `None` leaves it as it is.
    pub library_path: Option<OsString>,
    /// Cores this process may run on.
    pub cores: usize,
    /// GPUs this process may use.
    pub gpus: usize,
    /// The Python that `enn run` starts scripts with.
    pub python: Option<PathBuf>,
    pub temporary_dir: PathBuf,
    /// Working directory, in which runs would be written.
    pub cwd: PathBuf,
    /// Whether Slurm's `sbatch` is on PATH.
    pub has_slurm: bool,
    /// Formats of `enn export`, which the caller adds.
    pub exports: Vec<ExportSupport>,
    /// Variables of [`super::variables::VARIABLES`] that are set, with their values.
    pub variables: Vec<(String, String)>,
}

/// A format of `enn export`, and whether all that makes and checks it is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportSupport {
    pub format: &'static str,
    pub is_ready: bool,
}

/// The result of [`collect`].
#[derive(Debug, Clone, PartialEq)]
pub struct Findings {
    pub inputs: DoctorInputs,
    /// The probe of the worker and its libtorch.
    pub probe: Result<Probe, ProbeFailure>,
    /// Whether `enn run` can fork scripts of PyTorch, or why not; `None` where there is no Python.
    pub fork_server: Option<Result<Trial, String>>,
    /// The kernel module's version, when an NVIDIA driver is loaded.
    pub nvidia_driver: Option<String>,
    /// Number of NVIDIA device files, whether this process may use them or not.
    pub gpu_devices: usize,
    /// NVIDIA GPUs, and what NVML shows to be wrong with each; `None`: the driver does not answer.
    pub gpu_troubles: Option<Vec<(String, Option<String>)>>,
    /// Bytes of memory available without swapping.
    pub memory_available: Option<u64>,
    /// Bytes free where runs are written.
    pub disk_free: Option<u64>,
    pub shm_free: Option<u64>,
    pub limits: ResourceLimits,
}

/// Soft resource limits; `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceLimits {
    pub nofile: Option<u64>,
    /// Bytes of locked memory.
    pub memlock: Option<u64>,
    /// Bytes of a core file.
    pub core: Option<u64>,
}

/// Why the worker could not be probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeFailure {
    NoWorker,
    /// The worker could not be started, or it failed; the last line that it printed.
    Failed(String),
    /// The worker did not answer within this time.
    TimedOut(Duration),
}

/// Examines the machine. This never fails: what cannot be examined is absent from the findings.
pub fn collect(inputs: &DoctorInputs) -> Findings {
    Findings {
        inputs: inputs.clone(),
        probe: probe(inputs),
        fork_server: inputs.python.as_deref().map(|python| fork_server(python, &inputs.temporary_dir)),
        nvidia_driver: nvidia_driver(),
        gpu_devices: gpu_devices(Path::new("/dev")),
        gpu_troubles: gpu_troubles(),
        memory_available: memory::available_bytes(),
        disk_free: free_bytes(&inputs.cwd),
        shm_free: free_bytes(Path::new("/dev/shm")),
        limits: ResourceLimits {
            nofile: soft_limit(Resource::RLIMIT_NOFILE),
            memlock: soft_limit(Resource::RLIMIT_MEMLOCK),
            core: soft_limit(Resource::RLIMIT_CORE),
        },
    }
}

fn probe(inputs: &DoctorInputs) -> Result<Probe, ProbeFailure> {
    let worker = inputs.worker.as_ref().map_err(|_| ProbeFailure::NoWorker)?;
    let mut command = secrets::command(worker);
    command.arg("--probe");
    if let Some(path) = &inputs.library_path {
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

fn gpu_troubles() -> Option<Vec<(String, Option<String>)>> {
    let gpus = devices::gpus_with_health(PROBE_WAIT_MAX)?;
    Some(gpus.into_iter().map(|(gpu, health)| (gpu.to_string(), health.and_then(|health| health.trouble()))).collect())
}

/// Counts the device files nvidia0, nvidia1, … in `dev`.
pub(crate) fn gpu_devices(dev: &Path) -> usize {
    let is_device = |name: &str| {
        let digits = name.strip_prefix("nvidia");
        digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let entries = fs::read_dir(dev).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_device)).count()
}

/// Returns the bytes that this user may still write below `path`, or below its nearest ancestor that exists.
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
