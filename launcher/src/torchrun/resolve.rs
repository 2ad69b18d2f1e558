//! From flags to what the group of this node is asked to do.

use super::{
    Flags, Own, RunError,
    elsewhere::DEFAULT_LOGS,
    places,
    preload::{self, Choice},
    program, token,
    values::{self, Expected},
};
use crate::{
    doctor::variables::OF_TORCHRUN,
    facts::{Facts, OMP_NUM_THREADS},
    group::GroupSpec,
    libtorch,
    logs::{LogPlan, StdByRank},
    numa::{self, Mode},
    rendezvous::Settings,
    retention::Retention,
};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    hash::{BuildHasher, Hasher, RandomState},
    path::{Path, PathBuf},
    time::Duration,
};

/// Time between TERM and KILL: torchrun's own.
const GRACE: Duration = Duration::from_secs(30);
/// The variable that gives another.
const SHUTDOWN_TIMEOUT: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
/// Signals that stop a run.
const SIGNALS: &str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
/// How torchrun starts functions; programs are always started in the same way.
const START_METHODS: [&str; 3] = ["spawn", "fork", "forkserver"];

/// Whose command line it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// `enn run`.
    Enn,
    /// `enn-torchrun`: what torchrun does where the two differ.
    Torchrun,
}

/// A launch that is ready to begin, but for its directories.
#[derive(Debug, Clone)]
pub struct Launch {
    /// What the group does. `run_dir` and `logs.dir` are empty until the directories are made.
    pub spec: GroupSpec,
    /// Name for people: the script's without folder and extension.
    pub name: String,
    /// `--log-dir`, absolute; `None`: in the run's directory.
    pub log_dir: Option<PathBuf>,
    /// How long, and how much of, runs are kept.
    pub retention: Retention,
    /// One line each for the user: what is accepted and has no effect, what was set for him.
    pub notes: Vec<String>,
    /// The next launch of this program would gain by a warm server, and this one has none.
    pub could_be_warm: bool,
}

/// Reads every flag.
///
/// # Errors
/// The first that cannot be read, or a program that is not there.
pub fn resolve(flags: Flags, own: &Own, manner: Manner, facts: &Facts) -> Result<Launch, RunError> {
    let flags = flags.with_variables(&facts.pet)?;
    let mut notes = flags.notes.clone();
    notes.extend(idle(&flags)?);
    let workers = workers(&flags, facts)?;
    let rendezvous = rendezvous(&flags, own, manner, (workers, facts), &mut notes)?;
    let (signals, odd) = values::signals(flags.running.signals_to_handle.as_deref().unwrap_or(SIGNALS));
    if !odd.is_empty() {
        notes.push(format!("{}: {} cannot be handled", flags.place("--signals-to-handle"), odd.join(", ")));
    }
    notes.extend(facts.crowd(workers));
    let mut variables = BTreeMap::new();
    if workers > 1 && !facts.is_set(OMP_NUM_THREADS) {
        variables.insert(OMP_NUM_THREADS.to_owned(), OsString::from("1"));
        notes.push(format!(
            "OMP_NUM_THREADS is 1 for each of the {workers} workers, as it was not set; more may be faster"
        ));
    }
    let timer_file = facts.file_timer.then(|| timer_file(facts));
    if let Some(file) = &timer_file {
        variables.insert("TORCHELASTIC_TIMER_FILE".to_owned(), file.clone().into_os_string());
    }
    notes.extend(facts.unhonoured.iter().filter_map(|(name, value)| unhonoured(name, value)));
    let (command, name) = program::command(&flags, &flags.command, facts)?;
    variables.extend(libraries(&command.program, facts, &mut notes).map(|path| ("LD_LIBRARY_PATH".to_owned(), path)));
    let Choice { preload, could_be_warm } = preload::preload(own, &flags, &rendezvous, manner, facts, &mut notes)?;
    let spec = GroupSpec {
        command,
        preload,
        rendezvous,
        run_dir: PathBuf::new(),
        logs: logs(&flags, own, facts)?,
        variables,
        nccl_async_error_handling: facts.nccl_async_error_handling.clone(),
        virtual_local_rank: flags.running.virtual_local_rank,
        visible_devices: facts.hip_devices.as_deref().or(facts.visible_devices.as_deref()).map(devices),
        hip_devices: facts.hip_devices.is_some(),
        cpus: cpus(&flags, workers, facts)?,
        inherited_mark: facts.launch_mark.clone(),
        timer_file,
        signals,
        grace: grace(&flags, own, facts)?,
        propagate_exit: own.propagate_exit,
        leave_background: own.leave_background,
    };
    // torchrun takes /dev/null for "no logs".
    let log_dir = flags.output.log_dir.as_deref().filter(|dir| *dir != "/dev/null").map(|dir| facts.cwd.join(dir));
    Ok(Launch { spec, name, log_dir, retention: own.retention(facts)?, notes, could_be_warm })
}

