//! What the launcher knows of its environment, read once at the start and passed on as a value.
//!
//! **Invariant:** the only place of the launcher that reads the environment.

use crate::{
    doctor::{
        DoctorInputs,
        findings::gpu_devices,
        variables::{OF_TORCHRUN, VARIABLES},
    },
    libtorch::{Installation, LibtorchFinder, NamedWorker, SearchPaths, python_of_environment},
};
use enn_common::{
    config,
    fs::{FileError, private},
};
use enn_process::{numa, run_dir::RUNS_DIR};
use nix::unistd::{AccessFlags, access};
use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fmt, fs,
    path::{Path, PathBuf},
};

/// Longest path of the directory of the broker's socket: the path of a Unix socket has at most 107 bytes, of which the
/// rest needs 33.
const SOCKET_PARENT_BYTES_MAX: usize = 70;

/// The variable that sets the number of threads of each worker.
pub const OMP_NUM_THREADS: &str = "OMP_NUM_THREADS";

/// Names of the Python interpreter on PATH, in the order in which they are tried.
pub const PYTHONS: [&str; 2] = ["python3", "python"];

/// The variable that ssh sets on the machine to which it connects.
const OF_SSH: &str = "SSH_CONNECTION";

/// Variables that set the flags of `--on-failure replace`, where the command line does not.
const OF_REPLACE: [&str; 4] = ["ENN_ON_FAILURE", "ENN_SPARES", "ENN_WARM_DEVICE", "ENN_WORKERS"];

