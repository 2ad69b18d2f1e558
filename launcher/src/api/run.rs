//! `run`: makes the run's directory, tells its events, and has the group run the program on this node.

use super::announce::Announcer;
use crate::{
    Error,
    facts::Facts,
    group::{self, GroupOutcome, GroupSpec},
    rendezvous::{RoundEnd, RunEnd},
    retention::Sweeping,
    run_dir::{RunDir, RunDirError},
    torchrun::{Launch, Manner, RunError},
    ui::{MetricsServer, Mode, message},
};
use enn_common::{event::What, exit::ExitCode, fs::private};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::{
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, IsTerminal},
    net::SocketAddr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Instant, SystemTime},
};

/// Descriptors of the launcher itself, and of each worker: pidfd, two pipes, two log files, and room.
const DESCRIPTORS_OWN: u64 = 64;
const DESCRIPTORS_WORKER: u64 = 6;
/// Letters of the random part of a log folder's name.
const RANDOM_LETTERS: usize = 8;
/// Remembers, by being there, that warm servers were mentioned.
const WARM_MENTIONED: &str = "warm-mentioned";
const WARM_HINT: &str =
    "hint: enn run --warm keeps PyTorch imported between runs: the next one starts its workers at once (said once)";
/// Random names tried before giving up.
const NAMES_MAX: usize = 100;

/// Where and how to run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Directory of runs, given by the user; made when absent.
    pub runs_dir: Option<PathBuf>,
    /// How the run is shown.
    pub mode: Mode,
    /// Whose exit codes are used.
    pub manner: Manner,
    /// Where OpenMetrics are served while the run lasts; `None`: nowhere.
    pub metrics_addr: Option<SocketAddr>,
}

/// Runs a program on this node until the run ends, and returns the exit status of `enn`.
///
/// Call it from a thread that lives until it returns.
///
/// # Errors
/// When the launch cannot begin or the machine refuses something; a failed worker is an exit status.
pub fn run(launch: Launch, facts: &Facts, options: &RunOptions) -> Result<u8, Error> {
    let began = Instant::now();
    let Launch { mut spec, name, log_dir, retention, mut notes, could_be_warm } = launch;
    raise_descriptors(spec.rendezvous.local_world).map_err(Box::new)?;
    // Before anything is made: the address may be taken.
    let metrics = options.metrics_addr.map(MetricsServer::start).transpose()?;
    let run = run_dir(&name, facts, options, &mut notes)?;
    spec.run_dir = run.path().to_owned();
    let base = log_dir.unwrap_or_else(|| run.path().join("logs"));
    spec.logs.dir = log_folder(&base, &spec.rendezvous.run_id)
        .map_err(|source| Box::new(RunError::LogDir { path: base, source }))?;
    run.write_launch(&spec.rendezvous.run_id, &facts.argv, &spec.logs.dir)?;
    let sweeping = run.path().parent().map(|runs| Sweeping::start(runs.to_owned(), retention, SystemTime::now()));
    let announcer = Announcer::of_run(run.path(), options.mode, metrics)?;
    announcer.tell(What::RunStarted {
        run: run.id(),
        mode: "run".into(),
        dir: run.path().to_owned(),
        host: facts.host.clone(),
        nproc: spec.rendezvous.local_world,
        argv: facts.argv.clone(),
    });
    for message in notes {
        announcer.tell(What::Warned { message });
    }
    let outcome = group::run(&spec, &mut |what| announcer.tell(what));
    if outcome.as_ref().is_ok_and(|outcome| outcome.output_lost > 0) {
        // Standard error may be what nobody reads.
        announcer.give_up();
    }
    let (code, restarts, rounds) = match &outcome {
        Ok(outcome) => (status(outcome, options.manner, spec.propagate_exit), outcome.restarts, outcome.rounds),
        Err(error) => (machine(error, options.manner), 0, 0),
    };
    if let (Ok(outcome), Some(file)) = (&outcome, &facts.error_file) {
        pass_on(outcome, &spec, file);
    }
    let seconds = began.elapsed().as_secs_f64();
    let cause = outcome.as_ref().err().map(ToString::to_string);
    announcer.tell(What::RunEnded { code, seconds, restarts, rounds, cause });
    drop(announcer);
    sweeping.into_iter().for_each(Sweeping::finish);
    if could_be_warm && code == 0 && options.mode != Mode::Json && io::stderr().is_terminal() {
        mention_warm(&facts.state_dir);
    }
    outcome.map_err(Error::from).map(|_| code)
}

/// Says once to each user that the next run could start at once. Where nothing can be remembered nothing is said.
fn mention_warm(state_dir: &Path) {
    let remembered = fs::create_dir_all(state_dir).and_then(|()| File::create_new(state_dir.join(WARM_MENTIONED)));
    if remembered.is_ok() {
        message::print(WARM_HINT);
    }
}

