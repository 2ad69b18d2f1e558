//! The door: hands a worker its standard output and error, and waits for what was written.

use super::{
    LogError, LogPlan, Tail,
    console::{ConsoleKinds, Consoles},
    files::Files,
    filter::{Filter, Needles},
    layout::{self, Attempt},
    lines::Lines,
    plan::Route,
    prefix::prefix,
    reader::{Order, Reader},
    stream::{Carries, Name, Stream},
    tail::{Moment, Said},
};
use crate::process::{self, Outlet};
use crossbeam_channel::{Sender, bounded, unbounded};
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

/// How long a pump that is dropped waits for a console that takes nothing, and then for its thread.
const END_WAIT: Duration = Duration::from_secs(1);

/// Whose output it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// Role (`--role`).
    pub role: String,
    /// Index among the workers of this node.
    pub local_rank: u32,
    /// Global rank.
    pub rank: u32,
    /// Name of this host.
    pub host: String,
}

/// What a worker is started with. `stdout` and `stderr` must be dropped after the worker was started: they hold the pipes
/// open.
#[derive(Debug)]
pub struct Streams {
    /// Standard output.
    pub(crate) stdout: Outlet,
    /// Standard error.
    pub(crate) stderr: Outlet,
    /// Where the worker writes what it died of (`TORCHELASTIC_ERROR_FILE`); does not exist yet.
    pub error_file: PathBuf,
    /// Its last words.
    pub tail: Tail,
}

/// What the pump's thread and its owner both see.
#[derive(Debug)]
pub(super) struct Shared {
    /// Origin of all moments.
    pub(super) origin: Instant,
    /// When any worker last said something.
    pub(super) last: Moment,
    /// What went wrong and was not taken yet.
    pub(super) troubles: Mutex<Vec<LogError>>,
    /// What waits for the readers of the consoles while the pump ends.
    pub(super) backlog: Mutex<Option<Backlog>>,
    /// Bytes that no console got, because their readers were given up.
    pub(super) lost: AtomicU64,
}

/// Output that its reader has not taken yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// "standard output", "standard error" or both.
    pub console: &'static str,
    /// Bytes that wait.
    pub bytes: u64,
}

/// The way to the pump's thread.
#[derive(Debug)]
pub(super) struct Door {
    orders: Sender<Order>,
    wake: Arc<EventFd>,
}

impl Door {
    /// Waits until what is in the pipes now has been read, if that can be: not when the console takes nothing.
    pub(super) fn catch_up(&self, limit: Duration) {
        let (done, read) = bounded(1);
        if self.order(Order::CatchUp(done)).is_ok() {
            let _late = read.recv_timeout(limit);
        }
    }

    fn order(&self, order: Order) -> Result<(), LogError> {
        self.orders.send(order).map_err(|_gone| LogError::Gone)?;
        // A counter that is full wakes as well.
        let _full = self.wake.write(1);
        Ok(())
    }
}

/// Reads the output of all workers of a node, in one thread. Dropping it writes out what was read, as far as the consoles take
/// it within a moment; see [`Self::finish`].
#[derive(Debug)]
pub struct Pump {
    plan: LogPlan,
    consoles: ConsoleKinds,
    needles: [Option<Needles>; 2],
    attempt: Mutex<Option<(u32, Attempt)>>,
    door: Arc<Door>,
    shared: Arc<Shared>,
    /// Hangs up when the thread has ended.
    ended: io::PipeReader,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    /// Starts the thread; its consoles are this process's standard output and error.
    pub fn start(plan: LogPlan) -> Result<Self, LogError> {
        let copy = |fd: io::Result<OwnedFd>| fd.map_err(system("copy the launcher's own streams"));
        let out = copy(io::stdout().as_fd().try_clone_to_owned())?;
        let err = copy(io::stderr().as_fd().try_clone_to_owned())?;
        Self::start_on(plan, out, err)
    }

