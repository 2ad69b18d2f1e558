//! Process features beyond the standard library: pidfds, signal handlers, the guard process.
//!
//! **Invariant:** code in a signal handler or in the guard calls async-signal-safe functions
//! only and takes no lock and no memory.

use super::{
    cgroup::{self, Cgroup},
    sweep::{self, Mark},
};
use enn_common::fs::seats;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    pty::{OpenptyResult, openpty},
    sched::CpuSet,
    sys::{
        signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
        termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::Pid,
};
use std::{
    io::{self, Read, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    sync::atomic::{AtomicI32, Ordering},
};

/// Properties that a process receives between fork and exec, besides a group of its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Binding {
    pub(super) inherit: Option<RawFd>,
    /// CPUs on which the process may run.
    pub(super) cpus: Option<CpuSet>,
    /// `cgroup.procs` of the group into which the process moves.
    pub(super) cgroup: Option<RawFd>,
    /// Whether the process leads a session of its own, and so has no controlling terminal.
    pub(super) session: bool,
    /// Whether the process continues when this one ends.
    pub(super) outlives: bool,
}

impl Binding {
    /// Makes a binding to CPUs and a control group, which must outlive the start of the process.
    pub fn new(cpus: Option<CpuSet>, cgroup: Option<&Cgroup>) -> Self {
        Self { cpus, cgroup: cgroup.map(Cgroup::procs), ..Self::default() }
    }

    /// Adds a new session: a terminal does not stop the process when it reads from it.
    pub fn in_new_session(self) -> Self {
        Self { session: true, ..self }
    }

    /// Lets the process continue when this one ends.
    pub(super) fn outliving(self) -> Self {
        Self { outlives: true, ..self }
    }

    /// Makes a binding with an inherited descriptor only.
    pub fn inheriting(fd: RawFd) -> Self {
        Self { inherit: Some(fd), ..Self::default() }
    }

    /// Moves a process that has not begun its work into the control group and to the CPUs.
    ///
    /// # Errors
    /// The process may not use the CPUs.
    pub(super) fn apply(&self, pid: Pid) -> io::Result<()> {
        if let Some(cgroup) = self.cgroup {
            // SAFETY: `new` requires that the group outlives the start of the process.
            let cgroup = unsafe { BorrowedFd::borrow_raw(cgroup) };
            // The write fails when the group was removed: the process is still bound in every other way.
            let _refused = nix::unistd::write(cgroup, pid.to_string().as_bytes());
        }
        match &self.cpus {
            Some(cpus) => Ok(nix::sched::sched_setaffinity(pid, cpus)?),
            None => Ok(()),
        }
    }
}

/// Returns a signal mask of a process under its name in proc(5), such as `SigCgt`: bit n - 1 is signal n. Zero without such a process.
pub fn signal_mask(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Returns the descriptors beyond the standard streams that an executed program inherits, in order.
pub fn inherited_descriptors() -> io::Result<Vec<RawFd>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        let Some(number) = number.filter(|number| *number > libc::STDERR_FILENO) else { continue };
        // SAFETY: fcntl on a number that is no descriptor any more, as the folder's own, only returns an error.
        let flags = fcntl(unsafe { BorrowedFd::borrow_raw(number) }, FcntlArg::F_GETFD);
        if flags.is_ok_and(|flags| !FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC)) {
            found.push(number);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Returns a descriptor of its own for one that this process was started with, by its number. Programs that this process starts inherit
/// neither.
///
/// # Errors
/// There is no such descriptor.
pub fn given_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl on a number that is no descriptor only returns an error.
    let given = unsafe { BorrowedFd::borrow_raw(number.max(0)) };
    let own = fcntl(given, FcntlArg::F_DUPFD_CLOEXEC(libc::STDERR_FILENO + 1))?;
    if number > libc::STDERR_FILENO {
        fcntl(given, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(own) })
}

/// Returns the signals that this process ignores, and that executed programs will ignore too.
pub fn ignored_signals() -> Vec<i32> {
    let mask = signal_mask(std::process::id(), "SigIgn");
    // SIGPIPE gets its default before any program is executed.
    (1..=64).filter(|number| mask >> (number - 1) & 1 == 1 && *number != libc::SIGPIPE).collect()
}

