//! Errors between a graph and a checked file.

use crate::precision::Precision;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// A number that a precision cannot represent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place} in {precision}: {found}\nhint: export it in bf16, which holds numbers of any size, or in fp32")]
pub struct Lost {
    pub precision: Precision,
    /// Place in the model, or the weight's name.
    pub place: String,
    pub found: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("{target}: no way to write {op} at {place}: {why}\nhint: {hint}")]
    Unsupported {
        target: &'static str,
        /// Operation, with its special property.
        op: String,
        place: String,
        /// Missing feature of the format.
        why: String,
        hint: String,
    },
    /// The format, or its runtime, lacks a precision.
    #[error("{target} in {precision}: {why}\nhint: {hint}")]
    Precision {
        target: &'static str,
        precision: Precision,
        /// Missing feature.
        why: &'static str,
        hint: &'static str,
    },
    /// The model loses its answers in the requested precision.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// A file cannot be written or read.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// A file could not be put in place whole.
    #[error(transparent)]
    Write(#[from] enn_common::fs::FileError),
    #[error(transparent)]
    Graph(#[from] enn_common::graph::infer::GraphError),
    #[error("{what} is not available: {why}\nhint: {hint}")]
    Unavailable {
        what: &'static str,
        /// Reason, with the places that were searched.
        why: String,
        hint: String,
    },
    /// The graph file cannot be read.
    #[error(transparent)]
    File(#[from] enn_common::graph::file::GraphFileError),
    #[error(
        "{target}: it does not answer as the model does: {place}; the largest difference is {largest:.3e} of the spread, expected {tolerance:.0e}\nhint: --unverified publishes it nevertheless"
    )]
    Differs {
        target: &'static str,
        place: String,
        /// Largest difference in spreads of the targets.
        largest: f64,
        tolerance: f64,
    },
    /// The source of the format could not be made.
    #[error("{target} is made from an artifact that could not be made: {why}")]
    NoSource { target: &'static str, why: String },
    #[error(
        "{what} refused {path}: no answer within {} s\nhint: the machine may be too busy for it, or the model too large",
        time.as_secs()
    )]
    Late { what: &'static str, path: PathBuf, time: Duration },
    #[error("{what} refused {path}: {why}")]
    Refused {
        what: &'static str,
        path: PathBuf,
        /// Reason in the runtime's words, as far as they are useful.
        why: String,
    },
    /// The tool or runtime ended, or lacks something.
    #[error("{what} failed on {path}: {why}{}\nhint: {hint}", kept(log.as_deref()))]
    Failed {
        what: &'static str,
        path: PathBuf,
        /// Reason in our words.
        why: String,
        hint: String,
        /// File with the tool's own output, where it is kept.
        log: Option<PathBuf>,
    },
}

fn kept(log: Option<&Path>) -> String {
    log.map_or(String::new(), |log| format!("; its output is in {}", log.display()))
}

impl ExportError {
    /// Builds the error for an operation `op` at `place` that the format `target` cannot express.
    pub(crate) fn unsupported(target: &'static str, op: &str, place: &str, why: &str, hint: &str) -> Self {
        let [op, place, why, hint] = [op, place, why, hint].map(str::to_owned);
        Self::Unsupported { target, op, place, why, hint }
    }

    /// Builds the error for an artifact that the runtime or tool `what` refused.
    pub fn refused(what: &'static str, path: &Path, why: impl Into<String>) -> Self {
        Self::Refused { what, path: path.to_owned(), why: why.into() }
    }

    /// Wraps an error of the system; made to be used as `.map_err(ExportError::io(path))`.
    pub fn io(path: &Path) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    /// Moves the log of a failed tool from `from` to `to`, if there is one, and names it in the error.
    #[must_use]
    pub fn logged(mut self, from: &Path, to: &Path) -> Self {
        if let Self::Failed { log, .. } = &mut self
            && from.metadata().is_ok_and(|found| found.len() > 0)
            && std::fs::rename(from, to).is_ok()
        {
            *log = Some(to.to_owned());
        }
        self
    }
}
