//! A tool that prints the stacks of a process, run as a child with a deadline.

use crate::{Binding, Inlet, Outlets, Process, StartError, wait_ready};
use enn_common::secrets;
use nix::poll::{PollFd, PollFlags};
use std::{ffi::OsString, fs::File, io, time::Instant};

/// Programs of the tools; names without a slash are looked up on PATH.
#[derive(Debug, Clone)]
pub struct Tools {
    /// Tool for stacks of Python programs.
    pub py_spy: OsString,
    /// Tool for stacks of any program, from elfutils.
    pub eu_stack: OsString,
    /// Slower tool for stacks of any program.
    pub gdb: OsString,
}

impl Default for Tools {
    fn default() -> Self {
        Self { py_spy: "py-spy".into(), eu_stack: "eu-stack".into(), gdb: "gdb".into() }
    }
}

#[derive(Debug)]
pub(super) struct Tool {
    pub(super) name: &'static str,
    program: OsString,
    args: Vec<String>,
}

#[derive(Debug)]
pub(super) enum ToolOutcome {
    /// The tool ended; its output is in the file.
    Ended,
    Missing,
    /// The tool was killed at the deadline.
    TimedOut,
    Failed(io::Error),
}

impl Tools {
    /// Returns the tools for a process, best first. gdb is one of them if `is_slow_allowed`.
    pub(super) fn for_process(&self, pid: u32, python: bool, is_slow_allowed: bool) -> Vec<Tool> {
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
        if is_slow_allowed {
            // debuginfod is disabled: it would fetch symbols over the network.
            let gdb = ["-p", &pid, "-batch", "-nx", "-iex", "set debuginfod enabled off", "-ex", "thread apply all bt"];
            tools.push(tool("gdb", &self.gdb, &gdb));
        }
        tools
    }
}

impl Tool {
    /// Runs the tool with its output in `out`; it is killed at the deadline.
    pub(super) fn run(&self, out: &File, deadline: Instant) -> ToolOutcome {
        let process = match self.start(out) {
            Ok(process) => process,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return ToolOutcome::Missing,
            Err(error) => return ToolOutcome::Failed(error),
        };
        let mut fds = [PollFd::new(process.pidfd(), PollFlags::POLLIN)];
        match wait_ready(&mut fds, Some(deadline)) {
            Ok(()) if fds[0].any().unwrap_or(false) => ToolOutcome::Ended,
            Ok(()) => ToolOutcome::TimedOut,
            Err(error) => ToolOutcome::Failed(error),
        }
    }

    fn start(&self, out: &File) -> io::Result<Process> {
        let mut command = secrets::command(&self.program);
        command.args(&self.args);
        let outlets = Outlets { stdin: Inlet::Empty, stdout: out.try_clone()?.into(), stderr: out.try_clone()?.into() };
        Process::start_unguarded(&command, outlets, Binding::default())
            .map_err(|(StartError::Spawn(error) | StartError::Watch(error))| error)
    }
}
