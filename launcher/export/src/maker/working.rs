//! A tool at work: what it is sent, and its replies.

use super::{
    cause::Task,
    child::{Child, Errors},
};
use crate::ExportError;
use crossbeam_channel::RecvTimeoutError;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs::File, io, process::Command};

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
pub(super) enum Reply {
    Unavailable(String),
    Refused(String),
    /// The tool gave up, with its own message.
    GaveUp(String),
    Made(Made),
    Ready(String),
    Answered(Vec<Vec<usize>>),
}

/// A tool at work.
#[derive(Debug)]
pub(super) struct Working {
    pub(super) task: Task,
    pub(super) child: Child,
    /// Whether all of the output is kept.
    is_logged: bool,
}

impl Working {
    pub(super) fn start(command: Command, task: Task, log: Option<File>, mut job: Value) -> io::Result<Self> {
        let is_logged = log.is_some();
        let child = Child::start(command, Errors::Kept(log))?;
        job["memory_bytes"] = json!(task.limits.memory_bytes);
        child.send(job.to_string())?;
        Ok(Self { task, child, is_logged })
    }

    pub(super) fn send(&self, line: &Value) -> Result<(), ExportError> {
        let full = |_| self.task.refused("it has not read the previous line".to_owned());
        self.child.send(line.to_string()).map_err(full)
    }

    /// Waits until a runtime has loaded its artifact; returns its version.
    pub(super) fn ready(&mut self) -> Result<String, ExportError> {
        match self.receive()? {
            Reply::Ready(version) => Ok(version),
            other => Err(self.task.refused(format!("it sent {other:?} before any question"))),
        }
    }

    /// Receives the next reply; a maker sends only one.
    pub(super) fn receive(&mut self) -> Result<Reply, ExportError> {
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
