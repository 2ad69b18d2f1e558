//! Between `enn export` and the worker that makes a graph of a model, over the worker's standard input and output: a line of JSON each
//! way, by [`put`](super::serve::put) and [`get`](super::serve::get).
//!
//! ```text
//! enn ─► Job            worker ─► Exported | Failed
//! ```
//! The worker leaves the graph (`crate::graph::file`) and [`CASES`] in the job's directory.

use crate::artifact::bounds::Bounds;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Rows with the model's own answers, a safetensors file of f32: inputs under [`GIVEN`], outputs under [`ANSWERED`], both with the
/// graph's names behind, rows first.
pub const CASES: &str = "cases.safetensors";
/// Prefix of an input's name.
pub const GIVEN: &str = "given.";
/// Prefix of an output's name.
pub const ANSWERED: &str = "answered.";
/// Mean and spread of the targets over the training rows, in the output's shape: what a difference is measured by.
pub const CENTRE: &str = "centre";
pub const SPREAD: &str = "spread";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExportJob {
    /// `message::PROTOCOL`.
    pub protocol: u32,
    /// Committed checkpoint; its best weights leave.
    pub checkpoint: PathBuf,
    /// Staged data of the training, if they are still there: the rows of the cases come from what was held out.
    pub staged: Option<PathBuf>,
    /// Rows of the cases besides those with something wrong in them.
    pub rows: u64,
    pub out: PathBuf,
    /// Whether the quantiles of the loss are answered too.
    pub quantiles: bool,
    /// Whether the state of a stream goes in and comes out.
    pub stream: bool,
    pub threads: u32,
    /// Which numbers of each input are believed; empty: all that are finite.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<Bounds>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportReply {
    /// Graph and cases are written.
    Exported {
        /// Where the rows of the cases come from: "test", "val" or "train", or "drawn" where no data are there.
        rows: String,
    },
    Failed {
        error: String,
    },
}
