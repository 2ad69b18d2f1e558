//! `run`: makes the run's directory, records its events, and runs the program on this node.

use super::announce::Announcer;
use crate::{
    Error,
    facts::Facts,
    retention::RetentionSweep,
    torchrun::{Dialect, Launch, RunError},
};
use enn_cluster::{
    rendezvous::{RoundEnd, RunEnd},
    supervise::{self, GroupOutcome, GroupSpec},
};
use enn_common::{event::EventKind, exit::ExitCode, fs::private};
use enn_process::run_dir::{RunDir, RunDirError};
use enn_ui::{MetricsServer, Mode, message};
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

/// File descriptors of the launcher itself, and of each worker: pidfd, two pipes, two log files, and reserve.
const DESCRIPTORS_OWN: u64 = 64;
const DESCRIPTORS_WORKER: u64 = 6;
/// Number of characters of the random part of a log folder's name.
const RANDOM_CHARS: usize = 8;
/// Name of a file whose existence says that warm servers were mentioned.
const WARM_MENTIONED: &str = "warm-mentioned";
const WARM_HINT: &str =
    "hint: enn run --warm keeps PyTorch imported between runs: the next one starts its workers at once (said once)";
/// Maximum number of random names that are tried.
const NAMES_MAX: usize = 100;

#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The directory of runs given by the user, which is made when absent.
    pub runs_dir: Option<PathBuf>,
    pub mode: Mode,
    /// The program whose exit codes are used: `enn` or torchrun.
    pub dialect: Dialect,
    /// The address at which OpenMetrics are served while the run lasts; `None`: they are not served.
    pub metrics_addr: Option<SocketAddr>,
}

/// Runs a program on this node until the run ends; returns the exit status of `enn`.
///
/// Call it from a thread that lives until it returns.
///
/// # Errors
/// The launch cannot begin, or the machine lacks something; a failed worker is an exit status.
pub fn run(launch: Launch, facts: &Facts, options: &RunOptions) -> Result<u8, Error> {
    let began = Instant::now();
    let Launch { mut spec, name, log_dir, retention, mut notes, could_be_warm } = launch;
    let spares = spec.replace.as_ref().map_or(0, |replace| replace.spares);
    raise_descriptors(spec.rendezvous.local_world + spares).map_err(Box::new)?;
    // This comes before anything is made, because the address may be taken.
    let metrics = options.metrics_addr.map(MetricsServer::start).transpose()?;
    let run = run_dir(&name, facts, options, &mut notes)?;
    spec.run_dir = run.path().to_owned();
    let base = log_dir.unwrap_or_else(|| run.path().join("logs"));
    spec.logs.dir = log_folder(&base, &spec.rendezvous.run_id)
        .map_err(|source| Box::new(RunError::LogDir { path: base, source }))?;
    run.write_launch(&spec.rendezvous.run_id, &facts.argv, &spec.logs.dir)?;
    let sweeping = run.path().parent().map(|runs| RetentionSweep::start(runs.to_owned(), retention, SystemTime::now()));
    let announcer = Announcer::of_run(&run, options.mode, metrics)?;
    announcer.begin(&run, "run", spec.rendezvous.local_world, facts);
    for message in notes {
        announcer.send(EventKind::Warned { message });
    }
    let outcome = supervise::run_programs(&spec, &mut |what| announcer.send(what));
    if outcome.as_ref().is_ok_and(|outcome| outcome.output_lost > 0) {
        // Standard error may be the output that is not read.
        announcer.give_up();
    }
    let (code, restarts, rounds) = match &outcome {
        Ok(outcome) => (status(outcome, options.dialect, spec.propagate_exit), outcome.restarts, outcome.rounds),
        Err(_) if options.dialect == Dialect::Torchrun => (ExitCode::WorkerFailed as u8, 0, 0),
        Err(_) => (ExitCode::Machine as u8, 0, 0),
    };
    if let (Ok(outcome), Some(file)) = (&outcome, &facts.error_file) {
        pass_on(outcome, &spec, file);
    }
    let seconds = began.elapsed().as_secs_f64();
    let cause = outcome.as_ref().err().map(ToString::to_string);
    announcer.send(EventKind::RunEnded { code, seconds, restarts, rounds, cause });
    drop(announcer);
    sweeping.into_iter().for_each(RetentionSweep::finish);
    if could_be_warm && code == 0 && options.mode != Mode::Json && io::stderr().is_terminal() {
        mention_warm(&facts.state_dir);
    }
    outcome.map_err(Error::from).map(|_| code)
}

