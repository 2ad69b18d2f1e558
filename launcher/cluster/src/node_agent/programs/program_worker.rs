//! One program of a node: its process, its output, and what is known of its failure.

use super::{
    environment::{self, Files},
    error_file::{self, ErrorFile},
    program_start::ProgramStart,
    spec::GroupSpec,
};
use crate::node_agent::{environment::OF_A_SCRIPT, error::AgentError, program_ranks::Ranks};
use enn_common::{failure::Failure, secrets, wire::control::Phase};
use enn_process::{
    Binding, Cgroup, Exit, Guard, Inlet, MARK_VARIABLE, Mark, Outlets, Process, StartError,
    logs::{Pump, Tail, WorkerIdentity, WorkerStreams},
    preload::{PausedWorker, Started, Starter, WorkerStart},
    signal_mask, stacks,
};
use nix::{errno::Errno, sched::CpuSet, sys::signal::Signal};
use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// A worker that failed within this time of its start may have failed before it was ready.
const EARLY_MAX: Duration = Duration::from_secs(30);
/// What a shell says when a program is not found, and when it cannot be executed.
const CODE_NOT_FOUND: i32 = 127;
const CODE_NOT_EXECUTABLE: i32 = 126;

/// A worker of the present round.
#[derive(Debug)]
pub(super) struct ProgramWorker {
    pub(super) ranks: Ranks,
    /// It has had no seat yet.
    pub(super) is_spare: bool,
    pub(super) process: Process,
    /// Set until it may begin.
    held: Option<PausedWorker>,
    tail: Tail,
    error_file: PathBuf,
    progress: PathBuf,
    progressed: Option<SystemTime>,
    /// What it reported of its steps.
    pub(super) page: ScriptPage,
    started: Instant,
    /// When its end was noticed.
    ended: Option<(Instant, SystemTime)>,
}

/// What a script reported of its steps last, as a control page would show it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScriptPage {
    pub(super) phase: Phase,
    pub(super) step: u64,
    pub(super) at: Instant,
}

/// Why a worker was not started.
#[derive(Debug)]
pub(super) enum NotStarted {
    /// Its program cannot be executed: that is a failure of the worker.
    Program(Box<Failure>),
    /// The machine lacks something that the launcher needs.
    Machine(AgentError),
}

/// What starting needs besides the spec and the ranks.
pub(super) struct Means<'a> {
    pub(super) pump: &'a Pump,
    pub(super) guard: &'a mut Guard,
    pub(super) mark: &'a Mark,
    pub(super) cgroup: Option<&'a Cgroup>,
    pub(super) starter: &'a mut Starter,
}

/// The command of a worker, with the variables that all of them get.
pub(super) fn common_command(spec: &GroupSpec, local_rank: u32) -> Command {
    let mut command = secrets::command(&spec.command.program);
    command.args(environment::args(&spec.command.args, local_rank)).envs(&spec.variables);
    command
}

