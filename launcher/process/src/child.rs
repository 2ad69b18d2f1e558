//! A started process and its exit.
//!
//! **Invariant:** signals go to the whole group, and only while the leader is not reaped, so that its process id cannot belong
//! to another process.

use super::{
    sys,
    unix::{self, Binding, Guard},
};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::Signal,
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    process::Command,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// The process ended with this exit code.
    Code(i32),
    Signal(i32),
}

impl Exit {
    /// Returns the code, or else the signal.
    pub fn code_or_signal(self) -> (Option<i32>, Option<i32>) {
        match self {
            Self::Code(code) => (Some(code), None),
            Self::Signal(signal) => (None, Some(signal)),
        }
    }
}

/// The parent of a process that is no child of this one. It reaps the process when this is dropped, and not before.
pub trait Parent: std::fmt::Debug {
    /// Returns the exit of a process that has ended.
    ///
    /// # Errors
    /// The parent is gone or does not answer.
    fn exit(&mut self) -> io::Result<Exit>;
}

/// Reasons for which a process could not be started.
#[derive(Debug)]
pub enum StartError {
    /// The program cannot be started.
    Spawn(io::Error),
    /// The process cannot be watched; it was killed.
    Watch(io::Error),
}

/// Destination of an output stream of a process.
#[derive(Debug)]
pub enum Outlet {
    Inherited,
    To(OwnedFd),
}

impl From<File> for Outlet {
    fn from(file: File) -> Self {
        Self::To(file.into())
    }
}

impl From<io::PipeWriter> for Outlet {
    fn from(pipe: io::PipeWriter) -> Self {
        Self::To(pipe.into())
    }
}

#[cfg(test)]
impl From<Outlet> for std::process::Stdio {
    fn from(outlet: Outlet) -> Self {
        match outlet {
            Outlet::Inherited => Self::inherit(),
            Outlet::To(fd) => fd.into(),
        }
    }
}

impl Outlet {
    /// Discards the stream's bytes.
    ///
    /// # Errors
    /// /dev/null cannot be opened.
    pub(crate) fn nowhere() -> io::Result<Self> {
        File::options().write(true).open("/dev/null").map(Self::from)
    }

    /// Returns a second handle on the destination.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Inherited => Ok(Self::Inherited),
            Self::To(fd) => fd.try_clone().map(Self::To),
        }
    }

    fn fd(&self) -> Option<RawFd> {
        match self {
            Self::Inherited => None,
            Self::To(fd) => Some(fd.as_raw_fd()),
        }
    }
}

/// Source of a process's standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inlet {
    /// The launcher's own standard input.
    Inherited,
    /// Standard input is empty (/dev/null).
    Empty,
}

/// The standard streams of a process.
#[derive(Debug)]
pub struct Outlets {
    pub stdin: Inlet,
    pub stdout: Outlet,
    pub stderr: Outlet,
}

impl Outlets {
    /// Returns the descriptors of standard input, output and error.
    pub(crate) fn fds(&self) -> [RawFd; 3] {
        let own = |outlet: &Outlet, number| outlet.fd().unwrap_or(number);
        [libc::STDIN_FILENO, own(&self.stdout, libc::STDOUT_FILENO), own(&self.stderr, libc::STDERR_FILENO)]
    }
}

/// A process that leads a group of its own. Dropping it kills the group.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    pidfd: OwnedFd,
    exit: Option<Exit>,
    /// The parent that reaps the process; `None`: it is a child of this process.
    parent: Option<Box<dyn Parent>>,
}

impl Process {
    /// Starts `command` (program, arguments, variables), bound to this thread's life, and guards its group.
    pub fn start(command: &Command, outlets: Outlets, binding: Binding, guard: &mut Guard) -> Result<Self, StartError> {
        let process = Self::start_unguarded(command, outlets, binding)?;
        guard.add(process.pid());
        Ok(process)
    }

    /// Starts a process without the guard: processes that it starts may outlive a launcher that is killed.
    pub(crate) fn start_unguarded(command: &Command, outlets: Outlets, binding: Binding) -> Result<Self, StartError> {
        let pid = spawn(command, &outlets, binding).map_err(StartError::Spawn)?;
        match unix::pidfd(pid.as_raw().cast_unsigned()) {
            Ok(pidfd) => Ok(Self { pid, pidfd, exit: None, parent: None }),
            Err(error) => {
                unix::signal_group(pid.as_raw().cast_unsigned(), Signal::SIGKILL);
                let _reaped = waitpid(pid, None);
                Err(StartError::Watch(error))
            }
        }
    }

