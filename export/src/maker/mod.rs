//! What only its makers' tools can make: packages of AOTInductor and programs of ExecuTorch, from a PT2 archive; engines of TensorRT, from
//! an ONNX file.
//!
//! ```text
//! enn ─► python -I -W ignore -c SCRIPT      a line of JSON each way: the job, then what was made
//! ```
//! An interpreter is given by whoever asks, or made once by [`prepare`]. Its packages must be of the versions that go together: those
//! are looked at before anything else is done.
//!
//! **Invariant:** a tool is a process group that ends with its owner, by itself, at a limit, or when the other end of its pipe
//! closes; a file is whole or absent. The first line to a process says how much memory it may have, and it sees to that itself before it
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

use crate::ExportError;
use cause::Task;
use child::{Child, Errors, Silence};
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

/// Begins every script.
const PREAMBLE: &str = include_str!("preamble.py");

/// A package and the one version of it that is used.
pub type Pin = (&'static str, &'static str);

/// PyTorch, of the release that libtorch is.
pub const TORCH: Pin = ("torch", "2.11.0");

/// What a tool may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest time for one job.
    pub time: Duration,
    /// Most memory of each of its processes, bytes.
    pub memory_bytes: u64,
}

impl Limits {
    /// Of what makes artifacts.
    pub const MAKES: Self = Self { time: Duration::from_secs(1800), memory_bytes: 64 << 30 };
}

/// Beside what could not be made: what its maker said.
pub const LOG: &str = "log";

/// What a tool says of what it has made.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Made {
    /// Of the tool and what it stands on.
    pub versions: BTreeMap<String, String>,
    /// Of the artifact, e.g. of which instruction set its code is.
    pub about: BTreeMap<String, String>,
}

impl Made {
    /// Of a tool that has nothing to say.
    pub const fn nothing() -> Self {
        Self { versions: BTreeMap::new(), about: BTreeMap::new() }
    }
}

/// What a script says.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Unavailable(String),
    Refused(String),
    /// In the words of another.
    GaveUp(String),
    Made(Made),
    Ready(String),
    Answered(Vec<Vec<usize>>),
}

/// A tool: its script, and what its interpreter must have.
struct Tool {
    what: &'static str,
    script: &'static str,
    pins: &'static [Pin],
    backend: prepare::Backend,
    /// The format of what it is made from, and of what else runs it.
    other: &'static str,
}

/// A tool at work.
#[derive(Debug)]
struct Working {
    task: Task,
    child: Child,
    /// Whether all that it says is kept.
    is_logged: bool,
}

impl Tool {
    /// Starts it on a job about `path`; what it says is kept in `log`.
    fn start(
        &self,
        python: &Path,
        (path, log): (&Path, Option<File>),
        mut job: Value,
        limits: Limits,
    ) -> Result<Working, ExportError> {
        let mut command = secrets::command(python);
        // Its libraries are its own: another libtorch found first would be half of each.
        command.env_remove("LD_LIBRARY_PATH");
        command.args(["-I", "-W", "ignore", "-c", &format!("{PREAMBLE}\n{}", self.script)]);
        // A maker, which starts others, hears the end of its input and ends with them.
        if job.get("artifact").is_some() {
            unix::bind(&mut command);
        }
        let what = self.what;
        let path = path.to_owned();
        let lacks = self.lacks();
        let other = self.other;
        let task = Task { what, path, limits, lacks, other };
        job["pins"] = json!(self.pins.iter().copied().collect::<BTreeMap<_, _>>());
        let unavailable = |source| self.unavailable(format!("{}: {source}", python.display()));
        Working::start(command, (task, log), job).map_err(unavailable)
    }

    /// Starts it on an artifact whose inputs and outputs have these names, in their order. What is exchanged lies below `scratch`.
    fn run(
        &self,
        python: &Path,
        (artifact, scratch): (&Path, &Path),
        ports: (Vec<String>, Vec<String>),
        mut job: Value,
        limits: Limits,
    ) -> Result<Exchange, ExportError> {
        job["artifact"] = json!(artifact);
        job["inputs"] = json!(ports.0);
        job["outputs"] = json!(ports.1);
        let mut working = self.start(python, (artifact, None), job, limits)?;
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

    /// Makes `path` from `source`: whole or not at all. Where it fails, what it said is in the file of this name that ends in [`LOG`].
    fn make(
        &self,
        python: &Path,
        (source, path): (&Path, &Path),
        job: Value,
        limits: Limits,
    ) -> Result<Made, ExportError> {
        make((source, path), job, |job, log| self.start(python, (source, Some(log)), job, limits))
    }
}

/// Makes `path` from `source` by what `begin` starts on a job with a log: whole or not at all.
fn make(
    (source, path): (&Path, &Path),
    mut job: Value,
    begin: impl FnOnce(Value, File) -> Result<Working, ExportError>,
) -> Result<Made, ExportError> {
    let scratch = atomic::temporary(path);
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| ExportError::Io { path, source }
    };
    DirBuilder::new().mode(0o700).create(&scratch).map_err(io(&scratch))?;
    let out = scratch.join("made");
    let log = scratch.join(LOG);
    job["source"] = json!(source);
    job["out"] = json!(out);
    job["scratch"] = json!(scratch);
    let begun = File::create(&log).map_err(io(&log)).and_then(|log| begin(job, log));
    let made = begun.and_then(|mut working| match working.hear()? {
        Reply::Made(made) => {
            atomic::place(&out, path)?;
            Ok(made)
        }
        other => Err(working.task.refused(format!("it said {other:?} instead of what it has made"))),
    });
    let made = made.map_err(|error| error.logged(&log, &log_of(path)));
    // What is left has a name that nobody asks for.
    let _ = std::fs::remove_dir_all(&scratch);
    made
}

/// Where the words of a maker are kept that could not make `path`.
pub fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push(".");
    log.push(LOG);
    log.into()
}

impl Working {
    /// Starts a process on a job.
    fn start(command: Command, (task, log): (Task, Option<File>), mut job: Value) -> io::Result<Self> {
        let is_logged = log.is_some();
        let child = Child::start(command, Errors::Kept(log))?;
        job["memory_bytes"] = json!(task.limits.memory_bytes);
        child.say(job.to_string())?;
        Ok(Self { task, child, is_logged })
    }

    fn say(&self, line: &Value) -> Result<(), ExportError> {
        let full = |_| self.task.refused("it has not taken what it was told last".to_owned());
        self.child.say(line.to_string()).map_err(full)
    }

    /// The version of a runtime that has its artifact.
    fn ready(&mut self) -> Result<String, ExportError> {
        match self.hear()? {
            Reply::Ready(version) => Ok(version),
            other => Err(self.task.refused(format!("it said {other:?} before it was asked"))),
        }
    }

    /// The next reply; one of a maker is the last.
    fn hear(&mut self) -> Result<Reply, ExportError> {
        let task = &self.task;
        match self.child.hear(task.limits.time) {
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
                Err(error) => Err(task.refused(format!("it said {line}: {error}"))),
            },
            Err(Silence::Late) if self.is_logged => {
                self.child.end();
                Err(self.task.late())
            }
            Err(Silence::Late) => {
                let what = task.what;
                let path = task.path.clone();
                let time = task.limits.time;
                Err(ExportError::Late { what, path, time })
            }
            Err(Silence::Ended) => {
                let (status, last) = self.child.end();
                Err(self.task.ended(status, &last, self.is_logged))
            }
        }
    }
}
