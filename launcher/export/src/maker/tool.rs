//! A tool: a script, and the requirements on its interpreter.

use super::{
    cause::Task,
    exchange::Exchange,
    limits::Limits,
    pin::Pin,
    prepare::Backend,
    unix,
    working::{Made, Reply, Working},
};
use crate::{ExportError, Ports};
use enn_common::{fs::atomic, secrets};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::{DirBuilder, File},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// Code that begins every script.
const PREAMBLE: &str = include_str!("preamble.py");

/// Extension of the file with a failed tool's output.
pub const LOG: &str = "log";

/// A tool: its script, and the requirements on its interpreter.
pub(super) struct Tool {
    pub(super) what: &'static str,
    pub(super) script: &'static str,
    pub(super) pins: &'static [Pin],
    pub(super) backend: Backend,
    /// Format of the source, or another format with a runtime.
    pub(super) other: &'static str,
}

impl Tool {
    /// Starts the tool on a job about `path`; its output is kept in `log`.
    pub(super) fn start(
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
    pub(super) fn run(
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
    pub(super) fn make(
        &self,
        python: &Path,
        source: &Path,
        path: &Path,
        job: Value,
        limits: Limits,
    ) -> Result<Made, ExportError> {
        make(source, path, job, |job, log| self.start(python, source, Some(log), job, limits))
    }
}

/// Makes `path` from `source` with the process that `begin` starts on a job with a log: whole or not at all.
pub(super) fn make(
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
