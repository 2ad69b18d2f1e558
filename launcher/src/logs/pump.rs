//! The door: hands a worker its standard output and error, and waits for what was written.

use super::{
    LogError, LogPlan, Std, Tail,
    console::Consoles,
    filter::{Filter, Needles},
    layout::{self, Attempt},
    lines::Lines,
    prefix::prefix,
    reader::{Order, Reader},
    stream::{Name, Stream},
    tail::{Moment, Said},
};
use crate::process::Outlet;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::eventfd::{EfdFlags, EventFd},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long the end of the pump waits for a console that takes nothing.
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

/// Reads the output of all workers of a node, in one thread. Dropping it writes out what was read.
#[derive(Debug)]
pub struct Pump {
    plan: LogPlan,
    needles: [Option<Needles>; 2],
    attempt: Mutex<Option<(u32, Attempt)>>,
    door: Arc<Door>,
    shared: Arc<Shared>,
    ended: Receiver<()>,
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
        let shared = Arc::new(Shared { origin, last: Moment::never(origin), troubles: Mutex::default() });
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_flags(flags).map_err(io::Error::from).map_err(system("make an eventfd"))?);
        let (orders, incoming) = unbounded();
        let (end, ended) = bounded(1);
        let reader = Reader::new(incoming, Arc::clone(&wake), Arc::clone(&shared), Consoles::new(out, err))
            .map_err(system("make an epoll instance"))?;
        let body = move || {
            reader.run();
            // Nobody listens when the owner has given up waiting.
            let _left = end.send(());
        };
        let thread = std::thread::Builder::new().name("enn-logs".into()).spawn(body);
        let thread = Some(thread.map_err(system("start a thread"))?);
        let needles = [Needles::new(&plan.stdout_filters), Needles::new(&plan.stderr_filters)];
        let door = Arc::new(Door { orders, wake });
        Ok(Self { plan, needles, attempt: Mutex::default(), door, shared, ended, thread })
    }

    /// Makes the files and pipes of one worker in one attempt.
    pub fn open(&self, attempt: u32, who: &Who) -> Result<Streams, LogError> {
        let attempt = self.attempt(attempt)?;
        let dir = attempt.rank(who.local_rank)?;
        let said = Said::nothing(self.shared.origin);
        let stdout = self.stream(Name::Out, who, (&attempt, &dir), &said)?;
        let stderr = self.stream(Name::Err, who, (&attempt, &dir), &said)?;
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

    fn stream(&self, name: Name, who: &Who, dirs: (&Attempt, &Path), said: &Said) -> Result<Outlet, LogError> {
        let (attempt, dir) = dirs;
        let of = |std: Std| if name == Name::Out { std.out } else { std.err };
        let teed = of(self.plan.tee.of(who.local_rank));
        let redirected = of(self.plan.redirects.of(who.local_rank)) && !teed;
        let shown = self.plan.shown(who.local_rank) && !redirected;
        let filed = teed || redirected || self.plan.keep;
        if name == Name::Out && !filed {
            return if shown { Ok(Outlet::Inherited) } else { Outlet::nowhere().map_err(system("open /dev/null")) };
        }
        let (file, filtered, needles) = match name {
            Name::Out => (layout::STDOUT, attempt.filtered_stdout(), &self.needles[0]),
            Name::Err => (layout::STDERR, attempt.filtered_stderr(), &self.needles[1]),
        };
        let file = if filed { Some(layout::touch(dir.join(file))?) } else { None };
        let (pipe, write) = pipe().map_err(system("make a pipe"))?;
        self.door.order(Order::Add(Box::new(Stream {
            pipe,
            name,
            said: said.clone(),
            file,
            shown,
            prefix: if teed { prefix(self.plan.prefix.as_deref(), who) } else { Vec::new() },
            filter: needles.clone().filter(|_| teed && shown).map(|needles| (Filter::new(needles), filtered)),
            lines: Lines::default(),
            show_part_at: None,
            queued: false,
            owed: 0,
            paused: false,
        })))?;
        Ok(write.into())
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        let asked = self.door.order(Order::End(Instant::now() + END_WAIT));
        // A write that blocks, to a terminal that was stopped or a disk that is gone, must not hold the launcher.
        let ended = self.ended.recv_timeout(2 * END_WAIT);
        if let Some(thread) = self.thread.take()
            && (asked.is_err() || ended.is_ok())
        {
            let _panicked = thread.join();
        }
    }
}

/// A pipe whose reading end does not block; what the worker does with its end is its own affair.
fn pipe() -> io::Result<(io::PipeReader, io::PipeWriter)> {
    let (read, write) = io::pipe()?;
    fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((read, write))
}

fn system(what: &'static str) -> impl Fn(io::Error) -> LogError {
    move |source| LogError::System { what, source }
}