/// Variables that torchrun's agent reads and `enn run` does not honour, each with the value that requests nothing.
const UNHONOURED: [(&str, &str); 4] = [
    ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0"),
    ("TORCHELASTIC_HEALTH_CHECK_PORT", ""),
    ("TORCH_ELASTIC_WORKER_IDENTICAL", "0"),
    ("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "0"),
];

#[derive(Debug, Clone)]
pub struct Facts {
    pub cwd: PathBuf,
    pub argv: Vec<String>,
    pub host: String,
    /// Cores this process may run on.
    pub cores: usize,
    /// GPUs this process may use.
    pub gpus: usize,
    /// Finds libtorch and the enn-worker for it, when they are first needed.
    pub libtorch: LibtorchFinder,
    pub library_path: Option<OsString>,
    pub omp_threads: Option<u32>,
    /// Whether `OMP_WAIT_POLICY` or `GOMP_SPINCOUNT` says how threads wait for each other.
    pub omp_waits: bool,
    pub socket_parent: PathBuf,
    pub log: Option<String>,
    /// `TERM` is `dumb` or not set: a terminal that only takes text.
    pub dumb_terminal: bool,
    /// Directory of runs: `ENN_RUNS`, else `runs` in the working directory.
    pub runs_dir: PathBuf,
    /// Directory of launches of `enn run`: `ENN_RUNS`, else `enn/runs` in the user's state directory.
    pub launches_dir: PathBuf,
    /// The user's directory for settings of enn.
    pub config_dir: PathBuf,
    /// The user's cache directory, which holds the environments of export's tools.
    pub cache_dir: PathBuf,
    /// `ENN_RUNTIMES`: where runtimes of exported models are looked for.
    pub runtimes: Vec<PathBuf>,
    pub temporary_dir: PathBuf,
    pub path: Option<OsString>,
    /// All variables that begin with `PET_`, which set torchrun's flags.
    pub pet: BTreeMap<String, String>,
    /// `PYTHON_EXEC`: the Python that runs scripts.
    pub python_exec: Option<OsString>,
    /// `VIRTUAL_ENV`, then `CONDA_PREFIX`: environments of Python that are active.
    pub environments: [Option<PathBuf>; 2],
    /// The Python of the virtual environment in which enn lies, where that has torch.
    pub own_python: Option<PathBuf>,
    /// Value of the variable `TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE`.
    pub log_prefix: Option<String>,
    /// Value of the variable `TORCH_ELASTIC_SHUTDOWN_TIMEOUT`.
    pub shutdown_timeout: Option<String>,
    pub nccl_async_error_handling: Option<String>,
    /// Value of the variable `CUDA_VISIBLE_DEVICES`.
    pub visible_devices: Option<String>,
    /// Value of the variable `HIP_VISIBLE_DEVICES`.
    pub hip_devices: Option<String>,
    /// Cores of this process's affinity mask: `cores`, but for a control group's share of their time.
    pub cores_allowed: usize,
    /// Number of Intel GPUs.
    pub xpus: usize,
    /// `TORCHELASTIC_ERROR_FILE`: the file into which this process, when it is a worker itself, writes its failure.
    pub error_file: Option<PathBuf>,
    /// `ENN_LAUNCH`: the launch that this process is a worker of.
    pub launch_mark: Option<OsString>,
    pub token: Option<Secret>,
    /// Folder of the state that ENN keeps between runs.
    pub state_dir: PathBuf,
    pub warm: Option<String>,
    /// Variables of `--on-failure replace` that are set.
    pub replace: BTreeMap<&'static str, String>,
    pub keep_days: Option<String>,
    pub keep_size: Option<String>,
    /// Variables of torchrun's agent that `enn run` does not honour and that are set.
    pub unhonoured: Vec<(&'static str, String)>,
    /// `TORCHELASTIC_ENABLE_FILE_TIMER` is 1: a worker whose timer expires is ended.
    pub file_timer: bool,
    /// `TORCHELASTIC_TIMER_FILE`: the pipe to which workers send their timers.
    pub timer_file: Option<PathBuf>,
    /// Variables of doctor's tables that are set.
    pub variables: Vec<(String, String)>,
    /// Every variable that Slurm set.
    pub slurm: BTreeMap<String, String>,
}

/// Bytes that are never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, which must not reach a log or a message.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

fn unhonoured(text: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
    UNHONOURED
        .into_iter()
        .filter_map(|(name, nothing)| Some((name, text(name).filter(|value| value != nothing)?)))
        .collect()
}

impl Facts {
    /// Returns whether this machine is probably reached over the network: by ssh, or as a node of Slurm.
    pub fn is_remote(&self) -> bool {
        !self.slurm.is_empty() || self.variables.iter().any(|(name, _)| name == OF_SSH)
    }

    /// Checks the directory that replaces the home directory of a user without one: every user may create a directory
    /// of its name there, and libraries are loaded from it.
    ///
    /// # Errors
    /// Other users may access the directory.
    pub fn check_private(&self) -> Result<(), FileError> {
        let instead = self.temporary_dir.join(format!("enn-{}", nix::unistd::geteuid()));
        let is_used = [&self.launches_dir, &self.cache_dir].iter().any(|dir| dir.starts_with(&instead));
        if is_used { private::own_dir(&instead) } else { Ok(()) }
    }

    /// Whether a variable of doctor's tables is set.
    pub fn is_set(&self, name: &str) -> bool {
        self.variables.iter().any(|(set, _)| set == name)
    }

    /// Returns the Python that `enn run` starts scripts with: PYTHON_EXEC, else that of the environment of enn where none is active, else
    /// python3 or python on PATH.
    pub fn script_python(&self) -> Option<OsString> {
        if let Some(given) = &self.python_exec {
            return self.executable(given);
        }
        let [venv, _] = &self.environments;
        let own = self.own_python.as_ref().filter(|_| venv.is_none()).map(|python| python.clone().into_os_string());
        own.or_else(|| PYTHONS.into_iter().find_map(|name| self.executable(OsStr::new(name))))
    }

    /// Finds an executable file, on PATH when its name has no slash.
    pub fn executable(&self, name: &OsStr) -> Option<OsString> {
        let executable = |path: &Path| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
        if name.as_encoded_bytes().contains(&b'/') {
            return executable(&self.cwd.join(name)).then(|| name.to_owned());
        }
        let folders = env::split_paths(self.path.as_deref().unwrap_or_default());
        let mut paths = folders.map(|folder| self.cwd.join(folder).join(name));
        paths.find(|path| executable(path)).map(PathBuf::into_os_string)
    }

    /// Reads the environment. No process is started.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub fn gather() -> Self {
        let text = |name: &str| variable(name).and_then(|value| value.into_string().ok());
        let exe = env::current_exe().ok();
        let visible_devices = env::var("CUDA_VISIBLE_DEVICES").ok();
        let gpus = visible(visible_devices.as_deref(), gpu_devices(Path::new("/dev")));
        let path = variable("PATH");
        let python_exec = variable("PYTHON_EXEC");
        let cwd = env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].map(|name| variable(name).map(PathBuf::from));
        let own_python = exe.as_deref().and_then(python_of_environment);
        let places = PythonPlaces {
            given: python_exec.as_deref(),
            environments: &environments,
            own: own_python.as_deref(),
            path: path.as_deref(),
            cwd: &cwd,
        };
        let active = pythons(&places).into_iter().next();
        let libtorch = finder(active.unwrap_or_else(|| PathBuf::from("python3")), exe.as_deref(), gpus > 0);
        let state_dir = home("XDG_STATE_HOME", ".local/state");
        Self {
            cwd,
            argv: env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect(),
            host: nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            gpus,
            libtorch,
            library_path: variable("LD_LIBRARY_PATH"),
            omp_waits: variable("OMP_WAIT_POLICY").or_else(|| variable("GOMP_SPINCOUNT")).is_some(),
            omp_threads: text(OMP_NUM_THREADS).and_then(|text| text.parse().ok()).filter(|threads| *threads > 0),
            socket_parent: socket_parent(),
            log: text("ENN_LOG"),
            dumb_terminal: text("TERM").is_none_or(|name| name == "dumb"),
            runs_dir: variable("ENN_RUNS").map_or_else(|| RUNS_DIR.into(), PathBuf::from),
            launches_dir: variable("ENN_RUNS").map_or_else(|| state_dir.join("runs"), PathBuf::from),
            state_dir,
            config_dir: home("XDG_CONFIG_HOME", ".config"),
            cache_dir: home("XDG_CACHE_HOME", ".cache"),
            runtimes: variable("ENN_RUNTIMES").map(|paths| env::split_paths(&paths).collect()).unwrap_or_default(),
            temporary_dir: env::temp_dir(),
            path,
            pet: env::vars_os().filter_map(|(name, value)| pet(name, value)).collect(),
            python_exec,
            environments,
            own_python,
            log_prefix: text("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
            shutdown_timeout: text("TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
            nccl_async_error_handling: text("TORCH_NCCL_ASYNC_ERROR_HANDLING"),
            visible_devices,
            hip_devices: text("HIP_VISIBLE_DEVICES"),
            cores_allowed: cores_allowed(),
            xpus: xpus(Path::new("/sys/class/drm")),
            error_file: variable("TORCHELASTIC_ERROR_FILE").map(PathBuf::from),
            launch_mark: variable("ENN_LAUNCH"),
            token: variable("ENN_TOKEN").map(|secret| Secret::new(secret.into_encoded_bytes())),
            warm: text("ENN_WARM"),
            replace: OF_REPLACE.into_iter().filter_map(|name| Some((name, text(name)?))).collect(),
            keep_days: text("ENN_KEEP_DAYS"),
            keep_size: text("ENN_KEEP_SIZE"),
            unhonoured: unhonoured(text),
            file_timer: text("TORCHELASTIC_ENABLE_FILE_TIMER").as_deref() == Some("1"),
            timer_file: variable("TORCHELASTIC_TIMER_FILE").map(PathBuf::from),
            variables: VARIABLES
                .iter()
                .chain(OF_TORCHRUN)
                .filter_map(|one| Some((one.name.to_owned(), shown(one.name, text(one.name)?))))
                .collect(),
            slurm: slurm(env::vars_os()),
        }
    }

    pub fn program(&self, name: &str) -> Option<PathBuf> {
        program(name, self.path.as_deref())
    }

    /// Returns the active Python, the first of [`Facts::pythons`], for tools that have no environment of their own.
    pub fn python(&self) -> PathBuf {
        self.pythons().into_iter().next().unwrap_or_else(|| PathBuf::from("python3"))
    }

    /// Returns the active Pythons in the order in which they are tried: that of VIRTUAL_ENV, that of the environment in
    /// which enn lies, python3 or python on PATH, that of CONDA_PREFIX. Where PYTHON_EXEC names one, only that one.
    pub fn pythons(&self) -> Vec<PathBuf> {
        pythons(&PythonPlaces {
            given: self.python_exec.as_deref(),
            environments: &self.environments,
            own: self.own_python.as_deref(),
            path: self.path.as_deref(),
            cwd: &self.cwd,
        })
    }

    /// Returns the warning for a number of workers that need more cores than this process has; `None` when they fit.
    pub fn oversubscription(&self, workers: u32) -> Option<String> {
        let threads = self.omp_threads.unwrap_or(1);
        let cores = self.cores;
        let busy = u64::from(workers) * u64::from(threads);
        if busy <= cores as u64 || workers <= 1 {
            return None;
        }
        let of_threads =
            if threads > 1 { format!(" of {threads} threads each (OMP_NUM_THREADS)") } else { String::new() };
        let cores = if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
        Some(format!(
            "{workers} workers{of_threads} share {cores}: they take turns, and each is slower\nhint: --nproc-per-node {} has a \
             core for each thread",
            (self.cores / threads as usize).max(1)
        ))
    }

    /// Returns the facts with which a configuration is resolved.
    pub fn for_config(&self) -> config::Facts {
        // Without a GPU the answer is not needed, and Python is not asked for it.
        let cuda_worker = self.gpus > 0 && self.libtorch.uses_cuda();
        config::Facts { cores: self.cores, gpus: self.gpus, cuda_worker, cwd: self.cwd.clone() }
    }
}

impl From<&Facts> for DoctorInputs {
    fn from(facts: &Facts) -> Self {
        Self {
            worker: facts.libtorch.worker().map(Path::to_owned).map_err(ToString::to_string),
            installation: facts.libtorch.installation().clone(),
            libtorch: facts.libtorch.find().cloned().map_err(ToString::to_string),
            library_path: facts.libtorch.find().ok().map(|found| found.path(facts.library_path.as_deref())),
            cores: facts.cores,
            gpus: facts.gpus,
            python: facts.script_python().map(PathBuf::from),
            temporary_dir: facts.temporary_dir.clone(),
            cwd: facts.cwd.clone(),
            has_slurm: facts.program("sbatch").is_some(),
            exports: Vec::new(),
            variables: facts.variables.clone(),
        }
    }
}

/// Makes a path absolute, so that workers in another working directory read it alike.
fn absolute(path: &OsStr) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path))
}

