//! The translation of flags into a group's specification.

use super::{
    Dialect, EnnFlags, Flags, RunError,
    preload::{self, PreloadChoice},
    program, rendezvous_flags, replace, token,
    torch_plug_in::DEFAULT_LOGS,
    values::{self, Expected},
};
use crate::{
    doctor::variables::OF_TORCHRUN,
    facts::{Facts, OMP_NUM_THREADS},
    libtorch,
    retention::Retention,
};
use enn_cluster::{
    rendezvous::Settings,
    supervise::{GroupLimits, GroupSpec},
};
use enn_process::{
    logs::{LogPlan, StdByRank},
    numa::{self, Mode},
};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    hash::{BuildHasher, Hasher, RandomState},
    path::{Path, PathBuf},
    time::Duration,
};

/// Time between TERM and KILL, as in torchrun.
const GRACE: Duration = Duration::from_secs(30);
/// Variable that overrides [`GRACE`].
const SHUTDOWN_TIMEOUT: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
/// Default of `--signals-to-handle`.
const SIGNALS: &str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
/// torchrun's methods of starting functions; programs are always started in the same way.
const START_METHODS: [&str; 3] = ["spawn", "fork", "forkserver"];

/// A launch that is ready to begin, except for its directories.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Specification of the group. `run_dir` and `logs.dir` are empty until the directories are made.
    pub spec: GroupSpec,
    /// Name for people: the script's without folder and extension.
    pub name: String,
    /// `--log-dir`, absolute; `None`: in the run's directory.
    pub log_dir: Option<PathBuf>,
    /// Limits on the kept runs.
    pub retention: Retention,
    /// Notes for the user about flags without effect and values set automatically, one line each.
    pub notes: Vec<String>,
    /// Whether the next launch of this program would gain by a warm server, which this one lacks.
    pub could_be_warm: bool,
}

/// Parses every flag.
///
/// # Errors
/// The first value that cannot be parsed, or a program that does not exist.
pub fn resolve(flags: Flags, own: &EnnFlags, dialect: Dialect, facts: &Facts) -> Result<Launch, RunError> {
    let flags = flags.with_variables(&facts.pet)?;
    let own = &own.clone().with_variables(&flags, facts)?;
    let mut notes = flags.notes.clone();
    notes.extend(idle(&flags)?);
    let workers = match replace::workers_range(own, &flags)? {
        Some((_, most)) => most,
        None => workers(&flags, facts)?,
    };
    let replace = replace::replace(own, &flags, workers, facts)?;
    let rendezvous = rendezvous(&flags, own, dialect, workers, facts, &mut notes)?;
    let (signals, odd) = values::signals(flags.program.signals_to_handle.as_deref().unwrap_or(SIGNALS));
    if !odd.is_empty() {
        notes.push(format!("{}: {} cannot be handled", flags.place("--signals-to-handle"), odd.join(", ")));
    }
    notes.extend(facts.oversubscription(workers));
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
    let PreloadChoice { preload, could_be_warm } =
        preload::preload(own, &flags, &rendezvous, dialect, facts, &mut notes)?;
    let spec = GroupSpec {
        command,
        preload,
        rendezvous,
        run_dir: PathBuf::new(),
        logs: logs(&flags, own, facts)?,
        variables,
        nccl_async_error_handling: facts.nccl_async_error_handling.clone(),
        virtual_local_rank: flags.program.virtual_local_rank,
        visible_devices: facts.hip_devices.as_deref().or(facts.visible_devices.as_deref()).map(devices),
        hip_devices: facts.hip_devices.is_some(),
        cpus: cpus(&flags, workers, facts)?,
        inherited_mark: facts.launch_mark.clone(),
        timer_file,
        signals,
        limits: GroupLimits {
            window: own_seconds("--restart-window", own.restart_window.as_deref())?,
            backoff: own_seconds("--backoff", own.backoff.as_deref())?.unwrap_or_default(),
            retry_early: own.retry_early || dialect == Dialect::Torchrun,
        },
        grace: grace(&flags, own, facts)?,
        replace,
        propagate_exit: own.propagate_exit,
        leave_background: own.leave_background,
    };
    // As in torchrun, /dev/null means no logs.
    let log_dir = flags.output.log_dir.as_deref().filter(|dir| *dir != "/dev/null").map(|dir| facts.cwd.join(dir));
    Ok(Launch { spec, name, log_dir, retention: own.retention(facts)?, notes, could_be_warm })
}

