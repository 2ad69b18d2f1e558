//! Everything that can be wrong with a configuration, each with its place.

pub use super::nearest::nearest;

use super::forest::ForestError;
use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a file; line and column count from 1, the column in characters.
    File { path: Arc<Path>, line: usize, column: usize },
    /// On the command line.
    Flag(Arc<str>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

/// One mistake: where, at which key, and what.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{place}: {}{kind}", if key.is_empty() { String::new() } else { format!("{key}: ") })]
pub struct ConfigError {
    pub place: Place,
    /// Key path, e.g. "train.epochs"; empty for the whole file.
    pub key: String,
    pub kind: ConfigErrorKind,
}

/// Kinds of mistake; the sentences follow "place: key: ".
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigErrorKind {
    #[error("not valid TOML: {0}")]
    Syntax(String),
    #[error("unknown key{}", hint(nearest.as_deref(), known))]
    UnknownKey { nearest: Option<String>, known: Vec<String> },
    #[error("missing; expected {0}")]
    Missing(&'static str),
    #[error("found {found}, expected {expected}")]
    Type { found: String, expected: String },
    #[error("{found} is out of range, expected {expected}")]
    Range { found: String, expected: String },
    #[error("unknown value \"{found}\"{}", hint(nearest.as_deref(), known))]
    UnknownName { found: String, nearest: Option<String>, known: Vec<String> },
    #[error("the list is empty, expected at least one {0}")]
    Empty(&'static str),
    #[error("\"{0}\" is listed twice")]
    Repeated(String),
    #[error(
        "\"{0}\" is a target as well, so that a model would be told what it is to predict; leave it out of one of the two"
    )]
    TargetAsInput(String),
    #[error("belongs to features = \"*\"; leave these columns out of the list instead")]
    ExceptWithoutAll,
    #[error("the table has no column \"{found}\"{}", nearest.as_ref().map_or_else(String::new, |name| format!(" (did you mean \"{name}\"?)")))]
    UnknownColumn { found: String, nearest: Option<String> },
    #[error("d_model = {d_model} is not divisible by heads = {heads}")]
    Heads { d_model: usize, heads: usize },
    #[error("{0}")]
    Tasks(ForestError),
    #[error("a task with `reduction` joins other tasks and has no tokens of its own")]
    OfTemplate,
    /// None or several of `[data.rows]`, `[data.windows]`, `[data.arrays]`.
    #[error(
        "found {found}, expected exactly one of [data.rows], [data.windows], [data.arrays] (how table rows become samples)"
    )]
    Layouts { found: String },
    #[error("out_shape {shape:?} has {cells} cells, but {targets} target columns are listed")]
    OutShape { shape: Vec<usize>, cells: usize, targets: usize },
    #[error("val = {val} and test = {test} leave no rows to train on, expected a sum below 1")]
    Split { val: f64, test: f64 },
    #[error("the {0} split needs `column`, the name of the column to divide by")]
    SplitColumn(&'static str),
    #[error(
        "\"keep\" cannot be used with [data.windows], where an entity and a time name one cell (use \"first\", \"last\" or \"error\")"
    )]
    KeepWindows,
    #[error(
        "{workers} workers on CUDA, but this machine shows {gpus} GPU{} (one worker per GPU; fewer workers, or device = \"cpu\")",
        if *gpus == 1 { "" } else { "s" }
    )]
    Gpus { workers: usize, gpus: usize },
    #[error("at least {fewest} workers are asked for, but only {workers} are started (nproc_per_node)")]
    MinAboveAll { fewest: u32, workers: u32 },
    #[error("needs policy = \"reform\": under \"restart\" all workers end and start again together")]
    NeedsReform,
    #[error("means nothing with train.loss = \"{loss}\"; leave it out or choose another loss")]
    IdleForLoss { loss: &'static str },
    #[error(
        "is \"{loss}\", but the target is a {found}; train.loss = \"cross_entropy\" and data.rows.target_kind = \"category\" need each other"
    )]
    ClassLoss { loss: &'static str, found: &'static str },
    #[error("\"category\" takes one target column and no out_shape of several axes, found {targets} target columns")]
    OneClassTarget { targets: usize },
    #[error("needs [data.rows]: only there a sample is one row of a table")]
    RowsOnly,
    #[error("stands beside [[data.sources]]; name the files of each source there")]
    FilesAndSources,
    #[error("means nothing for a column of kind \"{found}\"; it belongs to kind = {kinds}")]
    OfKind { kinds: &'static str, found: &'static str },
    #[error("is no input that is a number, so it has no unit; the inputs are the columns of the layout")]
    NotMeasured,
    #[error(
        "{weighted} of {sources} sources have a weight; give one to each, or to none (then every row is drawn once in an epoch)"
    )]
    SomeWeights { weighted: usize, sources: usize },
    #[error("means nothing without data.mask = \"value\"")]
    IdleMaskValue,
    #[error(
        "stands in place of the usual texts, so that `missing` adds nothing to them; write all of them in one of the two"
    )]
    MissingTwice,
    #[error("CUDA is asked for, but {0}")]
    NoCuda(&'static str),
    #[error("\"{0}\" is not of the form section.key=value, e.g. train.epochs=3")]
    Override(String),
    #[error("cannot read {path}: {message}")]
    Read { path: PathBuf, message: String },
}

fn hint(nearest: Option<&str>, known: &[String]) -> String {
    match nearest {
        Some(nearest) => format!(" (did you mean `{nearest}`?)"),
        None => format!(" (expected one of: {})", known.join(", ")),
    }
}