/// Returns a descriptor of the process that has the id `pid` now; it becomes readable when that process ends.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a raw terminal as (end to read, end for a program to write to). It changes no byte, and has the window
/// size of `like`.
pub fn terminal_pair(like: BorrowedFd<'_>) -> io::Result<(OwnedFd, OwnedFd)> {
    let OpenptyResult { master, slave } = openpty(None, None)?;
    for fd in [&master, &slave] {
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    }
    let mut settings = tcgetattr(&slave)?;
    cfmakeraw(&mut settings);
    tcsetattr(&slave, SetArg::TCSANOW, &settings)?;
    copy_window_size(like, master.as_fd());
    Ok((master, slave))
}

/// Gives the terminal `to` the window size of the terminal `from`. A terminal without a size keeps its own.
pub fn copy_window_size(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    let mut size = MaybeUninit::<libc::winsize>::zeroed();
    // SAFETY: both calls read or write one winsize behind the pointer, which lives here; zeros are a winsize.
    unsafe {
        if libc::ioctl(from.as_raw_fd(), libc::TIOCGWINSZ, size.as_mut_ptr()) == 0 {
            libc::ioctl(to.as_raw_fd(), libc::TIOCSWINSZ, size.as_ptr());
        }
    }
}

/// Returns the columns of a terminal's window, when it has a size.
pub fn window_columns(terminal: BorrowedFd<'_>) -> Option<u16> {
    let mut size = MaybeUninit::<libc::winsize>::zeroed();
    // SAFETY: the call writes one winsize behind the pointer, which lives here; zeros are a winsize.
    let (status, size) = unsafe {
        let status = libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, size.as_mut_ptr());
        (status, size.assume_init())
    };
    (status == 0).then_some(size.ws_col).filter(|columns| *columns > 0)
}

/// Returns the bytes that wait in a pipe or terminal; 0 when the system cannot tell.
pub fn unread_bytes(fd: BorrowedFd<'_>) -> u64 {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD writes one integer behind the pointer.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut count) };
    if status == 0 { u64::try_from(count).unwrap_or(0) } else { 0 }
}

/// Returns the status of a child without reaping it: the ids of process and group stay in use.
fn status(pid: u32) -> nix::Result<WaitStatus> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(Pid::from_raw(pid.cast_signed())), flags)
}

pub(super) fn has_ended(pid: u32) -> bool {
    !matches!(status(pid), Ok(WaitStatus::StillAlive))
}

pub(super) fn ended_well(pid: u32) -> bool {
    matches!(status(pid), Ok(WaitStatus::Exited(_, 0)))
}

/// Sends a signal to the process group led by `pid`. The leader must not have been reaped.
pub(super) fn signal_group(pid: u32, signal: Signal) {
    // A group that is gone already needs no signal.
    let _gone = nix::sys::signal::killpg(Pid::from_raw(pid.cast_signed()), signal);
}

/// Makes this process the parent of orphaned descendants, so that none escapes by a double fork.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

/// Descriptor to which the handler writes a signal's number; -1 while none is installed.
static SIGNAL_PIPE: AtomicI32 = AtomicI32::new(-1);

/// Signals that stop a run by default.
pub const STOP_SIGNALS: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

extern "C" fn on_signal(number: libc::c_int) {
    let fd = SIGNAL_PIPE.load(Ordering::Relaxed);
    let errno = Errno::last();
    let byte = number.to_le_bytes()[0];
    // SAFETY: write is async-signal-safe; the byte lives on this stack; a closed or full pipe is an error we ignore.
    unsafe { libc::write(fd, (&raw const byte).cast(), 1) };
    errno.set();
}

/// Stop signals, as bytes in a pipe. The previous handlers are restored when this is dropped.
///
/// The crate ctrlc is not used: it does not report which signal came, and the exit codes of SIGINT and SIGTERM differ.
#[derive(Debug)]
pub struct Signals {
    read: io::PipeReader,
    _write: io::PipeWriter,
    before: Vec<(Signal, SigAction)>,
}