/// Returns the library path for a program that is linked to libtorch and would not find it, found as for workers of `enn train`.
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
    /// Returns the parsed value or the default. torchrun ends with 1 when it cannot be parsed.
    pub(super) fn read<T>(
        &self,
        flag: &'static str,
        text: Option<&str>,
        default: T,
        read: impl Fn(&str) -> Result<T, Expected>,
    ) -> Result<T, RunError> {
        text.map_or(Ok(default), |text| read(text).map_err(|expected| self.wrong(flag, text, expected)))
    }

    /// Does the same for values that torchrun's parser checks, so that it ends with 2.
    pub(super) fn parsed<T>(
        &self,
        flag: &'static str,
        text: Option<&str>,
        default: T,
        read: impl Fn(&str) -> Result<T, Expected>,
    ) -> Result<T, RunError> {
        let wrong = |text: &str, expected: Expected| expected.error(self.place(flag), text, true);
        text.map_or(Ok(default), |text| read(text).map_err(|expected| wrong(text, expected)))
    }

    pub(super) fn wrong(&self, flag: &'static str, found: &str, expected: Expected) -> RunError {
        expected.error(self.place(flag), found, false)
    }
}

/// Checks flags without effect, and returns notes where the user could have expected one.
fn idle(flags: &Flags) -> Result<Vec<String>, RunError> {
    let program = &flags.program;
    let number =
        |text: &str| text.trim().parse::<f64>().map_err(|_| Expected { what: "seconds", hint: "leave it out" });
    flags.parsed("--monitor-interval", program.monitor_interval.as_deref(), 0.0, number)?;
    let method = |text: &str| {
        let expected =
            Expected { what: "spawn, fork or forkserver", hint: "leave it out: it has no effect on programs" };
        START_METHODS.contains(&text).then_some(()).ok_or(expected)
    };
    flags.parsed("--start-method", program.start_method.as_deref(), (), method)?;
    if let Some(name) = program.logs_specs.as_ref().filter(|name| *name != DEFAULT_LOGS) {
        let expected = Expected {
            what: "nothing: entry points are Python and cannot be loaded here",
            hint: "--redirects, --tee, --log-dir and the filters say where output goes",
        };
        return Err(flags.wrong("--logs-specs", name, expected));
    }
    let mut notes = Vec::new();
    if let Some(name) = program.event_log_handler.as_deref().filter(|name| *name != "null") {
        let place = flags.place("--event-log-handler");
        notes.push(format!("{place} {name} has no effect; events are in the run's events.jsonl"));
    }
    Ok(notes)
}

/// Returns the time between TERM and KILL: typed flags win over variables.
fn grace(flags: &Flags, own: &EnnFlags, facts: &Facts) -> Result<Duration, RunError> {
    let given = flags.program.shutdown_timeout.as_deref();
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
    whole(text).map_err(|expected| expected.error(SHUTDOWN_TIMEOUT, text, false))
}

/// Returns the file in which the workers set their timers.
fn timer_file(facts: &Facts) -> PathBuf {
    let given = facts.timer_file.as_ref().map(|file| facts.cwd.join(file));
    given.unwrap_or_else(|| facts.temporary_dir.join(format!("watchdog_timer_{}", random_name())))
}

/// Returns the note about a variable of torchrun's agent that has no effect here.
fn unhonoured(name: &str, value: &str) -> Option<String> {
    let variable = OF_TORCHRUN.iter().find(|variable| variable.name == name)?;
    Some(format!("{name}={value} is {}", variable.effect))
}