impl ProgramWorker {
    /// Starts a worker; it begins when it is released.
    pub(super) fn start(spec: &GroupSpec, seat: &ProgramStart<'_>, means: Means<'_>) -> Result<Self, NotStarted> {
        let ranks = seat.ranks;
        let role = spec.rendezvous.role.clone();
        let host = spec.rendezvous.host.clone();
        let who = WorkerIdentity { role, local_rank: ranks.local_rank, rank: ranks.rank, host };
        let number = seat.round;
        let spare = seat.script.filter(|script| script.spare.is_some()).map(|script| script.worker.0);
        let streams = match spare {
            None => means.pump.open(u32::try_from(number).unwrap_or(u32::MAX), &who),
            Some(name) => means.pump.open_spare(name, &who),
        };
        let streams = streams.map_err(|error| NotStarted::Machine(error.into()))?;
        let WorkerStreams { stdout, stderr, error_file, tail } = streams;
        let progress = spare.map_or_else(|| ranks.local_rank.to_string(), |name| format!("spare-{name}"));
        let progress = spec.run_dir.join("progress").join(progress);
        let files = Files { error: &error_file, progress: &progress };
        let mut command = common_command(spec, ranks.local_rank);
        for name in OF_A_SCRIPT.iter().chain(environment::OF_A_SEAT.iter().filter(|_| spare.is_some())) {
            command.env_remove(name);
        }
        command.envs(environment::variables(spec, seat, files)).env(MARK_VARIABLE, means.mark.value());
        // As under torchrun: every worker has the launcher's own standard input, and leads a session.
        let outlets = Outlets { stdin: Inlet::Inherited, stdout, stderr };
        let cpus = cpu_set(spec.cpus.get(ranks.local_rank as usize)).map_err(NotStarted::Machine)?;
        let binding = Binding::new(cpus, means.cgroup).in_new_session();
        let started = Instant::now();
        match means.starter.start(WorkerStart { command: &command, outlets, binding }, means.guard) {
            Ok(Started { process, held }) => {
                let page = ScriptPage { phase: Phase::Boot, step: 0, at: started };
                let is_spare = spare.is_some();
                let progressed = None;
                let ended = None;
                Ok(Self {
                    ranks,
                    is_spare,
                    process,
                    held,
                    tail,
                    error_file,
                    progress,
                    progressed,
                    page,
                    started,
                    ended,
                })
            }
            Err(StartError::Watch(source)) => {
                Err(NotStarted::Machine(AgentError::System { what: "watch a worker by pidfd", source }))
            }
            Err(StartError::Spawn(error)) => {
                let failure = blank(spec, number, &ranks);
                let (code, message) = not_started(&spec.command.program.to_string_lossy(), &error);
                let failure = Failure { code: Some(code), message: Some(message), early: true, ..failure };
                Err(NotStarted::Program(Box::new(failure)))
            }
        }
    }

    /// Lets the worker begin, if it waits.
    pub(super) fn release(&mut self) {
        if let Some(held) = self.held.take() {
            held.release();
        }
    }

    /// Whether it was forked, and has not been released.
    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Reaps the worker if it has ended; `None` when it lives or its end is known.
    pub(super) fn reap(&mut self, guard: &mut Guard, leave_background: bool) -> Option<Exit> {
        let exit = if leave_background { self.process.reap_alone(guard)? } else { self.process.reap(guard)? };
        self.ended = Some((Instant::now(), SystemTime::now()));
        Some(exit)
    }

    /// Returns the folder of its logs.
    pub(super) fn logs(&self) -> &Path {
        self.error_file.parent().unwrap_or(Path::new(""))
    }

    /// Returns the last lines of its standard error.
    pub(super) fn stderr(&self) -> String {
        self.tail.stderr()
    }

    /// Whether it ended with code 0.
    pub(super) fn succeeded(&self) -> bool {
        self.process.exit() == Some(Exit::Code(0))
    }

    /// Whether it touched its progress file since the last call.
    pub(super) fn progressed(&mut self) -> bool {
        let modified = std::fs::metadata(&self.progress).and_then(|metadata| metadata.modified()).ok();
        let changed = modified.is_some() && modified != self.progressed;
        self.progressed = modified;
        changed
    }

    /// Sends `preferred` if the worker has a handler for it, else TERM: a signal nobody handles would kill it.
    pub(super) fn ask_to_stop(&self, preferred: Signal) {
        let handled = signal_mask(self.process.pid(), "SigCgt") >> (preferred as i32 - 1) & 1 == 1;
        self.process.signal(if handled { preferred } else { Signal::SIGTERM });
    }

    /// When the worker's trouble began, as far as is known: its error file, else its end.
    fn trouble(&self) -> Option<(SystemTime, Option<ErrorFile>)> {
        let file = error_file::read(&self.error_file);
        let ended = self.ended.map(|(_, at)| at).filter(|_| !self.succeeded());
        match (file, ended) {
            (Some(file), ended) => Some((file.written.or(ended)?, Some(file))),
            (None, Some(at)) => Some((at, None)),
            (None, None) => None,
        }
    }