impl Signals {
    /// Takes over these signals of the process; `None` when another agent of this process already has.
    pub fn install(which: &[Signal]) -> io::Result<Option<Self>> {
        let (read, write) = io::pipe()?;
        for fd in [read.as_fd(), write.as_fd()] {
            fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        if SIGNAL_PIPE.compare_exchange(-1, write.as_raw_fd(), Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return Ok(None);
        }
        let mut signals = Self { read, _write: write, before: Vec::new() };
        let action = SigAction::new(SigHandler::Handler(on_signal), SaFlags::SA_RESTART, SigSet::empty());
        for signal in which.iter().copied() {
            // SAFETY: the handler is async-signal-safe, see there.
            let before = unsafe { sigaction(signal, &action) }?;
            // A process started by `nohup` outlives its terminal.
            if signal == Signal::SIGHUP && matches!(before.handler(), SigHandler::SigIgn) {
                // SAFETY: restores the previous handler.
                unsafe { sigaction(signal, &before) }?;
                continue;
            }
            signals.before.push((signal, before));
        }
        Ok(Some(signals))
    }

    /// Returns a descriptor that is readable when a signal came.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }

    /// Returns the signals that came since the last call.
    pub fn take(&mut self) -> Vec<Signal> {
        let mut bytes = [0; 64];
        let read = self.read.read(&mut bytes).unwrap_or(0);
        bytes[..read].iter().filter_map(|byte| Signal::try_from(i32::from(*byte)).ok()).collect()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, before) in self.before.drain(..) {
            // SAFETY: restores the previous handler.
            let _refused = unsafe { sigaction(signal, &before) };
        }
        SIGNAL_PIPE.store(-1, Ordering::SeqCst);
    }
}

/// Keeps `signal` from ending this process from now on, even while no [`Signals`] are installed. Programs started later are not
/// affected.
pub fn outlive(signal: Signal) {
    let action = SigAction::new(SigHandler::Handler(on_signal), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler is async-signal-safe, see there; without a pipe it does nothing.
    let _refused = unsafe { sigaction(signal, &action) };
}

/// Limit on the groups that the guard holds.
const GUARDED_MAX: usize = 4096;

/// A process that briefly outlives a killed launcher, and kills the groups of its workers: PDEATHSIG reaches the workers
/// themselves, the guard reaches the processes that they started. It removes what they left in memory.
#[derive(Debug)]
pub struct Guard {
    write: Option<io::PipeWriter>,
    pid: Pid,
}

impl Guard {
    /// Forks the guard. With a mark and a control group, it also kills every process that carries the one or is in the other.
    pub fn start(mark: Option<&Mark>, cgroup: Option<&Cgroup>) -> io::Result<Self> {
        let (read, write) = io::pipe()?;
        let fd = read.as_raw_fd();
        // SAFETY: the child runs `guard`, which is async-signal-safe and never returns.
        match unsafe { nix::unistd::fork() }? {
            nix::unistd::ForkResult::Parent { child } => Ok(Self { write: Some(write), pid: child }),
            nix::unistd::ForkResult::Child => guard(fd, mark, cgroup),
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// Guards the group led by `pid`.
    pub(crate) fn add(&mut self, pid: u32) {
        self.tell(pid.cast_signed());
    }

    /// Forgets the group; call before its leader is reaped.
    pub(crate) fn remove(&mut self, pid: u32) {
        self.tell(-pid.cast_signed());
    }

    fn tell(&mut self, number: i32) {
        if let Some(write) = &mut self.write {
            // Without a guard the workers still have PDEATHSIG.
            let _dead = write.write_all(&number.to_le_bytes());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.write = None;
        let _reaped = nix::sys::wait::waitpid(self.pid, None);
    }
}

fn guard(pipe: RawFd, mark: Option<&Mark>, cgroup: Option<&Cgroup>) -> ! {
    let mut groups = [0i32; GUARDED_MAX];
    // SAFETY: async-signal-safe functions on this process's own descriptors, memory of this frame and signals to groups that
    // the launcher has not reaped; `_exit` ends the process without running the launcher's destructors.
    unsafe {
        libc::setpgid(0, 0);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"enn-guard".as_ptr());
        // Descriptors of the launcher kept open here would keep its sockets and pipes open.
        libc::dup2(pipe, 0);
        libc::syscall(libc::SYS_close_range, 1u32, u32::MAX, 0u32);
        let mut word = [0u8; 4];
        loop {
            let read = libc::read(0, word.as_mut_ptr().cast(), word.len());
            if read < 0 && Errno::last_raw() == libc::EINTR {
                continue;
            }
            if read != 4 {
                break;
            }
            let number = i32::from_le_bytes(word);
            let (from, to) = if number > 0 { (0, number) } else { (-number, 0) };
            for group in &mut groups {
                if *group == from {
                    *group = to;
                    break;
                }
            }
        }
        for group in groups {
            if group > 0 {
                libc::kill(-group, libc::SIGKILL);
            }
        }
        // glibc makes its allocator usable again after a fork, and this process has no other thread.
        if let Some(mark) = mark {
            sweep::kill_marked(mark);
        }
        if let Some(cgroup) = cgroup {
            cgroup::remove(cgroup.path());
        }
        // Last, since the launcher's locks are released when it is gone.
        seats::remove_dead();
        libc::_exit(0);
    }
}
