//! A tool that prints the stacks of a process, run as a child with a deadline.

use crate::process;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
};
use std::{
    ffi::OsString,
    fs::File,
    io,
    os::fd::AsFd,
    process::{Child, Command, Stdio},
    time::Instant,
};

/// The programs; names without a slash are looked up on PATH.
#[derive(Debug, Clone)]
pub struct Tools {
    /// Stacks of Python programs.
    pub py_spy: OsString,
    /// Stacks of any program, of elfutils.
    pub eu_stack: OsString,
    /// The same, slower.
    pub gdb: OsString,
}

impl Default for Tools {
    fn default() -> Self {
        Self { py_spy: "py-spy".into(), eu_stack: "eu-stack".into(), gdb: "gdb".into() }
    }
}

/// One tool as it is called for one process.
#[derive(Debug)]
pub(super) struct Tool {
    /// As people know it.
    pub(super) name: &'static str,
    program: OsString,
    args: Vec<String>,
}

/// How a tool fared.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It ended by itself; what it said is in the file.
    Ended,
    /// It is not installed.
    Missing,
    /// It was killed at the deadline.
    Late,
    /// It could not be run.
    Failed(io::Error),
}

impl Tools {
    /// The tools for a process, best first.
    pub(super) fn for_process(&self, pid: u32, python: bool) -> Vec<Tool> {
        let pid = pid.to_string();
        let tool = |name, program: &OsString, args: &[&str]| Tool {
            name,
            program: program.clone(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        };
        let mut tools = Vec::new();
        if python {
            tools.push(tool("py-spy", &self.py_spy, &["dump", "--pid", &pid]));
        }
        tools.push(tool("eu-stack", &self.eu_stack, &["-p", &pid]));
        // Without debuginfod: it would fetch symbols over the network.
        let gdb = ["-p", &pid, "-batch", "-nx", "-iex", "set debuginfod enabled off", "-ex", "thread apply all bt"];
        tools.push(tool("gdb", &self.gdb, &gdb));
        tools
    }
}

impl Tool {
    /// Runs it with its output in `out`.
    pub(super) fn run(&self, out: &File, deadline: Instant) -> Outcome {
        match self.spawn(out) {
            Ok(child) => wait(child, deadline),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Outcome::Missing,
            Err(error) => Outcome::Failed(error),
        }
    }

    fn spawn(&self, out: &File) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out.try_clone()?);
        process::bind_to_parent(&mut command, None);
        command.spawn()
    }
}

fn wait(mut child: Child, deadline: Instant) -> Outcome {
    let outcome = match process::pidfd(child.id()) {
        Ok(fd) => until_readable(fd.as_fd(), deadline),
        Err(error) => Outcome::Failed(error),
    };
    if !matches!(outcome, Outcome::Ended) {
        process::signal_group(child.id(), Signal::SIGKILL);
    }
    match child.wait() {
        Ok(_) => outcome,
        Err(error) => Outcome::Failed(error),
    }
}

fn until_readable(fd: std::os::fd::BorrowedFd<'_>, deadline: Instant) -> Outcome {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(0) if Instant::now() >= deadline => return Outcome::Late,
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Outcome::Ended,
            Err(errno) => return Outcome::Failed(errno.into()),
        }
    }
}
