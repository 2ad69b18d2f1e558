//! A Python with our hook in front, or a run server of a warm one: what it is started with, and what it says.

use super::{Preload, frame::FrameReader, hook::Hook};
use crate::process::{Binding, Exit, Guard, Inlet, Outlet, Outlets, Process, StartError, variables_of, wait_ready};
use nix::{
    poll::{PollFd, PollFlags},
    sys::signal::Signal,
};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// Longest wait for the exit code of a process whose socket is closed, and for the end of one that was killed.
const LAST_WAIT: Duration = Duration::from_millis(200);
const KILL_WAIT: Duration = Duration::from_secs(2);
/// The hook's folder comes before what the workers themselves find.
pub(super) const PYTHONPATH: &str = "PYTHONPATH";
/// The least share of time that the scheduler knows for a session, sched(7).
const LEAST_TIME: &str = "19";
/// What a server of a run is to do.
pub(super) const IMPORT: &str = "serve";
/// Begins the names of variables that only the hook reads.
pub(super) const OURS: &str = "ENN_FORKSERVER_";

/// What the hook says once.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    /// What a Python has.
    Probe(Probed),
    /// The imports are done.
    Ready(Ready),
    /// No worker can be forked here.
    Refuse(String),
}

#[derive(Debug, Deserialize)]
pub(super) struct Probed {
    pub(super) found: BTreeMap<String, bool>,
    pub(super) refuse: Option<String>,
    /// Name of the interpreter as it was executed, by a wrapper or by us; bytes as digits, for they need not be text.
    pub(super) argv0: String,
    /// Its variables at its start, `NAME=VALUE` with a NUL byte between them; likewise.
    pub(super) environment: String,
}

/// A server that waits for requests.
#[derive(Debug, Deserialize)]
pub(crate) struct Ready {
    /// Its process.
    pub(crate) pid: u32,
    /// Modules that were imported.
    pub(crate) modules: Vec<String>,
    /// Those that could not be.
    #[serde(default)]
    pub(crate) missing: Vec<Missing>,
    /// Time that the imports took.
    pub(crate) seconds: f64,
    /// Whether it lives on between runs.
    #[serde(skip)]
    pub(crate) warm: bool,
}

/// A module that could not be imported.
#[derive(Debug, Deserialize)]
pub(crate) struct Missing {
    pub(crate) name: String,
    /// The error's text.
    pub(crate) why: String,
}

/// The other end of a control socket. Closing the socket ends the server behind it.
#[derive(Debug)]
pub(super) struct Link {
    /// The process, where it is a child of this one.
    process: Option<Process>,
    pub(super) control: UnixStream,
    frames: FrameReader,
}

impl Link {
    /// Starts a Python with the hook in front, which is to do `what`.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start(
        command: Command,
        what: &str,
        preload: &Preload,
        hook: &Hook,
        guard: &mut Guard,
    ) -> io::Result<Self> {
        let (control, theirs) = UnixStream::pair()?;
        control.set_nonblocking(true)?;
        let command = hooked(command, what, preload, hook.path(), theirs.as_raw_fd());
        let outlets = logged(hook.log()?.0)?;
        let binding = Binding::inheriting(theirs.as_raw_fd()).in_new_session();
        let process = Process::start(&command, outlets, binding, guard);
        let process = process.map_err(|error| match error {
            StartError::Spawn(error) | StartError::Watch(error) => error,
        })?;
        if preload.behind && what == IMPORT {
            // It gets the time that workers leave. Each of them leads a session, and so has a group of its own for the scheduler.
            let _refused = fs::write(format!("/proc/{}/autogroup", process.pid()), LEAST_TIME);
        }
        Ok(Self { process: Some(process), control, frames: FrameReader::default() })
    }

    /// To a process that somebody else started.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn to(control: UnixStream) -> io::Result<Self> {
        control.set_nonblocking(true)?;
        Ok(Self { process: None, control, frames: FrameReader::default() })
    }

    /// The child of this process that it is.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Readable when the process said something.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// What the process said; `None`: nothing new.
    ///
    /// # Errors
    /// It is gone, or said what is no answer; as the end of a sentence.
    pub(super) fn said(&mut self, guard: &mut Guard) -> Result<Option<Said>, String> {
        match self.frames.read(&mut self.control) {
            Ok(None) => Ok(None),
            Ok(Some(frame)) => {
                serde_json::from_slice(&frame).map(Some).map_err(|error| format!("it said what is no answer: {error}"))
            }
            Err(_) => Err(self.how_it_ended(guard)),
        }
    }

    fn how_it_ended(&mut self, guard: &mut Guard) -> String {
        self.wait(LAST_WAIT);
        match self.process.as_mut().and_then(|process| process.reap(guard)) {
            Some(Exit::Code(code)) => format!("it ended with code {code}"),
            Some(Exit::Signal(signal)) => format!("it ended by signal {signal}"),
            None => "it closed its socket".to_owned(),
        }
    }

    /// Kills and reaps it, if it is a child.
    pub(super) fn kill(&mut self, guard: &mut Guard) {
        if let Some(process) = &self.process {
            process.signal(Signal::SIGKILL);
        }
        self.wait(KILL_WAIT);
        if let Some(process) = &mut self.process {
            process.reap(guard);
        }
    }

    fn wait(&self, longest: Duration) {
        let Some(process) = &self.process else { return };
        let mut fds = [PollFd::new(process.pidfd(), PollFlags::POLLIN)];
        // One that cannot be waited for is reaped where it is dropped.
        let _failed = wait_ready(&mut fds, Some(Instant::now() + longest));
    }
}

/// The streams of a server: it reads nothing, and what it prints is kept in the file.
///
/// # Errors
/// There is no descriptor to be had.
pub(super) fn logged(log: File) -> io::Result<Outlets> {
    let log = Outlet::from(log);
    Ok(Outlets { stdin: Inlet::Empty, stdout: log.try_clone()?, stderr: log })
}

/// The command with the hook in front; `socket` is a descriptor that it inherits.
pub(super) fn hooked(mut command: Command, what: &str, preload: &Preload, hook: &Path, socket: RawFd) -> Command {
    let own = variables_of(&command).into_iter().find(|(name, _)| name == PYTHONPATH);
    let mut paths = hook.as_os_str().to_owned();
    // An empty one is as good as none, and behind a colon would be the working directory.
    if let Some((_, own)) = own.filter(|(_, own)| !own.is_empty()) {
        paths.push(":");
        paths.push(own);
    }
    command
        .env(PYTHONPATH, paths)
        .env("ENN_FORKSERVER_FD", socket.to_string())
        .env("ENN_FORKSERVER_PRELOAD", preload.modules.join(","))
        .env("ENN_FORKSERVER_WHAT", what);
    command
}
