//! Everything of the agent that the type system cannot check: fork hooks, pidfds, the control page's mapping, signal
//! handlers, the guard process.
//!
//! **Invariant:** what runs between fork and exec, in a signal handler or in the guard calls async-signal-safe functions
//! only and takes no lock and no memory.

use enn_common::wire::control::{ControlPage, PAGE_BYTES};
use nix::{
    errno::Errno,
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, ProtFlags, mmap, munmap},
        signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::{Pid, ftruncate},
};
use std::{
    ffi::c_void,
    io::{self, Read, Write},
    num::NonZeroUsize,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::Command,
    ptr::NonNull,
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

/// A control page shared with one worker.
#[derive(Debug)]
pub(super) struct Page {
    fd: OwnedFd,
    at: NonNull<c_void>,
}

impl Page {
    /// A fresh page with its magic written.
    pub(super) fn create() -> io::Result<Self> {
        let fd = memfd_create("enn-control", MFdFlags::MFD_CLOEXEC)?;
        ftruncate(&fd, PAGE_BYTES as i64)?;
        let length = NonZeroUsize::new(PAGE_BYTES).ok_or(Errno::EINVAL)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a descriptor with PAGE_BYTES bytes that nobody
        // can shrink but the worker we start; it is unmapped in Drop only.
        let at = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &fd, 0)? };
        let page = Self { fd, at };
        ControlPage::create(page.words()).map_err(io::Error::other)?;
        Ok(page)
    }

    /// The page's fields.
    pub(super) fn fields(&self) -> Option<ControlPage<'_>> {
        ControlPage::open(self.words()).ok()
    }

    /// Descriptor for the worker.
    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn words(&self) -> &[AtomicU64] {
        let words = PAGE_BYTES / size_of::<AtomicU64>();
        // SAFETY: the mapping is PAGE_BYTES long, page-aligned and lives as long as self; AtomicU64 allows the changes
        // that the other process makes, and every bit pattern is a u64.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast::<AtomicU64>(), words) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped in `create` with this length; the slices borrowed from self are gone.
        let _mapped = unsafe { munmap(self.at, PAGE_BYTES) };
    }
}

/// Makes the process of `command` a group of its own that dies with this thread and inherits descriptor `inherit`.
pub(super) fn bind_to_parent(command: &mut Command, inherit: RawFd) {
    let parent = Pid::this().as_raw();
    command.process_group(0);
    let before_exec = move || {
        // SAFETY: prctl, getppid and fcntl are async-signal-safe and touch this child only.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the line above: then no signal will come.
            if libc::getppid() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            if libc::fcntl(inherit, libc::F_SETFD, 0) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the hook allocates nothing, takes no lock and calls async-signal-safe functions only.
    unsafe { command.pre_exec(before_exec) };
}

/// A descriptor that becomes readable when the child `pid`, not yet reaped, ends.
pub(super) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the child ended, without reaping it: its process id, and its group's, stay taken.
pub(super) fn has_ended(pid: u32) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    !matches!(waitid(Id::Pid(Pid::from_raw(pid.cast_signed())), flags), Ok(WaitStatus::StillAlive))
}

/// Sends a signal to the process group led by `pid`. The leader must not have been reaped.
pub(super) fn signal_group(pid: u32, signal: Signal) {
    // A group that is gone already is what was wanted.
    let _gone = nix::sys::signal::killpg(Pid::from_raw(pid.cast_signed()), signal);
}

/// Where the handler writes the number of a signal that came; -1 while none is installed.
static SIGNAL_PIPE: AtomicI32 = AtomicI32::new(-1);

/// Signals that ask to stop.
const STOP_SIGNALS: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

extern "C" fn on_signal(number: libc::c_int) {
    let fd = SIGNAL_PIPE.load(Ordering::Relaxed);
    let errno = Errno::last();
    let byte = number.to_le_bytes()[0];
    // SAFETY: write is async-signal-safe; the byte lives on this stack; a closed or full pipe is an error we ignore.
    unsafe { libc::write(fd, (&raw const byte).cast(), 1) };
    errno.set();
}

/// Signals that ask to stop, as bytes in a pipe. The handlers before are put back when this is dropped.
///
/// Not the crate ctrlc: it does not tell which signal came, and the exit codes of SIGINT and SIGTERM differ.
#[derive(Debug)]
pub(super) struct Signals {
    read: io::PipeReader,
    _write: io::PipeWriter,
    before: Vec<(Signal, SigAction)>,
}