    /// Starts a process that continues when this one ends, and that nothing here watches. Returns its id.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(crate) fn detach(command: &Command, outlets: &Outlets, binding: Binding) -> io::Result<u32> {
        spawn(command, outlets, binding.outliving()).map(|pid| pid.as_raw().cast_unsigned())
    }

    /// Takes over a process that another process forked for this one, and that leads a group of its own; it gets the CPUs and the
    /// control group of `binding`. It must not have begun its work. Without a `parent` it must be a child of this process.
    ///
    /// # Errors
    /// The process cannot be watched, or may not use the CPUs.
    pub(crate) fn adopt(
        pid: u32,
        parent: Option<Box<dyn Parent>>,
        binding: &Binding,
        guard: &mut Guard,
    ) -> io::Result<Self> {
        let pidfd = unix::pidfd(pid)?;
        let pid = Pid::from_raw(pid.cast_signed());
        binding.apply(pid)?;
        let process = Self { pid, pidfd, exit: None, parent };
        guard.add(process.pid());
        Ok(process)
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// Returns a descriptor that is readable when the process has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Returns the exit; `None` until the process is reaped.
    pub fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// Signals the group, if the process has not been reaped.
    pub fn signal(&self, signal: Signal) {
        if self.exit.is_none() {
            unix::signal_group(self.pid(), signal);
        }
    }

    /// Reaps the process if it has ended, after killing the rest of its group. `None` when it runs or was reaped before.
    pub fn reap(&mut self, guard: &mut Guard) -> Option<Exit> {
        self.reap_and(guard, false)
    }

    /// Reaps the process as [`Process::reap`] does, but the rest of its group continues when it ended with code 0.
    pub fn reap_alone(&mut self, guard: &mut Guard) -> Option<Exit> {
        self.reap_and(guard, true)
    }

    fn reap_and(&mut self, guard: &mut Guard, spare_if_well: bool) -> Option<Exit> {
        if self.exit.is_some() || !self.has_ended() {
            return None;
        }
        // A parent that does not answer is gone, and its children were killed with it.
        let reported = self.parent.as_mut().map(|parent| parent.exit().unwrap_or(Exit::Signal(libc::SIGKILL)));
        let ended_well = reported.map_or_else(|| unix::ended_well(self.pid()), |exit| exit == Exit::Code(0));
        if !(spare_if_well && ended_well) {
            unix::signal_group(self.pid(), Signal::SIGKILL);
        }
        guard.remove(self.pid());
        self.exit = Some(reported.unwrap_or_else(|| self.wait()));
        self.parent = None;
        self.exit
    }

    /// Leaves the process to the system: its end is not waited for. For one that survives SIGKILL, and for a launcher that ends.
    pub fn leave(self) {
        // Dropping it would wait for its end.
        std::mem::forget(self);
    }

    fn has_ended(&self) -> bool {
        match self.parent {
            Some(_) => {
                let mut fds = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
                poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
            }
            None => unix::has_ended(self.pid()),
        }
    }

    fn wait(&self) -> Exit {
        match waitpid(self.pid, None) {
            Ok(WaitStatus::Exited(_, code)) => Exit::Code(code),
            Ok(WaitStatus::Signaled(_, signal, _)) => Exit::Signal(signal as i32),
            // Another SIGCHLD handler reaped it, or a signal without a name ended it: the exit is lost.
            _ => Exit::Code(-1),
        }
    }
}

fn spawn(command: &Command, outlets: &Outlets, binding: Binding) -> io::Result<Pid> {
    let input = match outlets.stdin {
        Inlet::Inherited => None,
        Inlet::Empty => Some(File::open("/dev/null")?),
    };
    let streams = [input.as_ref().map(AsRawFd::as_raw_fd), outlets.stdout.fd(), outlets.stderr.fd()];
    sys::spawn(command, streams, binding)
}