/// Mentions warm servers once to each user. Nothing is printed where the file cannot be made.
fn mention_warm(state_dir: &Path) {
    let remembered = fs::create_dir_all(state_dir).and_then(|()| File::create_new(state_dir.join(WARM_MENTIONED)));
    if remembered.is_ok() {
        message::print(WARM_HINT);
    }
}

/// Copies the error file of the first failure to the launcher's own error file, for the program that started this launcher.
fn pass_on(outcome: &GroupOutcome, spec: &GroupSpec, own: &Path) {
    let RunEnd::Failed { end: RoundEnd::Failed(failure), .. } = &outcome.end else { return };
    let attempt = spec.logs.dir.join(format!("attempt_{}", failure.round));
    let file = attempt.join(failure.local_rank.to_string()).join("error.json");
    if failure.host == spec.rendezvous.host && file.is_file() {
        // The copy may fail: the failure has been reported already.
        let _copied = fs::copy(file, own);
    }
}

/// Returns the exit status for the given end.
fn status(outcome: &GroupOutcome, dialect: Dialect, propagate: bool) -> u8 {
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
        | RunEnd::LeaderLost { .. }
        | RunEnd::Refused { .. } => ExitCode::Rendezvous as u8,
        RunEnd::Stopped { .. } => ExitCode::Terminated as u8,
    };
    let ours = match outcome.stopped_by {
        Some(signal) if outcome.end != RunEnd::Finished || outcome.output_lost > 0 => by_signal(signal as i32),
        _ => ours,
    };
    // torchrun has one code besides 0 for every failure.
    if dialect == Dialect::Torchrun && ours != 0 && !propagate { ExitCode::WorkerFailed as u8 } else { ours }
}

/// Returns the exit status of a shell for a signal.
fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(ExitCode::WorkerFailed as u8)
}

/// Makes the run directory in the requested directory, else in the user's directory, else in a temporary directory, so that a launch does
/// not need a writable home.
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

/// Makes the directory `<base>/<run-id>_<random>`.
fn log_folder(base: &Path, run_id: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(base)?;
    let base = fs::canonicalize(base)?;
    let mut tried = 0;
    loop {
        let path = base.join(format!("{}_{}", run_id.replace('/', "-"), random_suffix()));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tried < NAMES_MAX => tried += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Returns random lower-case letters and digits, seeded by the operating system.
fn random_suffix() -> String {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut random = RandomState::new().build_hasher().finish();
    let mut next_char = || {
        let index = random % ALPHABET.len() as u64;
        random /= ALPHABET.len() as u64;
        char::from(ALPHABET[index as usize])
    };
    (0..RANDOM_CHARS).map(|_| next_char()).collect()
}

/// Raises the soft limit of open files as far as the workers need.
fn raise_descriptors(workers: u32) -> Result<(), RunError> {
    let needed = DESCRIPTORS_OWN + DESCRIPTORS_WORKER * u64::from(workers);
    // A limit that cannot be read is checked by the first open files.
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(()) };
    if soft >= needed {
        return Ok(());
    }
    if hard < needed || setrlimit(Resource::RLIMIT_NOFILE, needed, hard).is_err() {
        return Err(RunError::Descriptors { allowed: hard, needed, workers });
    }
    Ok(())
}