    fn failure(&self, spec: &GroupSpec, round: u64, file: Option<ErrorFile>) -> Failure {
        let (code, signal) = match self.process.exit() {
            Some(Exit::Code(code)) => (Some(code), None),
            Some(Exit::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        let (message, traceback) = file.map_or((None, None), |file| (Some(file.message), file.traceback));
        let until = self.ended.map_or_else(Instant::now, |(at, _)| at);
        Failure {
            pid: self.process.pid(),
            code,
            signal,
            message,
            traceback,
            stderr: self.tail.stderr(),
            // A program that printed a result, or joined the store (which the host of the rendezvous knows), was ready.
            early: until.duration_since(self.started) < EARLY_MAX
                && !self.tail.printed()
                && self.page.phase == Phase::Boot,
            ..blank(spec, round, &self.ranks)
        }
    }

    fn doing(&self) -> String {
        let rank = self.ranks.rank;
        match self.process.exit() {
            None => format!("rank {rank}: {}", stacks::activity(self.process.pid())),
            Some(Exit::Code(code)) => format!("rank {rank}: ended with code {code}"),
            Some(Exit::Signal(signal)) => format!("rank {rank}: ended by signal {signal}"),
        }
    }
}

/// Returns the failure of the round: of all its workers in trouble, the one whose trouble began first. A worker that raised and is
/// still being torn down comes before those that failed because of it.
pub(super) fn root_cause(spec: &GroupSpec, round: u64, workers: &[&ProgramWorker]) -> Option<Failure> {
    let troubled = workers.iter().enumerate().filter_map(|(index, worker)| Some((worker.trouble()?, index)));
    let ((_, file), index) = troubled.min_by_key(|((since, _), _)| *since)?;
    let others = workers.iter().enumerate().filter(|(other, _)| *other != index);
    let others = others.map(|(_, worker)| worker.doing()).collect();
    Some(Failure { others, ..workers[index].failure(spec, round, file) })
}

fn blank(spec: &GroupSpec, round: u64, ranks: &Ranks) -> Failure {
    Failure {
        round,
        host: spec.rendezvous.host.clone(),
        node_rank: ranks.node_rank,
        local_rank: ranks.local_rank,
        rank: ranks.rank,
        role: spec.rendezvous.role.clone(),
        time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        ..Failure::default()
    }
}

fn not_started(program: &str, error: &io::Error) -> (i32, String) {
    let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
    let (code, hint) = match errno {
        Errno::ENOENT => (CODE_NOT_FOUND, "\nhint: is it on PATH, and does the interpreter of its first line exist?"),
        Errno::EACCES => (CODE_NOT_EXECUTABLE, "\nhint: chmod +x, or leave out --no-python for a Python script"),
        Errno::ENOEXEC => (CODE_NOT_EXECUTABLE, "\nhint: a script needs a first line such as #!/bin/sh"),
        Errno::EAGAIN => (CODE_NOT_EXECUTABLE, "\nhint: too many processes; `ulimit -u` tells the limit"),
        Errno::EMFILE | Errno::ENFILE => (CODE_NOT_EXECUTABLE, "\nhint: too many open files; raise `ulimit -n`"),
        _ => (CODE_NOT_EXECUTABLE, ""),
    };
    (code, format!("cannot start {program}: {error}{hint}"))
}

fn cpu_set(cpus: Option<&Vec<usize>>) -> Result<Option<CpuSet>, AgentError> {
    let Some(cpus) = cpus else { return Ok(None) };
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu)
            .map_err(|errno| AgentError::System { what: "bind a worker to its CPUs", source: errno.into() })?;
    }
    Ok(Some(set))
}

/// Makes the directory of the progress files.
pub(super) fn progress_dir(run_dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(run_dir.join("progress"))
}