impl Drop for Process {
    /// Kills a process that was not reaped, so that a launcher that gives up early leaves none behind.
    fn drop(&mut self) {
        if self.exit.is_none() {
            unix::signal_group(self.pid(), Signal::SIGKILL);
            if self.parent.is_none() {
                let _reaped = waitpid(self.pid, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mark, wait_ready};
    use nix::poll::{PollFd, PollFlags};
    use std::{
        io::Read,
        time::{Duration, Instant},
    };

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn end(process: &mut Process, guard: &mut Guard) -> Exit {
        let mut fds = [PollFd::new(process.pidfd.as_fd(), PollFlags::POLLIN)];
        wait_ready(&mut fds, Some(Instant::now() + Duration::from_secs(20))).unwrap();
        process.reap(guard).expect("it ended within 20 s")
    }

    fn start(command: &Command, outlet: Outlet, guard: &mut Guard) -> Process {
        let outlets = Outlets { stdin: Inlet::Empty, stdout: outlet, stderr: Outlet::nowhere().unwrap() };
        Process::start(command, outlets, Binding::default(), guard).unwrap()
    }

    #[test]
    fn a_process_gets_its_variables_streams_and_group() {
        let mut guard = Guard::start(None, None).unwrap();
        let (mut read, write) = io::pipe().unwrap();
        let mut command =
            shell("read nothing; echo \"$GIVEN [$HOME] $(ps -o pgid= -p $$ | tr -d ' ') $$\"; trap '' PIPE; exit 7");
        command.env("GIVEN", "a b").env_remove("HOME");
        let mut process = start(&command, write.into(), &mut guard);
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        let pid = process.pid();
        assert_eq!(text.trim(), format!("a b [] {pid} {pid}"));
        assert_eq!(end(&mut process, &mut guard), Exit::Code(7));
        assert_eq!(process.reap(&mut guard), None, "it is reaped once");
    }

    #[test]
    fn a_process_leads_a_session_of_its_own_where_that_is_asked_for() {
        let mut guard = Guard::start(None, None).unwrap();
        for leads in [false, true] {
            let (mut read, write) = io::pipe().unwrap();
            let outlets = Outlets { stdin: Inlet::Empty, stdout: write.into(), stderr: Outlet::nowhere().unwrap() };
            let binding = if leads { Binding::default().in_new_session() } else { Binding::default() };
            let mut process = Process::start(&shell("ps -o sid= -p $$"), outlets, binding, &mut guard).unwrap();
            let mut text = String::new();
            read.read_to_string(&mut text).unwrap();
            let own = nix::unistd::getsid(None).unwrap().as_raw().cast_unsigned();
            assert_eq!(text.trim().parse(), Ok(if leads { process.pid() } else { own }));
            assert_eq!(end(&mut process, &mut guard), Exit::Code(0));
        }
    }

    #[test]
    fn a_process_is_seen_dead_and_dies_as_a_group() {
        let mut guard = Guard::start(None, None).unwrap();
        let (mut read, write) = io::pipe().unwrap();
        let mut process = start(&shell("sleep 100 & echo; wait"), write.into(), &mut guard);
        read.read_exact(&mut [0]).unwrap();
        assert_eq!((process.exit(), process.reap(&mut guard)), (None, None));
        process.signal(Signal::SIGKILL);
        assert_eq!(end(&mut process, &mut guard), Exit::Signal(9));
        // The other end is closed only when the sleep is gone too.
        assert_eq!(read.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn what_cannot_be_started_says_why_and_leaves_nobody() {
        let mut guard = Guard::start(None, None).unwrap();
        let errno = |program: &str, guard: &mut Guard| {
            let outlets = Outlets { stdin: Inlet::Empty, stdout: Outlet::Inherited, stderr: Outlet::Inherited };
            match Process::start(&Command::new(program), outlets, Binding::default(), guard) {
                Err(StartError::Spawn(error)) => error.raw_os_error(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(errno("no-such-program-anywhere", &mut guard), Some(libc::ENOENT));
        assert_eq!(errno("/no/such/program", &mut guard), Some(libc::ENOENT));
        assert_eq!(errno("/etc/passwd", &mut guard), Some(libc::EACCES));
    }

    #[test]
    fn a_mark_is_inherited() {
        let mut guard = Guard::start(None, None).unwrap();
        let mark = Mark::new(None);
        let (mut read, write) = io::pipe().unwrap();
        let mut command = shell("echo $ENN_LAUNCH");
        command.env(crate::MARK_VARIABLE, mark.value());
        let mut process = start(&command, write.into(), &mut guard);
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert_eq!(text.trim(), mark.value().to_str().unwrap());
        assert_eq!(end(&mut process, &mut guard), Exit::Code(0));
    }
}
