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
//! closes; a file is whole or absent.

pub mod aoti;
pub mod apart;
mod child;
pub mod exchange;
pub mod executorch;
pub mod prepare;
pub mod tensorrt;
#[cfg(test)]
mod tests;
mod unix;

use crate::ExportError;
use child::{Child, Errors, Silence};
use enn_common::fs::atomic;
use exchange::Exchange;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::DirBuilder,
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
}

/// A tool at work.
#[derive(Debug)]
struct Working {
    what: &'static str,
    child: Child,
    time: Duration,
    /// The file it works on, for messages.
    path: PathBuf,
}

impl Tool {
    /// Starts it on a job about `path`.
    fn start(&self, python: &Path, path: &Path, mut job: Value, limits: Limits) -> Result<Working, ExportError> {
        let mut command = Command::new(python);
        // Its libraries are its own: another libtorch found first would be half of each.
        command.env_remove("LD_LIBRARY_PATH");
        command.args(["-I", "-W", "ignore", "-c", &format!("{PREAMBLE}\n{}", self.script)]);
        // A maker, which starts others, hears the end of its input and ends with them.
        if job.get("artifact").is_some() {
            unix::bind(&mut command);
        }
        let unavailable = |source: io::Error| self.unavailable(format!("{}: {source}", python.display()));
        let child = Child::start(command, Errors::Kept).map_err(unavailable)?;
        job["pins"] = json!(self.pins.iter().copied().collect::<BTreeMap<_, _>>());
        job["memory_bytes"] = json!(limits.memory_bytes);
        let working = Working { what: self.what, child, time: limits.time, path: path.to_owned() };
        working.say(&job)?;
        Ok(working)
    }

    /// The next reply; that the interpreter lacks something is an error.
    fn hear(&self, working: &mut Working) -> Result<Reply, ExportError> {
        match working.hear()? {
            Reply::Unavailable(why) => Err(self.unavailable(why)),
            reply => Ok(reply),
        }
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
        (job["inputs"], job["outputs"]) = (json!(ports.0), json!(ports.1));
        let mut working = self.start(python, artifact, job, limits)?;
        match self.hear(&mut working)? {
            Reply::Ready(version) => {
                let version = format!("{} {version}", self.what.to_lowercase());
                Exchange::new(working, version, ports, scratch)
            }
            other => Err(working.refused(format!("it said {other:?} before it was asked"))),
        }
    }

    fn unavailable(&self, why: String) -> ExportError {
        let pins: Vec<String> = self.pins.iter().map(|(name, version)| format!("{name}=={version}")).collect();
        let pins = if pins.is_empty() { "it".to_owned() } else { pins.join(" and ") };
        let name = self.backend.name();
        let hint =
            format!("`enn export --prepare {name}` makes a Python for it, or let PYTHON_EXEC name one that has {pins}");
        ExportError::Unavailable { what: self.what, why, hint }
    }

    /// Makes `path` from `source`: whole or not at all.
    fn make(
        &self,
        python: &Path,
        (source, path): (&Path, &Path),
        job: Value,
        limits: Limits,
    ) -> Result<Made, ExportError> {
        let scratch = atomic::temporary(path);
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| ExportError::Io { path, source }
        };
        DirBuilder::new().mode(0o700).create(&scratch).map_err(io(&scratch))?;
        let out = scratch.join("made");
        let mut job = job;
        job["source"] = json!(source);
        job["out"] = json!(out);
        job["scratch"] = json!(scratch);
        let made = self.start(python, source, job, limits).and_then(|mut working| match self.hear(&mut working)? {
            Reply::Made(made) => {
                atomic::place(&out, path)?;
                Ok(made)
            }
            other => Err(working.refused(format!("it said {other:?} instead of what it has made"))),
        });
        // What is left has a name that nobody asks for.
        let _ = std::fs::remove_dir_all(&scratch);
        made
    }
}

impl Working {
    fn say(&self, line: &Value) -> Result<(), ExportError> {
        self.child.say(line.to_string()).map_err(|_| self.refused("it has not taken what it was told last".to_owned()))
    }

    fn hear(&mut self) -> Result<Reply, ExportError> {
        match self.child.hear(self.time) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Reply::Refused(why)) => Err(self.refused(why)),
                Ok(reply) => Ok(reply),
                Err(error) => Err(self.refused(format!("it said {line}: {error}"))),
            },
            Err(Silence::Late) => {
                let (what, path, time) = (self.what, self.path.clone(), self.time);
                Err(ExportError::Late { what, path, time })
            }
            Err(Silence::Ended) => {
                let (status, last) = self.child.end();
                let ended = status.map_or_else(|| "it ended".to_owned(), |status| format!("it ended with {status}"));
                let words = if last.is_empty() { "without a word".to_owned() } else { last.join("\n  ") };
                Err(self.refused(format!("{ended}; its last lines:\n  {words}")))
            }
        }
    }

    fn refused(&self, why: String) -> ExportError {
        ExportError::Refused { what: self.what, path: self.path.clone(), why }
    }
}