/// What the first failure left in its error file goes into the launcher's own, for the launcher of this launcher.
fn pass_on(outcome: &GroupOutcome, spec: &GroupSpec, own: &Path) {
    let RunEnd::Failed { end: RoundEnd::Failed(failure), .. } = &outcome.end else { return };
    let attempt = spec.logs.dir.join(format!("attempt_{}", failure.round));
    let file = attempt.join(failure.local_rank.to_string()).join("error.json");
    if failure.host == spec.rendezvous.host && file.is_file() {
        // It is one more copy; the failure has been told.
        let _copied = fs::copy(file, own);
    }
}

/// The exit status that goes with an end.
fn status(outcome: &GroupOutcome, manner: Manner, propagate: bool) -> u8 {
    let ours = match &outcome.end {
        RunEnd::Finished => ExitCode::Success as u8,
        RunEnd::Failed { end: RoundEnd::Failed(failure), .. } if propagate => match (failure.code, failure.signal) {
            (Some(code), _) => u8::try_from(code & 0xff).unwrap_or(1).max(1),
            (None, Some(signal)) => by_signal(signal),
            (None, None) => ExitCode::WorkerFailed as u8,
        },
        RunEnd::Failed { end: RoundEnd::Failed(_), .. } => ExitCode::WorkerFailed as u8,
        RunEnd::Failed { end: RoundEnd::Hung { .. }, .. } => ExitCode::Hung as u8,
        RunEnd::Failed { end: RoundEnd::NodeLost { .. } | RoundEnd::NodeWaiting { .. }, .. }
        | RunEnd::TimedOut { .. }
        | RunEnd::HostLost { .. }
        | RunEnd::Refused { .. } => ExitCode::Rendezvous as u8,
        RunEnd::Stopped { .. } => ExitCode::Terminated as u8,
    };
    let ours = match outcome.stopped_by {
        Some(signal) if outcome.end != RunEnd::Finished || outcome.output_lost > 0 => by_signal(signal as i32),
        _ => ours,
    };
    // torchrun knows one code besides 0, whatever happened.
    if manner == Manner::Torchrun && ours != 0 && !propagate { ExitCode::WorkerFailed as u8 } else { ours }
}

/// As a shell says it.
fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(ExitCode::WorkerFailed as u8)
}

fn machine(_error: &group::GroupError, manner: Manner) -> u8 {
    if manner == Manner::Torchrun { ExitCode::WorkerFailed as u8 } else { ExitCode::Machine as u8 }
}

/// The directory asked for; else the user's, and the temporary one when that cannot be written: a launch needs no home.
fn run_dir(name: &str, facts: &Facts, options: &RunOptions, notes: &mut Vec<String>) -> Result<RunDir, RunDirError> {
    let now = time::OffsetDateTime::now_utc();
    if let Some(dir) = &options.runs_dir {
        return RunDir::create(&facts.cwd.join(dir), name, now);
    }
    RunDir::create(&facts.cwd.join(&facts.launches_dir), name, now).or_else(|error| {
        let home = facts.temporary_dir.join(format!("enn-{}", nix::unistd::geteuid()));
        if let Err(refused) = private::own_dir(&home) {
            notes.push(refused.to_string());
            return Err(error);
        }
        let instead = home.join("runs");
        notes.push(format!("{error}; this run is kept in {}", instead.display()));
        RunDir::create(&instead, name, now)
    })
}

/// Makes `<base>/<run-id>_<random>`.
fn log_folder(base: &Path, run_id: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(base)?;
    let base = fs::canonicalize(base)?;
    let mut tried = 0;
    loop {
        let path = base.join(format!("{}_{}", run_id.replace('/', "-"), letters()));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tried < NAMES_MAX => tried += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Small letters and digits by the operating system's randomness.
fn letters() -> String {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut random = RandomState::new().build_hasher().finish();
    let mut letter = || {
        let index = random % ALPHABET.len() as u64;
        random /= ALPHABET.len() as u64;
        char::from(ALPHABET[index as usize])
    };
    (0..RANDOM_LETTERS).map(|_| letter()).collect()
}

/// Raises the soft limit of open files as far as the workers need.
fn raise_descriptors(workers: u32) -> Result<(), RunError> {
    let needed = DESCRIPTORS_OWN + DESCRIPTORS_WORKER * u64::from(workers);
    // A limit that cannot be asked for shows itself soon enough.
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(()) };
    if soft >= needed {
        return Ok(());
    }
    if hard < needed || setrlimit(Resource::RLIMIT_NOFILE, needed, hard).is_err() {
        return Err(RunError::Descriptors { allowed: hard, needed, workers });
    }
    Ok(())
}