    /// The same with other consoles.
    pub fn start_on(plan: LogPlan, out: OwnedFd, err: OwnedFd) -> Result<Self, LogError> {
        let origin = Instant::now();
        let shared = Arc::new(Shared {
            origin,
            last: Moment::never(origin),
            troubles: Mutex::default(),
            backlog: Mutex::default(),
            lost: AtomicU64::new(0),
        });
        let kinds = ConsoleKinds::of(&out, &err);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_flags(flags).map_err(io::Error::from).map_err(system("make an eventfd"))?);
        let (orders, incoming) = unbounded();
        let (ended, alive) = io::pipe().map_err(system("make a pipe"))?;
        let files = Files::new(plan.kept_bytes_max);
        let reader = Reader::new(incoming, Arc::clone(&wake), Arc::clone(&shared), Consoles::new(out, err), files)
            .map_err(system("make an epoll instance"))?;
        let body = move || {
            let _alive = alive;
            reader.run();
        };
        let thread = std::thread::Builder::new().name("enn-logs".into()).spawn(body);
        let thread = Some(thread.map_err(system("start a thread"))?);
        let needles = [Needles::new(&plan.stdout_filters), Needles::new(&plan.stderr_filters)];
        let door = Arc::new(Door { orders, wake });
        Ok(Self { plan, consoles: kinds, needles, attempt: Mutex::default(), door, shared, ended, thread })
    }

    /// Makes the files and pipes of one worker in one attempt.
    pub fn open(&self, attempt: u32, who: &Who) -> Result<Streams, LogError> {
        let attempt = self.attempt(attempt)?;
        let dir = attempt.rank(who.local_rank)?;
        let said = Said::nothing(self.shared.origin);
        let [out, err] = [Name::Out, Name::Err].map(|name| self.plan.route(name, who.local_rank));
        let site = Site { who, attempt: &attempt, dir: &dir, said: &said };
        let (stdout, stderr) = if self.consoles.same && out.is_plain() && err.is_plain() {
            let both = self.stream(Carries::Both, out, &site)?;
            let copy = both.try_clone().map_err(system("copy a pipe"))?;
            (both, copy)
        } else {
            (self.stream(Carries::Out, out, &site)?, self.stream(Carries::Err, err, &site)?)
        };
        let tail = Tail::new(said, Arc::clone(&self.door));
        Ok(Streams { stdout, stderr, error_file: layout::error_file(&dir), tail })
    }

    /// Writes a line to standard error, never inside a line of a worker. It comes when it is its turn; see `settle`.
    pub fn say(&self, line: String) -> Result<(), LogError> {
        self.door.order(Order::Say(line))
    }

    /// When any worker last wrote something that passed through here; streams that are inherited do not.
    #[must_use]
    pub fn last_output(&self) -> Option<Instant> {
        self.shared.last.get()
    }

    /// Waits until everything that was written before this call has reached files, tails and consoles, and an unfinished
    /// line on the console of standard error is ended: what is printed next comes after it. False when `deadline` came
    /// first. Does not wait for pipes to be closed: what a worker left behind may hold them for ever.
    pub fn settle(&self, deadline: Instant) -> bool {
        let (done, settled) = bounded(1);
        self.door.order(Order::Settle(done)).is_ok() && settled.recv_deadline(deadline).is_ok()
    }

    /// The consoles' windows have another size: the terminals of the workers get it too.
    pub fn resize(&self) {
        // A thread that is gone has no terminals.
        let _gone = self.door.order(Order::Resize);
    }

    /// Begins the end: what was written is brought to files and consoles, however long these take. [`Self::ended`] tells when
    /// it is done. What is opened after this may not be read.
    pub fn finish(&self) {
        // A thread that is gone has ended.
        let _gone = self.door.order(Order::End);
    }

    /// After [`Self::finish`]: what the consoles do not take at once is not written to them any more; files are still completed.
    pub fn give_up_consoles(&self) {
        let _gone = self.door.order(Order::GiveUp);
    }

    /// Is ready to be read when everything has arrived, or was given up.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// What the readers of the consoles have not taken yet, while the end is waited for.
    #[must_use]
    pub fn backlog(&self) -> Option<Backlog> {
        *self.shared.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that no console got because they were given up.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Waits for the end; whether it came in time.
    fn ended_by(&self, deadline: Instant) -> bool {
        let mut fds = [PollFd::new(self.ended(), PollFlags::POLLIN)];
        process::wait_ready(&mut fds, Some(deadline)).is_ok() && fds[0].any().unwrap_or(true)
    }

    /// What went wrong since the last call: a full disk, a closed console; each told once.
    #[must_use]
    pub fn take_troubles(&self) -> Vec<LogError> {
        std::mem::take(&mut *self.shared.troubles.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn attempt(&self, number: u32) -> Result<Attempt, LogError> {
        let mut current = self.attempt.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((was, attempt)) = &*current
            && *was == number
        {
            return Ok(attempt.clone());
        }
        let attempt = Attempt::create(&self.plan.dir, number)?;
        if self.needles[0].is_some() {
            layout::touch(attempt.filtered_stdout())?;
        }
        if self.needles[1].is_some() {
            layout::touch(attempt.filtered_stderr())?;
        }
        Ok(current.insert((number, attempt)).1.clone())
    }

    fn stream(&self, carries: Carries, route: Route, site: &Site<'_>) -> Result<Outlet, LogError> {
        let name = carries.name();
        let terminal = self.consoles.terminals[name.index()].as_ref().filter(|_| route.is_plain());
        if carries == Carries::Out && !route.filed {
            return if route.shown {
                Ok(Outlet::Inherited)
            } else {
                Outlet::nowhere().map_err(system("open /dev/null"))
            };
        }
        let (file, filtered, needles) = match name {
            Name::Out => (layout::STDOUT, site.attempt.filtered_stdout(), &self.needles[0]),
            Name::Err => (layout::STDERR, site.attempt.filtered_stderr(), &self.needles[1]),
        };
        let file = if route.filed { Some(layout::touch(site.dir.join(file))?) } else { None };
        let (source, write) = match terminal {
            Some(terminal) => process::terminal_pair(terminal.as_fd()).map_err(system("make a terminal"))?,
            None => io::pipe().map(|(read, write)| (read.into(), write.into())).map_err(system("make a pipe"))?,
        };
        // What the worker does with its end is its own affair.
        let flags = fcntl(&source, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(io::Error::from);
        flags.map_err(system("set the flags of a pipe"))?;
        self.door.order(Order::Add(Box::new(Stream {
            source,
            carries,
            terminal: terminal.is_some(),
            said: site.said.clone(),
            file,
            copy: !route.teed && !route.redirected,
            shown: route.shown,
            prefix: if route.teed { prefix(self.plan.prefix.as_deref(), site.who) } else { Vec::new() },
            filter: needles.clone().filter(|_| route.teed && route.shown).map(|texts| (Filter::new(texts), filtered)),
            lines: Lines::default(),
            show_part_at: None,
            queued: false,
            owed: 0,
            paused: false,
        })))?;
        Ok(Outlet::To(write))
    }
}

/// Where a worker's streams are set up.
struct Site<'a> {
    who: &'a Who,
    attempt: &'a Attempt,
    dir: &'a Path,
    said: &'a Said,
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