/// The libraries of a program that is linked to libtorch and would not find it: as `enn train` finds them for its workers.
fn libraries(program: &OsStr, facts: &Facts, notes: &mut Vec<String>) -> Option<OsString> {
    let on_path = program.to_str().filter(|name| !name.contains('/')).and_then(|name| facts.program(name));
    let program = on_path.unwrap_or_else(|| facts.cwd.join(program));
    if !libtorch::needs_libtorch(&program, facts.library_path.as_deref()) {
        return None;
    }
    match facts.libtorch.find() {
        Ok(found) => {
            notes.extend(found.note.clone());
            Some(found.path(facts.library_path.as_deref()))
        }
        Err(why) => {
            notes.push(format!("{} needs libtorch: {why}", program.display()));
            None
        }
    }
}

impl Flags {
    /// A value or its default. Torchrun ends with 1 when it cannot be read.
    pub(super) fn read<T>(
        &self,
        flag: &'static str,
        text: Option<&str>,
        default: T,
        read: impl Fn(&str) -> Result<T, Expected>,
    ) -> Result<T, RunError> {
        text.map_or(Ok(default), |text| read(text).map_err(|expected| self.wrong(flag, text, expected)))
    }

    /// The same for what torchrun's parser reads already.
    pub(super) fn parsed<T>(
        &self,
        flag: &'static str,
        text: Option<&str>,
        default: T,
        read: impl Fn(&str) -> Result<T, Expected>,
    ) -> Result<T, RunError> {
        self.read(flag, text, default, read).map_err(|error| match error {
            RunError::Value { place, found, expected, hint, .. } => {
                RunError::Value { place, found, expected, hint, parser: true }
            }
            error => error,
        })
    }

    pub(super) fn wrong(&self, flag: &'static str, found: &str, expected: Expected) -> RunError {
        let Expected { what, hint } = expected;
        RunError::Value { place: self.place(flag), found: found.to_owned(), expected: what, hint, parser: false }
    }

    /// Whether any flag or variable says how the nodes meet; in a Slurm allocation the allocation says it otherwise.
    pub fn says_where(&self) -> bool {
        let meeting = &self.meeting;
        let texts = [
            &meeting.nnodes,
            &meeting.node_rank,
            &meeting.master_addr,
            &meeting.master_port,
            &meeting.rdzv_backend,
            &meeting.rdzv_endpoint,
        ];
        meeting.standalone || texts.iter().any(|text| text.is_some())
    }
}

/// Checks what has no effect, and says so where somebody could have wanted one.
fn idle(flags: &Flags) -> Result<Vec<String>, RunError> {
    let running = &flags.running;
    let number =
        |text: &str| text.trim().parse::<f64>().map_err(|_| Expected { what: "seconds", hint: "leave it out" });
    flags.parsed("--monitor-interval", running.monitor_interval.as_deref(), 0.0, number)?;
    let method = |text: &str| {
        let expected =
            Expected { what: "spawn, fork or forkserver", hint: "leave it out: it has no effect on programs" };
        START_METHODS.contains(&text).then_some(()).ok_or(expected)
    };
    flags.parsed("--start-method", running.start_method.as_deref(), (), method)?;
    if let Some(name) = running.logs_specs.as_ref().filter(|name| *name != DEFAULT_LOGS) {
        let expected = Expected {
            what: "nothing: entry points are Python and cannot be loaded here",
            hint: "--redirects, --tee, --log-dir and the filters say where output goes",
        };
        return Err(flags.wrong("--logs-specs", name, expected));
    }
    let mut notes = Vec::new();
    if let Some(name) = running.event_log_handler.as_deref().filter(|name| *name != "null") {
        let place = flags.place("--event-log-handler");
        notes.push(format!("{place} {name} has no effect; events are in the run's events.jsonl"));
    }
    Ok(notes)
}