/// Returns the CPUs of each worker; empty without `--numa-binding`.
fn cpus(flags: &Flags, workers: u32, facts: &Facts) -> Result<Vec<Vec<usize>>, RunError> {
    let mode = |text: &str| {
        let expected =
            Expected { what: "node, socket, exclusive or core-complex", hint: "node is right when in doubt" };
        Mode::named(text).map(Some).ok_or(expected)
    };
    let mode = flags.parsed("--numa-binding", flags.program.numa_binding.as_deref(), None, mode)?;
    let Some(mode) = mode else { return Ok(Vec::new()) };
    let root = Path::new("/");
    let topology = numa::read_topology(root, &numa::allowed_cpus()?)?;
    let visible = facts.visible_devices.as_deref().map(devices);
    let gpus = if facts.gpus > 0 { Some(numa::read_gpus(root, visible.as_deref())?) } else { None };
    Ok(numa::bind(mode, workers as usize, gpus.as_deref(), &topology)?)
}

/// Returns the names in `CUDA_VISIBLE_DEVICES`.
fn devices(list: &str) -> Vec<String> {
    list.split(',').map(|name| name.trim().to_owned()).collect()
}

fn workers(flags: &Flags, facts: &Facts) -> Result<u32, RunError> {
    let text = flags.rendezvous.nproc_per_node.as_deref().unwrap_or("1");
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

/// Returns the rendezvous of the nodes for `local_world` workers of this one. Notes for the user go to `notes`.
///
/// # Errors
/// The first flag that cannot be parsed, or a token that cannot be obtained.
pub fn rendezvous(
    flags: &Flags,
    own: &EnnFlags,
    dialect: Dialect,
    local_world: u32,
    facts: &Facts,
    notes: &mut Vec<String>,
) -> Result<Settings, RunError> {
    let choice = rendezvous_flags::rendezvous_choice(flags, random_name)?;
    notes.extend(choice.notes);
    let (nodes_min, nodes_max) = choice.nodes;
    let restarts = if own.replaces() { replace::RESTARTS_MAX } else { 0 };
    let restarts_max =
        flags.parsed("--max-restarts", flags.program.max_restarts.as_deref(), restarts, values::count)?;
    Ok(Settings {
        run_id: choice.run_id,
        nodes_min,
        nodes_max,
        location: choice.location,
        node_rank: choice.node_rank,
        local_world,
        role: flags.program.role.clone().unwrap_or_else(|| "default".to_owned()),
        local_addr: flags.rendezvous.local_addr.clone(),
        host: facts.host.clone(),
        restarts_max,
        join_timeout: choice.join_timeout,
        last_call: choice.last_call,
        silence_max: choice.silence_max,
        hang_timeout: own_seconds("--hang-timeout", own.hang_timeout.as_deref())?.filter(|time| !time.is_zero()),
        token: if nodes_max > 1 { Some(token::token(own.token_file.as_deref(), facts)?) } else { None },
        uneven: own.uneven || dialect == Dialect::Torchrun,
        store_open: own.store_open,
        // Rounds of workers that are replaced are independent of the rendezvous.
        store_kept: own.replaces(),
    })
}

fn logs(flags: &Flags, own: &EnnFlags, facts: &Facts) -> Result<LogPlan, RunError> {
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
        // An empty template counts as none, as in torchrun.
        prefix: output
            .log_line_prefix_template
            .clone()
            .filter(|it| !it.is_empty())
            .or_else(|| facts.log_prefix.clone()),
        // Background processes must not write into a pipe that ends with the launcher.
        keep: !own.no_capture && !own.leave_background && output.log_dir.as_deref() != Some("/dev/null"),
        kept_bytes_max: own.retention(facts)?.bytes_max,
    })
}

/// Parses seconds of a flag that torchrun does not have.
fn own_seconds(flag: &'static str, text: Option<&str>) -> Result<Option<Duration>, RunError> {
    text.map(|text| values::seconds(text).map_err(|expected| expected.error(flag, text, true))).transpose()
}

/// Returns a random name from the operating system's random source.
fn random_name() -> String {
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}