fn program(name: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    env::split_paths(path?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// The value of an environment variable; an empty one counts as unset.
#[expect(clippy::disallowed_methods, reason = "of the one place that reads the environment")]
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns ENN's own directory below the one that a variable names, else below the user's home.
fn home(name: &str, below: &str) -> PathBuf {
    let absolute = |path: &PathBuf| path.is_absolute();
    let given = variable(name).map(PathBuf::from).filter(absolute);
    // Without a home the temporary directory has room for one of each user.
    let base = given.or_else(|| Some(PathBuf::from(variable("HOME")?).join(below)).filter(absolute));
    base.map_or_else(|| env::temp_dir().join(format!("enn-{}", nix::unistd::geteuid())), |base| base.join("enn"))
}

/// Makes the finder with the places in which libtorch and enn-worker are searched.
fn finder(python: PathBuf, exe: Option<&Path>, gpus: bool) -> LibtorchFinder {
    let worker = variable("ENN_WORKER").map(PathBuf::from).or_else(|| {
        let beside = exe?.parent()?.join("enn-worker");
        beside.is_file().then_some(beside)
    });
    LibtorchFinder::new(SearchPaths {
        worker: worker.map(NamedWorker::new),
        gpus,
        installation: Installation::of(exe, &python),
        given: variable("ENN_LIBTORCH").map(|given| absolute(&given)),
        python,
        built: variable("LIBTORCH").map(|built| absolute(&built)),
        exe: exe.map(|exe| exe.canonicalize().unwrap_or_else(|_| exe.to_owned())),
        library_path: variable("LD_LIBRARY_PATH"),
    })
}

/// Places in which the user's Pythons are searched; see [`Facts::pythons`].
struct PythonPlaces<'a> {
    given: Option<&'a OsStr>,
    environments: &'a [Option<PathBuf>; 2],
    own: Option<&'a Path>,
    path: Option<&'a OsStr>,
    cwd: &'a Path,
}

fn pythons(places: &PythonPlaces<'_>) -> Vec<PathBuf> {
    let path = places.path;
    if let Some(given) = places.given {
        let on_path = given.to_str().filter(|name| !name.contains('/')).and_then(|name| program(name, path));
        return vec![on_path.unwrap_or_else(|| PathBuf::from(given))];
    }
    let of = |dir: &Option<PathBuf>| {
        let dir = places.cwd.join(dir.as_ref()?);
        ["bin/python3", "bin/python"].map(|name| dir.join(name)).into_iter().find(|path| path.is_file())
    };
    let on_path = PYTHONS.into_iter().find_map(|name| program(name, path));
    let mut found: Vec<PathBuf> = Vec::new();
    let [venv, conda] = places.environments;
    for python in [of(venv), places.own.map(Path::to_owned), on_path, of(conda)].into_iter().flatten() {
        if !found.contains(&python) {
            found.push(python);
        }
    }
    found
}

/// Returns the variable when it is one of torchrun's and its value is text.
fn pet(name: OsString, value: OsString) -> Option<(String, String)> {
    let name = name.into_string().ok().filter(|name| name.starts_with("PET_"))?;
    Some((name, value.into_string().ok()?))
}

/// Returns the value of a variable as it may be shown: secrets are hidden.
fn shown(name: &str, value: String) -> String {
    if name == "ENN_TOKEN" { "(set, not shown)".to_owned() } else { value }
}

/// Counts the cores of the affinity mask, as newer releases of torchrun do for `--nproc-per-node cpu`: those that
/// taskset, Slurm or a container leaves to this process.
fn cores_allowed() -> usize {
    numa::allowed_cpus().map_or(0, |cpus| cpus.len()).max(1)
}

/// Counts the render nodes of Intel devices.
fn xpus(drm: &Path) -> usize {
    let entries = fs::read_dir(drm).into_iter().flatten().flatten();
    let nodes = entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("renderD")));
    let intel = |path: PathBuf| fs::read_to_string(path).is_ok_and(|vendor| vendor.trim() == "0x8086");
    nodes.filter(|entry| intel(entry.path().join("device/vendor"))).count()
}

