//! What is said beside an exported model, in `ARTIFACT.json`: what goes in, what comes out, where it comes from, and how it was checked.

use super::bounds::Bounds;
use crate::fs::RelPath;
use crate::staged::{StagedMeta, meta::LabelMeta};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Of this file's form. Since 2 it says how rows become inputs: [`Sidecar::data`] and [`Sidecar::staged`]; since 3 which files there are.
pub const VERSION: u32 = 3;

/// All that is said of one artifact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sidecar {
    pub version: u32,
    /// Name of the format, as `enn export --to` takes it.
    pub format: String,
    /// The artifact's name beside this file; a directory for some formats.
    pub artifact: String,
    pub bytes: u64,
    /// blake3 of the file, or of the list of a directory's files with theirs, hex.
    pub blake3: String,
    pub files: Vec<ArtifactFile>,
    pub model: Origin,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// The columns of the input `x`, in order.
    pub columns: Vec<Column>,
    /// Names along each axis of the output behind the batch.
    pub labels: Vec<Vec<String>>,
    /// Unit of the output; empty when unknown.
    pub units: String,
    /// Levels of the quantiles, where there are any.
    pub levels: Vec<f64>,
    /// Levels that the model itself predicts, whether or not they come out here.
    pub model_levels: Vec<f64>,
    /// Rows of one call.
    pub batch: BatchRows,
    /// Precision of stored weights and of products: "fp32", "fp16" or "bf16".
    pub precision: String,
    /// Versions of what made it: enn, libtorch, opset, schema, tools.
    pub versions: BTreeMap<String, String>,
    /// blake3 of the graph and of what is known beforehand, hex: equal for equal functions, whatever the format.
    pub graph: String,
    /// The format it was made from by another tool, and that file's digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Other properties, e.g. the instruction set it was compiled for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub notes: BTreeMap<String, String>,
    pub verified: Verified,
    /// Programs beside it that use it.
    #[serde(default)]
    pub usage: Vec<String>,
    /// Configuration of the model, `[model]`.
    pub config: serde_json::Value,
    /// Means and spreads that are inside the graph: of the columns, then of the output's cells.
    pub scaler: [Vec<[f64; 2]>; 2],
    /// How a table becomes columns: the run's `[data]`, with no more of its files than the name of the first.
    pub data: serde_json::Value,
    /// Description of the training data without their rows: categories, statistics and bounds that new rows are read by.
    pub staged: StagedMeta,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ArtifactFile {
    /// From where the artifact lies, with `/`; it begins with the artifact's name.
    pub path: RelPath,
    pub bytes: u64,
    /// Digest of the file, hex.
    pub sha256: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub run: String,
    pub step: u64,
    /// blake3 of the checkpoint's manifest, hex.
    pub checkpoint: String,
}

/// A tensor that goes in or comes out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    pub name: String,
    pub dtype: String,
    /// Sizes; "batch" for rows.
    pub shape: Vec<crate::graph::Dim>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Column {
    pub name: String,
    /// Unit of a number, where it is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub units: String,
    /// Categories in the order of their numbers; empty for a number. A category goes in by its number, any other whole number is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// The integer of category 0, where the categories are the integers from it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// Meaning of a number that is 1 or 0: whether a cell of this source column has this label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<LabelMeta>,
    /// How a number follows from a time stamp, in a sentence; empty where it is what the column's name says.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub how: String,
    /// Whether training has seen it missing. NaN stands for a missing value.
    pub may_be_missing: bool,
    /// Which of its numbers count, and which are missing: the artifact has these rules inside.
    #[serde(default, skip_serializing_if = "Bounds::is_open")]
    pub bounds: Bounds,
}

/// Rows of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRows {
    pub min: u64,
    /// Number of rows that the artifact is tuned for.
    pub opt: u64,
    /// Most; no more than a promise where a format states no bound.
    pub max: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    pub format: String,
    /// blake3, hex.
    pub blake3: String,
}

/// How far an artifact was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The artifact ran in its own runtime and answered as the model does.
    Runtime,
    /// The artifact was read again and is consistent; its runtime does not run here.
    Structure,
    /// Not at all, because that was asked for.
    None,
}

/// How an artifact was checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    pub level: Level,
    pub runtime: String,
    pub batches: Vec<u64>,
    /// Rows, those with something wrong in them among them.
    pub rows: u64,
    /// Where the rows come from: "test", "val", "train" or "drawn".
    pub from: String,
    /// Largest difference from the model's own answers, in spreads of the targets or, far outside, of the answer itself.
    pub largest: f64,
    /// Mean difference in the same units.
    pub mean: f64,
    /// Limit on the largest difference.
    pub tolerance: f64,
    pub seconds: f64,
}
