//! The process behind a control socket: a Python with the hook at the front of its path, or a run server of a warm server.

use super::{Preload, frame::FrameReader, hook::Hook};
use crate::{Binding, Exit, Guard, Inlet, Outlet, Outlets, Process, StartError, variables_of, wait_ready};
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
        unix::{fs::OpenOptionsExt, net::UnixStream},
    },
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// Longest waits for the exit of a process whose socket is closed, and for the end of one that was killed.
const LAST_WAIT: Duration = Duration::from_millis(200);
const KILL_WAIT: Duration = Duration::from_secs(2);
/// Variable that puts the hook's folder before the workers' own paths.
pub(super) const PYTHONPATH: &str = "PYTHONPATH";
/// Lowest priority of a session's scheduling group, sched(7).
const LEAST_TIME: &str = "19";
/// Task of a run's server.
pub(super) const IMPORT: &str = "serve";
/// Prefix of the variables that only the hook reads.
pub(super) const OURS: &str = "ENN_FORKSERVER_";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HookMessage {
    /// Modules and environment of a Python.
    Probe(Probed),
    Ready(Ready),
    /// No worker can be forked here; the reason.
    Refuse(String),
}

#[derive(Debug, Deserialize)]
pub(super) struct Probed {
    pub(super) found: BTreeMap<String, bool>,
    pub(super) refuse: Option<String>,
    /// Path of the interpreter as it was executed, by a wrapper or by us; bytes as hexadecimal digits, for they need not be text.
    pub(super) argv0: String,
    /// Variables of the interpreter at its start, `NAME=VALUE` separated by NUL bytes; bytes as hexadecimal digits.
    pub(super) environment: String,
}

/// A server that waits for requests.
#[derive(Debug, Deserialize)]
pub struct Ready {
    pub(crate) pid: u32,
    pub modules: Vec<String>,
    /// Modules that could not be imported.
    #[serde(default)]
    pub(crate) missing: Vec<Missing>,
    /// Duration of the imports.
    pub seconds: f64,
    /// Whether the server continues between runs.
    #[serde(skip)]
    pub warm: bool,
}

/// A module that could not be imported.
#[derive(Debug, Deserialize)]
pub(crate) struct Missing {
    pub(crate) name: String,
    pub(crate) why: String,
}

/// The near end of a control socket. Closing the socket ends the server behind it.
#[derive(Debug)]
pub(super) struct Link {
    /// The process, when it is a child of this one.
    process: Option<Process>,
    pub(super) control: UnixStream,
    frames: FrameReader,
}

impl Link {
    /// Starts a Python with the hook for the task `what`.
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
        let outlets = logged(&hook.log_path())?;
        let binding = Binding::inheriting(theirs.as_raw_fd()).in_new_session();
        let process = Process::start(&command, outlets, binding, guard);
        let process = process.map_err(|error| match error {
            StartError::Spawn(error) | StartError::Watch(error) => error,
        })?;
        if preload.behind && what == IMPORT {
            // The server gets the time that workers leave. Each of them leads a session, and so has a scheduling group of its own.
            let _refused = fs::write(format!("/proc/{}/autogroup", process.pid()), LEAST_TIME);
        }
        Ok(Self { process: Some(process), control, frames: FrameReader::default() })
    }

    /// Makes a link to a process that was started elsewhere.
    pub(super) fn to(control: UnixStream) -> io::Result<Self> {
        control.set_nonblocking(true)?;
        Ok(Self { process: None, control, frames: FrameReader::default() })
    }

    /// Returns the process id of the child, if it is one.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Returns a descriptor that is readable when a message came.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Receives the next message; `None`: nothing new.
    ///
    /// # Errors
    /// The process is gone, or its message cannot be parsed; as the end of a sentence.
    pub(super) fn receive(&mut self, guard: &mut Guard) -> Result<Option<HookMessage>, String> {
        match self.frames.read(&mut self.control) {
            Ok(None) => Ok(None),
            Ok(Some(frame)) => serde_json::from_slice(&frame)
                .map(Some)
                .map_err(|error| format!("its answer cannot be parsed: {error}")),
            Err(_) => Err(self.exit_description(guard)),
        }
    }

    fn exit_description(&mut self, guard: &mut Guard) -> String {
        self.wait(LAST_WAIT);
        match self.process.as_mut().and_then(|process| process.reap(guard)) {
            Some(Exit::Code(code)) => format!("it ended with code {code}"),
            Some(Exit::Signal(signal)) => format!("it ended by signal {signal}"),
            None => "it closed its socket".to_owned(),
        }
    }

    /// Kills and reaps the process, if it is a child.
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
        // A process that cannot be waited for is reaped when it is dropped.
        let _failed = wait_ready(&mut fds, Some(Instant::now() + longest));
    }
}

/// Returns the streams of a server: its input is empty, and its output is written to the file.
pub(super) fn logged(path: &Path) -> io::Result<Outlets> {
    let log = Outlet::from(File::options().create(true).append(true).mode(0o600).open(path)?);
    Ok(Outlets { stdin: Inlet::Empty, stdout: log.try_clone()?, stderr: log })
}

/// Adds the hook to a command; `socket` is a descriptor that it inherits.
pub(super) fn hooked(mut command: Command, what: &str, preload: &Preload, hook: &Path, socket: RawFd) -> Command {
    let own = variables_of(&command).into_iter().find(|(name, _)| name == PYTHONPATH);
    let mut paths = hook.as_os_str().to_owned();
    // An empty variable counts as none; after a colon it would mean the working directory.
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