/// Time between TERM and KILL: what is typed wins over variables.
fn grace(flags: &Flags, own: &Own, facts: &Facts) -> Result<Duration, RunError> {
    let given = flags.running.shutdown_timeout.as_deref();
    let typed = flags.typed("--shutdown-timeout", given);
    if typed && own.grace.is_some() {
        let hint = "they are the same time; --grace takes parts of a second";
        return Err(RunError::Together { first: "--grace", second: "--shutdown-timeout", hint });
    }
    let own = own_seconds("--grace", own.grace.as_deref())?;
    let whole = |text: &str| values::count(text).map(|seconds| Duration::from_secs(seconds.into()));
    let flag = given.map(|text| flags.parsed("--shutdown-timeout", Some(text), GRACE, whole)).transpose()?;
    if let Some(grace) = own.or(flag) {
        return Ok(grace);
    }
    let Some(text) = facts.shutdown_timeout.as_deref() else { return Ok(GRACE) };
    whole(text).map_err(|Expected { what, hint }| RunError::Value {
        place: SHUTDOWN_TIMEOUT.to_owned(),
        found: text.to_owned(),
        expected: what,
        hint,
        parser: false,
    })
}

/// Where the workers set their timers.
fn timer_file(facts: &Facts) -> PathBuf {
    let given = facts.timer_file.as_ref().map(|file| facts.cwd.join(file));
    given.unwrap_or_else(|| facts.temporary_dir.join(format!("watchdog_timer_{}", random_name())))
}

/// What is said of a variable of torchrun's agent that has no effect here.
fn unhonoured(name: &str, value: &str) -> Option<String> {
    let variable = OF_TORCHRUN.iter().find(|variable| variable.name == name)?;
    Some(format!("{name}={value} is {}", variable.effect))
}

/// CPUs of each worker; none are bound without `--numa-binding`.
fn cpus(flags: &Flags, workers: u32, facts: &Facts) -> Result<Vec<Vec<usize>>, RunError> {
    let mode = |text: &str| {
        let expected =
            Expected { what: "node, socket, exclusive or core-complex", hint: "node is right when in doubt" };
        text.parse::<Mode>().map(Some).map_err(|_| expected)
    };
    let mode = flags.parsed("--numa-binding", flags.running.numa_binding.as_deref(), None, mode)?;
    let Some(mode) = mode else { return Ok(Vec::new()) };
    let root = Path::new("/");
    let topology = numa::read_topology(root, &numa::allowed_cpus()?)?;
    let visible = facts.visible_devices.as_deref().map(devices);
    let gpus = if facts.gpus > 0 { Some(numa::read_gpus(root, visible.as_deref())?) } else { None };
    Ok(numa::bind(mode, workers as usize, gpus.as_deref(), &topology)?)
}

/// The names in `CUDA_VISIBLE_DEVICES`.
fn devices(list: &str) -> Vec<String> {
    list.split(',').map(|name| name.trim().to_owned()).collect()
}

/// Workers of this node.
fn workers(flags: &Flags, facts: &Facts) -> Result<u32, RunError> {
    let text = flags.meeting.nproc_per_node.as_deref().unwrap_or("1");
    let place = || flags.place("--nproc-per-node");
    let found = match text.trim() {
        "gpu" if facts.gpus == 0 => {
            let hint = "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --nproc-per-node cpu";
            return Err(RunError::NoDevices { place: place(), found: "gpu", device: "GPU", hint });
        }
        "xpu" if facts.xpus == 0 => {
            let hint = "check /dev/dri and the driver, or use --nproc-per-node cpu";
            return Err(RunError::NoDevices { place: place(), found: "xpu", device: "XPU", hint });
        }
        "gpu" => facts.gpus.try_into().ok(),
        "xpu" => facts.xpus.try_into().ok(),
        "cpu" => facts.cores_allowed.try_into().ok(),
        "auto" => {
            [facts.gpus, facts.xpus, facts.cores_allowed].into_iter().find(|n| *n > 0).and_then(|n| n.try_into().ok())
        }
        number => number.parse().ok(),
    };
    found.filter(|workers| *workers > 0).ok_or_else(|| {
        let expected = Expected { what: "a number above zero, auto, gpu, cpu or xpu", hint: "--nproc-per-node 2" };
        flags.wrong("--nproc-per-node", text, expected)
    })
}

