//! Artifacts that only third-party tools can make: packages of AOTInductor and programs of ExecuTorch, from a PT2 archive; engines of
//! TensorRT, from an ONNX file.
//!
//! ```text
//! enn ─► python -I -W ignore -c SCRIPT      a line of JSON each way: the job, then the result
//! ```
//! An interpreter is given by the caller, or made once by [`prepare`]. Its packages must have the pinned versions, which are
//! checked before anything else is done.
//!
//! **Invariant:** a tool is a process group that ends with its owner, by itself, at a limit, or when the other end of its pipe
//! closes; a file is whole or absent. The first line to a process states its memory limit, which it applies to itself before it
//! loads anything.

pub mod aoti;
pub mod apart;
pub mod cause;
mod child;
pub mod exchange;
pub mod executorch;
pub mod prepare;
pub mod tensorrt;
#[cfg(test)]
mod tests;
mod unix;

use crate::{ExportError, Ports};
use cause::Task;
use child::{Child, Errors};
use crossbeam_channel::RecvTimeoutError;
use enn_common::{fs::atomic, secrets};
use exchange::Exchange;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::{DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Code that begins every script.
const PREAMBLE: &str = include_str!("preamble.py");

/// A package and its only accepted version.
pub type Pin = (&'static str, &'static str);

/// PyTorch, of libtorch's release.
pub const TORCH: Pin = ("torch", "2.11.0");

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest time for one job.
    pub time: Duration,
    /// Memory of each process in bytes.
    pub memory_bytes: u64,
}

impl Limits {
    /// Default limits of tools that make artifacts.
    pub const MAKES: Self = Self { time: Duration::from_secs(1800), memory_bytes: 64 << 30 };
}

/// Extension of the file with a failed tool's output.
pub const LOG: &str = "log";

/// Result of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Made {
    /// Versions of the tool and its dependencies.
    pub versions: BTreeMap<String, String>,
    /// Properties of the artifact, e.g. the instruction set of its code.
    pub about: BTreeMap<String, String>,
}

impl Made {
    pub const fn nothing() -> Self {
        Self { versions: BTreeMap::new(), about: BTreeMap::new() }
    }
}

/// Message of a script.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Unavailable(String),
    Refused(String),
    /// The tool gave up, with its own message.
    GaveUp(String),
    Made(Made),
    Ready(String),
    Answered(Vec<Vec<usize>>),
}

/// A tool: its script, and the requirements on its interpreter.
struct Tool {
    what: &'static str,
    script: &'static str,
    pins: &'static [Pin],
    backend: prepare::Backend,
    /// Format of the source, or another format with a runtime.
    other: &'static str,
}

/// A tool at work.
#[derive(Debug)]
struct Working {
    task: Task,
    child: Child,
    /// Whether all of the output is kept.
    is_logged: bool,
}

impl Tool {
    /// Starts the tool on a job about `path`; its output is kept in `log`.
    fn start(
        &self,
        python: &Path,
        path: &Path,
        log: Option<File>,
        mut job: Value,
        limits: Limits,
    ) -> Result<Working, ExportError> {
        let mut command = secrets::command(python);
        // The tool uses its own libraries: another libtorch found first would mix the two.
        command.env_remove("LD_LIBRARY_PATH");
        command.args(["-I", "-W", "ignore", "-c", &format!("{PREAMBLE}\n{}", self.script)]);
        // A maker, which starts other processes, notices the end of its input and ends with them.
        if job.get("artifact").is_some() {
            unix::bind(&mut command);
        }
        let task = Task { what: self.what, path: path.to_owned(), limits, lacks: self.lacks(), other: self.other };
        job["pins"] = json!(self.pins.iter().copied().collect::<BTreeMap<_, _>>());
        let unavailable = |source| self.unavailable(format!("{}: {source}", python.display()));
        Working::start(command, task, log, job).map_err(unavailable)
    }

    /// Starts the tool on an artifact. Exchanged files lie below `scratch`.
    fn run(
        &self,
        python: &Path,
        artifact: &Path,
        scratch: &Path,
        ports: Ports,
        mut job: Value,
        limits: Limits,
    ) -> Result<Exchange, ExportError> {
        job["artifact"] = json!(artifact);
        job["inputs"] = json!(ports.inputs);
        job["outputs"] = json!(ports.outputs);
        let mut working = self.start(python, artifact, None, job, limits)?;
        let version = format!("{} {}", self.what.to_lowercase(), working.ready()?);
        Exchange::new(working, version, ports, scratch)
    }