/// Returns how many of `devices` CUDA will show: it stops at the first entry of the list that is no device, and an empty list is none.
fn visible(list: Option<&str>, devices: usize) -> usize {
    let Some(list) = list.filter(|_| devices > 0) else { return devices };
    let entries = list.split(',').map(str::trim);
    let valid = |entry: &&str| {
        entry.starts_with("GPU-")
            || entry.starts_with("MIG-")
            || entry.parse().is_ok_and(|index: usize| index < devices)
    };
    entries.take_while(valid).count()
}

/// Returns Slurm's variables. Values that are not text are left out.
fn slurm(all: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    let texts = all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    texts.filter(|(name, _)| name.starts_with("SLURM")).collect()
}

/// Returns the user's runtime directory, else the temporary directory, else /tmp.
fn socket_parent() -> PathBuf {
    let runtime = format!("/run/user/{}", nix::unistd::geteuid());
    let runtime = variable("XDG_RUNTIME_DIR").unwrap_or_else(|| runtime.into()).into();
    let usable =
        |path: &PathBuf| path.is_absolute() && path.is_dir() && path.as_os_str().len() <= SOCKET_PARENT_BYTES_MAX;
    let candidates = [runtime, env::temp_dir()];
    candidates.into_iter().filter(usable).find(writable).unwrap_or_else(|| PathBuf::from("/tmp"))
}

