//! Looks at the machine: what is there, unjudged. Every look that can take time has a limit.

use enn_common::{fs::memory, probe::Probe};
use nix::sys::{
    resource::{RLIM_INFINITY, Resource, getrlimit},
    statvfs::statvfs,
};
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// Longest time the worker may take to load libtorch and say what it is; a cold disk needs ten seconds.
const PROBE_WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest time Python may take to name its version of torch.
const PYTHON_WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes of a child's output that are read.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// What the launcher knows already (launcher/src/facts.rs) and doctor builds on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Surroundings {
    /// The enn-worker that would be started.
    pub worker: Option<PathBuf>,
    /// Folder of libtorch's libraries that workers would be given.
    pub libtorch_lib: Option<PathBuf>,
    /// Cores this process may run on.
    pub cores: usize,
    /// GPUs this process may use.
    pub gpus: usize,
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
    /// Version of the torch that python3 has.
    pub python_torch: Option<String>,
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
        python_torch: python_torch(),
    }
}

fn probe(surroundings: &Surroundings) -> Result<Probe, ProbeFailure> {
    let worker = surroundings.worker.as_ref().ok_or(ProbeFailure::NoWorker)?;
    let mut command = Command::new(worker);
    command.arg("--probe");
    if let Some(lib) = &surroundings.libtorch_lib {
        command.env("LD_LIBRARY_PATH", lib);
    }
    let output = output_within(command, PROBE_WAIT_MAX)?;
    serde_json::from_str(output.trim()).map_err(|error| ProbeFailure::Failed(format!("{}: {error}", worker.display())))
}

fn python_torch() -> Option<String> {
    let mut command = Command::new("python3");
    command.args(["-c", "import importlib.metadata as m; print(m.version('torch'))"]);
    let version = output_within(command, PYTHON_WAIT_MAX).ok()?;
    Some(version.trim().to_owned()).filter(|version| !version.is_empty())
}

/// Standard output of a child that ends well within `wait_max`; else it is killed and the last line of its errors told.
pub(crate) fn output_within(mut command: Command, wait_max: Duration) -> Result<String, ProbeFailure> {
    let failed = |error: std::io::Error| ProbeFailure::Failed(error.to_string());
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let (sender, receiver) = mpsc::channel();
    let (out, err) = (child.stdout.take(), child.stderr.take());
    // Never joined: a grandchild that outlives a killed child would hold the pipes open.
    thread::spawn(move || {
        // Standard error after standard output: a probe writes little to either.
        let _ = sender.send((read(out), read(err)));
    });
    let received = receiver.recv_timeout(wait_max);
    if received.is_err() {
        end(&mut child);
    }
    let status = child.wait().map_err(failed)?;
    let (output, errors) = received.map_err(|_| ProbeFailure::TimedOut(wait_max))?;
    if status.success() {
        return Ok(output);
    }
    let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    Err(ProbeFailure::Failed(last.trim().to_owned()))
}

fn read(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What was read before an error is still worth showing.
        let _ = pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn end(child: &mut Child) {
    // It may have ended meanwhile.
    let _ = child.kill();
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

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_child_that_hangs_is_killed_at_its_limit() {
        let wait_max = Duration::from_millis(200);
        let begun = std::time::Instant::now();
        assert_eq!(output_within(shell("exec sleep 60"), wait_max), Err(ProbeFailure::TimedOut(wait_max)));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_child_that_fails_is_quoted() {
        let failed =
            output_within(shell("echo first >&2; echo 'libtorch_cpu.so: not found' >&2; exit 127"), PYTHON_WAIT_MAX);
        assert_eq!(failed, Err(ProbeFailure::Failed("libtorch_cpu.so: not found".into())));
        assert_eq!(output_within(shell("echo fine"), PYTHON_WAIT_MAX), Ok("fine\n".into()));
    }

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
