//! What only its makers' tools can make: packages of AOTInductor and programs of ExecuTorch, from a PT2 archive.
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
mod child;
pub mod executorch;
pub mod prepare;
#[cfg(test)]
mod tests;

use crate::ExportError;
use child::{Child, Errors, Silence};
use enn_common::fs::{Disk, Storage, atomic};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
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

impl Default for Limits {
    fn default() -> Self {
        Self { time: Duration::from_secs(1800), memory_bytes: 64 << 30 }
    }
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
        command.args(["-I", "-W", "ignore", "-c", &format!("{PREAMBLE}\n{}", self.script)]);
        let unavailable = |source: io::Error| self.unavailable(format!("{}: {source}", python.display()));
        let child = Child::start(command, Errors::Kept).map_err(unavailable)?;
        job["pins"] = json!(self.pins.iter().copied().collect::<BTreeMap<_, _>>());
        job["memory_bytes"] = json!(limits.memory_bytes);
        let mut working = Working { what: self.what, child, time: limits.time, path: path.to_owned() };
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

    fn unavailable(&self, why: String) -> ExportError {
        let pins: Vec<String> = self.pins.iter().map(|(name, version)| format!("{name}=={version}")).collect();
        let hint = format!(
            "`enn export --prepare {}` makes a Python for it, or name one that has {}",
            self.backend.name(),
            pins.join(" and ")
        );
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
        let beside = atomic::temporary(path);
        let mut job = job;
        job["source"] = json!(source);
        job["out"] = json!(beside);
        job["scratch"] = json!(atomic::parent(path));
        let made = self.start(python, source, job, limits).and_then(|mut working| match self.hear(&mut working)? {
            Reply::Made(made) => {
                let sync = || File::open(&beside)?.sync_all();
                sync().map_err(|error| ExportError::Io { path: beside.clone(), source: error })?;
                Disk.rename(&beside, path)?;
                Disk.sync_dir(atomic::parent(path))?;
                Ok(made)
            }
            other => Err(working.refused(format!("it said {other:?} instead of what it has made"))),
        });
        if made.is_err() {
            // The error that is told is the first one.
            let _ = std::fs::remove_file(&beside);
        }
        made
    }
}

impl Working {
    fn say(&mut self, line: &Value) -> Result<(), ExportError> {
        // One that has ended is heard to have.
        self.child.say(&line.to_string()).or_else(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Ok(()),
            _ => Err(self.refused(error.to_string())),
        })
    }

    fn hear(&mut self) -> Result<Reply, ExportError> {
        match self.child.hear(self.time) {
            Ok(line) => serde_json::from_str(&line).map_err(|error| self.refused(format!("it said {line}: {error}"))),
            Err(Silence::Late) => Err(self.refused(format!("no answer within {} s", self.time.as_secs()))),
            Err(Silence::Ended) => {
                let (status, last) = self.child.end();
                let ended = status.map_or_else(|| "it ended".to_owned(), |status| format!("it ended with {status}"));
                Err(self.refused(format!("{ended}; its last lines:\n  {}", last.join("\n  "))))
            }
        }
    }

    fn refused(&self, why: String) -> ExportError {
        ExportError::Refused { what: self.what, path: self.path.clone(), why }
    }
}