/// How the nodes meet, for `local_world` workers of this one. What is worth saying goes to `notes`.
///
/// # Errors
/// The first flag that cannot be read, or a token that is not to be had.
pub fn rendezvous(
    flags: &Flags,
    own: &Own,
    manner: Manner,
    (local_world, facts): (u32, &Facts),
    notes: &mut Vec<String>,
) -> Result<Settings, RunError> {
    let meeting = places::meeting(flags, random_name)?;
    notes.extend(meeting.notes);
    let (nodes_min, nodes_max) = meeting.nodes;
    let restarts_max = flags.parsed("--max-restarts", flags.running.max_restarts.as_deref(), 0, values::count)?;
    Ok(Settings {
        run_id: meeting.run_id,
        nodes_min,
        nodes_max,
        place: meeting.place,
        node_rank: meeting.node_rank,
        local_world,
        role: flags.running.role.clone().unwrap_or_else(|| "default".to_owned()),
        local_addr: flags.meeting.local_addr.clone(),
        host: facts.host.clone(),
        restarts_max,
        restart_window: own_seconds("--restart-window", own.restart_window.as_deref())?,
        backoff: own_seconds("--backoff", own.backoff.as_deref())?.unwrap_or_default(),
        retry_early: own.retry_early || manner == Manner::Torchrun,
        join_timeout: meeting.join_timeout,
        last_call: meeting.last_call,
        silence_max: meeting.silence_max,
        hang_timeout: own_seconds("--hang-timeout", own.hang_timeout.as_deref())?.filter(|time| !time.is_zero()),
        token: if nodes_max > 1 { Some(token::token(own.token_file.as_deref(), facts)?) } else { None },
        uneven: own.uneven || manner == Manner::Torchrun,
        store_open: own.store_open,
        store_kept: false,
    })
}

fn logs(flags: &Flags, own: &Own, facts: &Facts) -> Result<LogPlan, RunError> {
    let output = &flags.output;
    let none = StdByRank::default;
    let filter = output.local_ranks_filter.as_deref().filter(|text| !text.is_empty());
    Ok(LogPlan {
        dir: PathBuf::new(),
        redirects: flags.read("--redirects", output.redirects.as_deref(), none(), values::streams)?,
        tee: flags.read("--tee", output.tee.as_deref(), none(), values::streams)?,
        local_ranks_filter: flags.read("--local-ranks-filter", filter, None, |text| values::ranks(text).map(Some))?,
        stdout_filters: output.duplicate_stdout_filters.as_deref().map(values::list).unwrap_or_default(),
        stderr_filters: output.duplicate_stderr_filters.as_deref().map(values::list).unwrap_or_default(),
        // An empty one is none, as in torchrun.
        prefix: output
            .log_line_prefix_template
            .clone()
            .filter(|it| !it.is_empty())
            .or_else(|| facts.log_prefix.clone()),
        // What is left behind must not write into a pipe that ends with the launcher.
        keep: !own.no_capture && !own.leave_background && output.log_dir.as_deref() != Some("/dev/null"),
        kept_bytes_max: own.retention(facts)?.bytes_max,
    })
}

/// Seconds of a flag of ours.
fn own_seconds(flag: &'static str, text: Option<&str>) -> Result<Option<Duration>, RunError> {
    let wrong = |text: &str, Expected { what, hint }: Expected| RunError::Value {
        place: flag.to_owned(),
        found: text.to_owned(),
        expected: what,
        hint,
        parser: true,
    };
    text.map(|text| values::seconds(text).map_err(|expected| wrong(text, expected))).transpose()
}

/// A name that no other run has, by the operating system's randomness.
fn random_name() -> String {
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}
