//! Creates a worker's standard output and error, and waits for what was written.

use super::{
    LogError, LogPlan, Tail,
    console::{ConsoleKinds, Consoles},
    files::LogFiles,
    filter::{LineFilter, Needles},
    last_output::AtomicInstant,
    layout::{self, AttemptDir},
    lines::LineBuffer,
    plan::Route,
    prefix::prefix,
    pump_link::{Backlog, PumpCommand, PumpHandle, PumpShared},
    reader::Reader,
    stream::Stream,
    stream_name::{PipeContents, StreamName},
    tail_writer::TailWriter,
    worker_identity::WorkerIdentity,
};
use crate::Outlet;
use crossbeam_channel::{bounded, unbounded};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags},
    sys::eventfd::{EfdFlags, EventFd},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Longest time that a dropped pump waits for a console that accepts nothing, and then for its thread.
const END_WAIT: Duration = Duration::from_secs(1);

/// The streams with which a worker is started. `stdout` and `stderr` must be dropped after the worker was started,
/// since they hold the pipes open.
#[derive(Debug)]
pub struct WorkerStreams {
    pub stdout: Outlet,
    pub stderr: Outlet,
    /// The file for the worker's failure (`TORCHELASTIC_ERROR_FILE`), which does not exist yet.
    pub error_file: PathBuf,
    pub tail: Tail,
}

/// Reads the output of all workers of a node, in one thread. Dropping the pump writes out what was read, as far as the
/// consoles accept it within a second; see [`Self::finish`].
#[derive(Debug)]
pub struct Pump {
    plan: LogPlan,
    consoles: ConsoleKinds,
    needles: [Option<Needles>; 2],
    attempt: Mutex<Option<(u32, AttemptDir)>>,
    handle: Arc<PumpHandle>,
    shared: Arc<PumpShared>,
    /// A pipe that is closed when the thread ends.
    ended: io::PipeReader,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    /// Starts the thread. The consoles are this process's standard output and error.
    pub fn start(plan: LogPlan) -> Result<Self, LogError> {
        let copy = |fd: io::Result<OwnedFd>| fd.map_err(system("copy the launcher's own streams"));
        let out = copy(io::stdout().as_fd().try_clone_to_owned())?;
        let err = copy(io::stderr().as_fd().try_clone_to_owned())?;
        Self::start_on(plan, out, err)
    }