    fn unavailable(&self, why: String) -> ExportError {
        ExportError::Unavailable { what: self.what, why, hint: self.lacks() }
    }

    fn lacks(&self) -> String {
        let pins: Vec<String> = self.pins.iter().map(|(name, version)| format!("{name}=={version}")).collect();
        let pins = if pins.is_empty() { "it".to_owned() } else { pins.join(" and ") };
        let name = self.backend.name();
        format!("`enn export --prepare {name}` makes a Python for it, or let PYTHON_EXEC name one that has {pins}")
    }

    /// Makes `path` from `source`, whole or not at all. Where it fails, the tool's output is in the file that [`log_of`] names.
    fn make(&self, python: &Path, source: &Path, path: &Path, job: Value, limits: Limits) -> Result<Made, ExportError> {
        make(source, path, job, |job, log| self.start(python, source, Some(log), job, limits))
    }
}

/// Makes `path` from `source` with the process that `begin` starts on a job with a log: whole or not at all.
fn make(
    source: &Path,
    path: &Path,
    mut job: Value,
    begin: impl FnOnce(Value, File) -> Result<Working, ExportError>,
) -> Result<Made, ExportError> {
    let scratch = atomic::temporary(path);
    DirBuilder::new().mode(0o700).create(&scratch).map_err(ExportError::io(&scratch))?;
    let out = scratch.join("made");
    let log = scratch.join(LOG);
    job["source"] = json!(source);
    job["out"] = json!(out);
    job["scratch"] = json!(scratch);
    let begun = File::create(&log).map_err(ExportError::io(&log)).and_then(|log| begin(job, log));
    let made = begun.and_then(|mut working| match working.receive()? {
        Reply::Made(made) => {
            atomic::place(&out, path)?;
            Ok(made)
        }
        other => Err(working.task.refused(format!("it sent {other:?} instead of a result"))),
    });
    let made = made.map_err(|error| error.logged(&log, &log_of(path)));
    // A leftover has a name that nothing uses.
    let _ = std::fs::remove_dir_all(&scratch);
    made
}

/// Returns the path of the output of a tool that could not make `path`.
pub fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push(".");
    log.push(LOG);
    log.into()
}

impl Working {
    fn start(command: Command, task: Task, log: Option<File>, mut job: Value) -> io::Result<Self> {
        let is_logged = log.is_some();
        let child = Child::start(command, Errors::Kept(log))?;
        job["memory_bytes"] = json!(task.limits.memory_bytes);
        child.send(job.to_string())?;
        Ok(Self { task, child, is_logged })
    }

    fn send(&self, line: &Value) -> Result<(), ExportError> {
        let full = |_| self.task.refused("it has not read the previous line".to_owned());
        self.child.send(line.to_string()).map_err(full)
    }

    /// Waits until a runtime has loaded its artifact; returns its version.
    fn ready(&mut self) -> Result<String, ExportError> {
        match self.receive()? {
            Reply::Ready(version) => Ok(version),
            other => Err(self.task.refused(format!("it sent {other:?} before any question"))),
        }
    }

    /// Receives the next reply; a maker sends only one.
    fn receive(&mut self) -> Result<Reply, ExportError> {
        let task = &self.task;
        match self.child.receive(task.limits.time) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Reply::Unavailable(why)) => {
                    Err(ExportError::Unavailable { what: task.what, why, hint: task.lacks.clone() })
                }
                Ok(Reply::Refused(why)) => Err(task.refused(why)),
                Ok(Reply::GaveUp(words)) => {
                    let error = task.gave_up(words);
                    if self.is_logged {
                        self.child.end();
                    }
                    Err(error)
                }
                Ok(reply) => Ok(reply),
                Err(error) => Err(task.refused(format!("it sent {line}: {error}"))),
            },
            Err(RecvTimeoutError::Timeout) if self.is_logged => {
                self.child.end();
                Err(self.task.late())
            }
            Err(RecvTimeoutError::Timeout) => {
                Err(ExportError::Late { what: task.what, path: task.path.clone(), time: task.limits.time })
            }
            Err(RecvTimeoutError::Disconnected) => {
                let (status, last) = self.child.end();
                Err(self.task.ended(status, &last, self.is_logged))
            }
        }
    }
}
