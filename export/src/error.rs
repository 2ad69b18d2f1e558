//! What can go wrong between a graph and a checked file.

use crate::precision::Precision;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// A number that a precision does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place} in {precision}: {found}\nhint: export it in bf16, which holds numbers of any size, or in fp32")]
pub struct Lost {
    /// What was asked for.
    pub precision: Precision,
    /// Place in the model, or the weight's name.
    pub place: String,
    pub found: String,
}

/// An export that failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// An operation that a format does not have.
    #[error("{target}: no way to write {op} at {place}: {why}\nhint: {hint}")]
    Unsupported {
        target: &'static str,
        /// The operation, with what is special about it.
        op: String,
        /// Place in the model.
        place: String,
        /// What stands in the way.
        why: String,
        hint: String,
    },
    /// A precision that a format, or what runs it, does not have.
    #[error("{target} in {precision}: {why}\nhint: {hint}")]
    Precision {
        target: &'static str,
        /// What was asked for.
        precision: Precision,
        /// What stands in the way.
        why: &'static str,
        hint: &'static str,
    },
    /// A model that loses its answers in the precision asked for.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// A file that cannot be written or read.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// A file that could not be put in place whole.
    #[error(transparent)]
    Write(#[from] enn_common::fs::FileError),
    /// A graph that contradicts itself.
    #[error(transparent)]
    Graph(#[from] enn_common::graph::infer::GraphError),
    /// A runtime or tool that is not there.
    #[error("{what} is not available: {why}\nhint: {hint}")]
    Unavailable {
        what: &'static str,
        /// What was looked for and not found.
        why: String,
        /// How to get it.
        hint: String,
    },
    /// A graph that cannot be read.
    #[error(transparent)]
    File(#[from] enn_common::graph::file::FileError),
    /// An artifact that answers otherwise than the model.
    #[error(
        "{target}: it does not answer as the model does: {place}; the largest difference is {largest:.3e} of the spread, expected {tolerance:.0e}\nhint: --unverified publishes it all the same"
    )]
    Differs {
        target: &'static str,
        place: String,
        /// By how much, in spreads of the targets.
        largest: f64,
        /// What it may be.
        tolerance: f64,
    },
    /// A format whose source was not made.
    #[error("{target} is made from an artifact that could not be made: {why}")]
    NoSource {
        target: &'static str,
        /// Why there is none.
        why: String,
    },
    /// A runtime or tool that does not answer.
    #[error(
        "{what} refused {path}: no answer within {} s\nhint: the machine may be too busy for it, or the model too large",
        time.as_secs()
    )]
    Late {
        what: &'static str,
        path: PathBuf,
        /// How long it was waited for.
        time: Duration,
    },
    /// A runtime or tool that refused an artifact.
    #[error("{what} refused {path}: {why}")]
    Refused {
        what: &'static str,
        path: PathBuf,
        /// In its words, as far as they say something.
        why: String,
    },
    /// A tool or runtime that ended, or lacks something.
    #[error("{what} failed on {path}: {why}{}\nhint: {hint}", kept(log.as_deref()))]
    Failed {
        what: &'static str,
        path: PathBuf,
        /// Why, in our words.
        why: String,
        hint: String,
        /// Its own words, where they are kept.
        log: Option<PathBuf>,
    },
}

fn kept(log: Option<&Path>) -> String {
    log.map_or(String::new(), |log| format!("; its own words are in {}", log.display()))
}

impl ExportError {
    /// The same of one whose words were left at `from`, if they were: they are kept at `to` from now on.
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