    pub fn start_on(plan: LogPlan, out: OwnedFd, err: OwnedFd) -> Result<Self, LogError> {
        let shared = Arc::new(PumpShared {
            last: AtomicInstant::never(Instant::now()),
            errors: Mutex::default(),
            backlog: Mutex::default(),
            lost: AtomicU64::new(0),
        });
        let kinds = ConsoleKinds::of(&out, &err);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_flags(flags).map_err(io::Error::from).map_err(system("make an eventfd"))?);
        let (commands, incoming) = unbounded();
        let (ended, alive) = io::pipe().map_err(system("make a pipe"))?;
        let files = LogFiles::new(plan.kept_bytes_max);
        let reader = Reader::new(incoming, Arc::clone(&wake), Arc::clone(&shared), Consoles::new(out, err), files)
            .map_err(system("make an epoll instance"))?;
        let body = move || {
            let _alive = alive;
            reader.run();
        };
        let thread = std::thread::Builder::new().name("enn-logs".into()).spawn(body);
        let thread = Some(thread.map_err(system("start a thread"))?);
        let needles = [Needles::new(&plan.stdout_filters), Needles::new(&plan.stderr_filters)];
        let handle = Arc::new(PumpHandle { commands, wake });
        Ok(Self { plan, consoles: kinds, needles, attempt: Mutex::default(), handle, shared, ended, thread })
    }

    /// Makes the files and pipes of one worker in one attempt.
    pub fn open(&self, attempt: u32, who: &WorkerIdentity) -> Result<WorkerStreams, LogError> {
        let attempt = self.attempt(attempt)?;
        let dir = attempt.rank(who.local_rank)?;
        self.open_in(&attempt, &dir, who)
    }

    /// Makes the files and pipes of a worker that has no part in the present attempt; `name` tells it from others like it.
    pub fn open_spare(&self, name: u32, who: &WorkerIdentity) -> Result<WorkerStreams, LogError> {
        let attempt = self.attempt.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let attempt = match attempt {
            Some((_, attempt)) => attempt,
            None => self.attempt(0)?,
        };
        let dir = layout::spare(&self.plan.dir, name)?;
        self.open_in(&attempt, &dir, who)
    }

    /// Makes the logs in the folder `from` appear among those of an attempt, too.
    pub fn link(&self, attempt: u32, local_rank: u32, from: &Path) -> Result<(), LogError> {
        let to = self.attempt(attempt)?.rank(local_rank)?;
        layout::link(from, &to)
    }

    fn open_in(&self, attempt: &AttemptDir, dir: &Path, who: &WorkerIdentity) -> Result<WorkerStreams, LogError> {
        let tail_writer = TailWriter::default();
        let [out, err] = [StreamName::Out, StreamName::Err].map(|name| self.plan.route(name, who.local_rank));
        let setup = StreamSetup { who, attempt, dir, tail_writer: &tail_writer };
        let (stdout, stderr) = if self.consoles.same && out.is_plain() && err.is_plain() {
            let both = self.stream(PipeContents::Both, out, &setup)?;
            let copy = both.try_clone().map_err(system("copy a pipe"))?;
            (both, copy)
        } else {
            (self.stream(PipeContents::Out, out, &setup)?, self.stream(PipeContents::Err, err, &setup)?)
        };
        let tail = Tail::new(tail_writer, Arc::clone(&self.handle));
        Ok(WorkerStreams { stdout, stderr, error_file: layout::error_file(dir), tail })
    }

    /// Queues a line for standard error, which is never written inside a line of a worker; see [`Self::settle`].
    pub fn say(&self, line: String) -> Result<(), LogError> {
        self.handle.send(PumpCommand::Say(line))
    }

    /// Returns when any worker last wrote something that passed through the pump; inherited streams do not.
    pub fn last_output(&self) -> Option<Instant> {
        self.shared.last.get()
    }

    /// Waits until everything that was written before this call has reached files, tails and consoles, and an unfinished
    /// line on the console of standard error is ended: what is printed next comes after it. False when `deadline` came
    /// first. Does not wait for pipes to be closed: what a worker left behind may hold them for ever.
    pub fn settle(&self, deadline: Instant) -> bool {
        let (done, settled) = bounded(1);
        self.handle.send(PumpCommand::Settle(done)).is_ok() && settled.recv_deadline(deadline).is_ok()
    }

    /// Gives the workers' terminals the size of the consoles' windows.
    pub fn resize(&self) {
        // A thread that is gone has no terminals.
        let _gone = self.handle.send(PumpCommand::Resize);
    }

    /// Begins the end: all output is written to files and consoles, however long that takes. [`Self::ended`] becomes
    /// readable when it is done. Streams opened after this call may not be read.
    pub fn finish(&self) {
        // A thread that is gone has ended.
        let _gone = self.handle.send(PumpCommand::End);
    }

    /// Discards the output that the consoles do not accept at once, after [`Self::finish`]. Files are still completed.
    pub fn give_up_consoles(&self) {
        let _gone = self.handle.send(PumpCommand::GiveUp);
    }

    /// Returns a descriptor that becomes readable when all output was written or discarded.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Returns the output that the consoles' readers have not taken yet, after [`Self::finish`].
    pub fn backlog(&self) -> Option<Backlog> {
        *self.shared.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes that were discarded because consoles were given up.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Waits for the end and returns whether it came before `deadline`.
    fn ended_by(&self, deadline: Instant) -> bool {
        let mut fds = [PollFd::new(self.ended(), PollFlags::POLLIN)];
        crate::wait_ready(&mut fds, Some(deadline)).is_ok() && fds[0].any().unwrap_or(true)
    }

    /// Returns the errors since the last call, such as a full disk or a closed console. Each is returned once.
    pub fn take_errors(&self) -> Vec<LogError> {
        std::mem::take(&mut *self.shared.errors.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn attempt(&self, number: u32) -> Result<AttemptDir, LogError> {
        let mut current = self.attempt.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((was, attempt)) = &*current
            && *was == number
        {
            return Ok(attempt.clone());
        }
        let attempt = AttemptDir::create(&self.plan.dir, number)?;
        if self.needles[0].is_some() {
            layout::touch(attempt.filtered_stdout())?;
        }
        if self.needles[1].is_some() {
            layout::touch(attempt.filtered_stderr())?;
        }
        Ok(current.insert((number, attempt)).1.clone())
    }

    fn stream(&self, contents: PipeContents, route: Route, setup: &StreamSetup<'_>) -> Result<Outlet, LogError> {
        let name = contents.name();
        let terminal = self.consoles.terminals[name.index()].as_ref().filter(|_| route.is_plain());
        if contents == PipeContents::Out && !route.filed {
            return if route.shown {
                Ok(Outlet::Inherited)
            } else {
                Outlet::nowhere().map_err(system("open /dev/null"))
            };
        }
        let (file, filtered, needles) = match name {
            StreamName::Out => (layout::STDOUT, setup.attempt.filtered_stdout(), &self.needles[0]),
            StreamName::Err => (layout::STDERR, setup.attempt.filtered_stderr(), &self.needles[1]),
        };
        let file = if route.filed { Some(layout::touch(setup.dir.join(file))?) } else { None };
        let (source, write) = match terminal {
            Some(terminal) => crate::terminal_pair(terminal.as_fd()).map_err(system("make a terminal"))?,
            None => io::pipe().map(|(read, write)| (read.into(), write.into())).map_err(system("make a pipe"))?,
        };
        // What the worker does with its end is its own affair.
        let flags = fcntl(&source, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(io::Error::from);
        flags.map_err(system("set the flags of a pipe"))?;
        self.handle.send(PumpCommand::Add(Box::new(Stream {
            source,
            contents,
            terminal: terminal.is_some(),
            tail: setup.tail_writer.clone(),
            file,
            copy: !route.teed && !route.redirected,
            shown: route.shown,
            prefix: if route.teed { prefix(self.plan.prefix.as_deref(), setup.who) } else { Vec::new() },
            filter: needles
                .clone()
                .filter(|_| route.teed && route.shown)
                .map(|texts| (LineFilter::new(texts), filtered)),
            lines: LineBuffer::default(),
            show_part_at: None,
            queued: false,
            owed: 0,
            paused: false,
        })))?;
        Ok(Outlet::To(write))
    }
}

/// The values with which a worker's streams are set up.
struct StreamSetup<'a> {
    who: &'a WorkerIdentity,
    attempt: &'a AttemptDir,
    dir: &'a Path,
    tail_writer: &'a TailWriter,
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.finish();
        let mut ended = self.ended_by(Instant::now() + END_WAIT);
        if !ended {
            self.give_up_consoles();
            // A write that blocks, to a terminal that was stopped or a disk that is gone, must not hold the launcher.
            ended = self.ended_by(Instant::now() + END_WAIT);
        }
        if let Some(thread) = self.thread.take()
            && ended
        {
            let _panicked = thread.join();
        }
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> LogError {
    move |source| LogError::System { what, source }
}