impl Signals {
    /// Takes over the stop signals of the process; `None` when another agent of this process already has.
    pub(super) fn install() -> io::Result<Option<Self>> {
        let (read, write) = io::pipe()?;
        for fd in [read.as_raw_fd(), write.as_raw_fd()] {
            // SAFETY: fcntl on a descriptor we own.
            if unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        if SIGNAL_PIPE.compare_exchange(-1, write.as_raw_fd(), Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return Ok(None);
        }
        let mut signals = Self { read, _write: write, before: Vec::new() };
        let action = SigAction::new(SigHandler::Handler(on_signal), SaFlags::SA_RESTART, SigSet::empty());
        for signal in STOP_SIGNALS {
            // SAFETY: the handler is async-signal-safe, see there.
            let before = unsafe { sigaction(signal, &action) }?;
            signals.before.push((signal, before));
        }
        Ok(Some(signals))
    }

    /// Readable when a signal came.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.read.as_fd()
    }

    /// Signals that came since the last call.
    pub(super) fn take(&mut self) -> Vec<Signal> {
        let mut bytes = [0; 64];
        let read = self.read.read(&mut bytes).unwrap_or(0);
        bytes[..read].iter().filter_map(|byte| Signal::try_from(i32::from(*byte)).ok()).collect()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, before) in self.before.drain(..) {
            // SAFETY: puts back what was there.
            let _refused = unsafe { sigaction(signal, &before) };
        }
        SIGNAL_PIPE.store(-1, Ordering::SeqCst);
    }
}

/// Groups the guard can hold.
const GUARDED_MAX: usize = 4096;

/// A process that outlives a killed launcher by a moment, and kills the groups of its workers: PDEATHSIG reaches the workers
/// themselves, this reaches what they started.
#[derive(Debug)]
pub(super) struct Guard {
    write: Option<io::PipeWriter>,
    pid: Pid,
}

impl Guard {
    /// Forks the guard.
    pub(super) fn start() -> io::Result<Self> {
        let (read, write) = io::pipe()?;
        let fd = read.as_raw_fd();
        // SAFETY: the child runs `guard`, which is async-signal-safe and never returns.
        match unsafe { nix::unistd::fork() }? {
            nix::unistd::ForkResult::Parent { child } => Ok(Self { write: Some(write), pid: child }),
            nix::unistd::ForkResult::Child => guard(fd),
        }
    }

    /// Guards the group led by `pid`.
    pub(super) fn add(&mut self, pid: u32) {
        self.tell(pid.cast_signed());
    }

    /// Forgets the group; call before its leader is reaped.
    pub(super) fn remove(&mut self, pid: u32) {
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

fn guard(pipe: RawFd) -> ! {
    let mut groups = [0i32; GUARDED_MAX];
    // SAFETY: async-signal-safe functions on this process's own descriptors, memory of this frame and signals to groups that
    // the launcher has not reaped; `_exit` ends the process without running the launcher's destructors.
    unsafe {
        libc::setpgid(0, 0);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"enn-guard".as_ptr());
        // Descriptors of the launcher held here would keep its sockets and pipes open.
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
        libc::_exit(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_shared_and_has_its_magic() {
        let page = Page::create().unwrap();
        let path = format!("/proc/self/fd/{}", page.fd());
        page.fields().unwrap().set_stop();
        let bytes = std::fs::read(path).unwrap();
        assert_eq!((bytes.len(), &bytes[..8], bytes[8]), (PAGE_BYTES, b"ENNctl01".as_slice(), 1));
    }

    #[test]
    fn a_child_is_seen_dead_before_it_is_reaped() {
        let page = Page::create().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read x"]).stdin(std::process::Stdio::piped());
        bind_to_parent(&mut command, page.fd());
        let mut child = command.spawn().unwrap();
        let fd = pidfd(child.id()).unwrap();
        assert!(!has_ended(child.id()));
        assert_eq!(
            nix::unistd::getpgid(Some(Pid::from_raw(child.id().cast_signed()))).unwrap().as_raw(),
            child.id().cast_signed()
        );
        signal_group(child.id(), Signal::SIGKILL);
        use std::os::fd::AsFd;
        let mut poll = [nix::poll::PollFd::new(fd.as_fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut poll, 5000u16).unwrap(), 1);
        assert!(has_ended(child.id()));
        child.wait().unwrap();
    }
}