fn writable(path: &PathBuf) -> bool {
    access(path, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_python_of_a_user_is_that_of_the_environment_before_that_on_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let python = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        };
        let venv = python("venv/bin/python3");
        let path = python("usr/python3");
        let conda = python("conda/bin/python");
        let environments = [Some(dir.path().join("venv")), Some(dir.path().join("conda"))];
        let on_path = Some(dir.path().join("usr").into_os_string());
        let facts = Facts { environments, path: on_path, python_exec: None, ..Facts::gather() };
        assert_eq!(facts.pythons(), [venv.clone(), path.clone(), conda]);
        assert_eq!(facts.python(), venv);
        let own = python("own/bin/python3");
        let facts = Facts { own_python: Some(own.clone()), ..facts };
        assert_eq!(facts.pythons()[..2], [venv, own.clone()]);
        let facts = Facts { environments: [None, None], ..facts };
        assert_eq!(facts.pythons(), [own.clone(), path.clone()]);
        assert_eq!(facts.script_python(), Some(own.into_os_string()), "no environment is active but that of enn");
        let facts = Facts { environments: [Some("absent".into()), None], own_python: None, ..facts };
        assert_eq!(facts.pythons(), std::slice::from_ref(&path));
        let facts = Facts { python_exec: Some("/else/python".into()), ..facts };
        assert_eq!(facts.pythons(), [PathBuf::from("/else/python")], "what is named is the one");
        let facts = Facts { python_exec: Some("python3".into()), ..facts };
        assert_eq!(facts.pythons(), [path]);
    }

    #[test]
    fn visible_devices_as_cuda_counts_them() {
        assert_eq!(visible(None, 4), 4);
        assert_eq!(visible(Some("0,2"), 4), 2);
        assert_eq!(visible(Some("0,-1,2"), 4), 1);
        assert_eq!(visible(Some(""), 4), 0);
        assert_eq!(visible(Some("7"), 4), 0);
        assert_eq!(visible(Some("GPU-1f,GPU-2f"), 4), 2);
    }

    #[test]
    fn slurms_variables_are_kept_together() {
        let all = [("SLURM_JOB_ID", "7"), ("SLURMD_NODENAME", "n1"), ("PATH", "/bin"), ("MY_SLURM_JOB", "x")];
        let all = all.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        assert_eq!(slurm(all).into_keys().collect::<Vec<_>>(), ["SLURMD_NODENAME", "SLURM_JOB_ID"]);
    }
}
