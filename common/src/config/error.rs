//! Everything that can be wrong with a configuration, each with its place.

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
    /// The text is not TOML.
    #[error("not valid TOML: {0}")]
    Syntax(String),
    #[error("unknown key{}", hint(nearest.as_deref(), known))]
    UnknownKey {
        /// The nearest known key, when one is near.
        nearest: Option<String>,
        /// All keys allowed here.
        known: Vec<String>,
    },
    /// A key that must be there.
    #[error("missing; expected {0}")]
    Missing(&'static str),
    /// Value of another type.
    #[error("found {found}, expected {expected}")]
    Type {
        /// Key that was found, with its value.
        found: String,
        expected: String,
    },
    /// Value beyond its range.
    #[error("{found} is out of range, expected {expected}")]
    Range { found: String, expected: String },
    /// A name that is none of the allowed ones.
    #[error("unknown value \"{found}\"{}", hint(nearest.as_deref(), known))]
    UnknownName {
        found: String,
        /// The nearest allowed one.
        nearest: Option<String>,
        known: Vec<String>,
    },
    /// A list with nothing in it.
    #[error("the list is empty, expected at least one {0}")]
    Empty(&'static str),
    /// A name listed twice.
    #[error("\"{0}\" is listed twice")]
    Repeated(String),
    /// A column, or array, that is input and target.
    #[error(
        "\"{0}\" is a target as well, so that a model would be told what it is to predict; leave it out of one of the two"
    )]
    TargetAsInput(String),
    /// Width and heads do not fit.
    #[error("d_model = {d_model} is not divisible by heads = {heads}")]
    Heads { d_model: usize, heads: usize },
    /// The task forest cannot be.
    #[error("{0}")]
    Tasks(ForestError),
    /// A key that a sub-fuser does not have.
    #[error("a task with `reduction` joins other tasks and has no tokens of its own")]
    OfTemplate,
    /// None or several of `[data.rows]`, `[data.windows]`, `[data.arrays]`.
    #[error(
        "found {found}, expected exactly one of [data.rows], [data.windows], [data.arrays] (how table rows become samples)"
    )]
    Layouts { found: String },
    /// The output grid has another number of cells than there are targets.
    #[error("out_shape {shape:?} has {cells} cells, but {targets} target columns are listed")]
    OutShape { shape: Vec<usize>, cells: usize, targets: usize },
    /// Validation and test leave nothing to train on.
    #[error("val = {val} and test = {test} leave no rows to train on, expected a sum below 1")]
    Split { val: f64, test: f64 },
    /// A split rule that needs a column.
    #[error("the {0} split needs `column`, the name of the column to divide by")]
    SplitColumn(&'static str),
    /// Keeping duplicates makes no sense for windows.
    #[error(
        "\"keep\" cannot be used with [data.windows], where an entity and a time name one cell (use \"first\", \"last\" or \"error\")"
    )]
    KeepWindows,
    /// More workers than devices.
    #[error(
        "{workers} workers on CUDA, but this machine shows {gpus} GPUs (one worker per GPU; fewer workers, or device = \"cpu\")"
    )]
    Gpus { workers: usize, gpus: usize },
    /// More workers at least than at most.
    #[error("at least {fewest} workers are asked for, but only {workers} are started (nproc_per_node)")]
    MinAboveAll { fewest: u32, workers: u32 },
    /// A key that means nothing under `policy = "restart"`.
    #[error("needs policy = \"reform\": under \"restart\" all workers end and start again together")]
    NeedsReform,
    /// A key that the loss has no use for.
    #[error("means nothing with train.loss = \"{loss}\"; leave it out or choose another loss")]
    IdleForLoss {
        /// Name of the loss.
        loss: &'static str,
    },
    /// Classes without their loss, or the loss without classes.
    #[error(
        "is \"{loss}\", but the target is a {found}; train.loss = \"cross_entropy\" and data.rows.target_kind = \"category\" need each other"
    )]
    ClassLoss {
        /// Name of the loss.
        loss: &'static str,
        found: &'static str,
    },
    /// More than one categorical target.
    #[error("\"category\" takes one target column and no out_shape of several axes, found {targets} target columns")]
    OneClassTarget { targets: usize },
    /// A key for tables whose rows are samples.
    #[error("needs [data.rows]: only there a sample is one row of a table")]
    RowsOnly,
    /// Files of no source beside those of sources.
    #[error("stands beside [[data.sources]]; name the files of each source there")]
    FilesAndSources,
    /// A key of a feature of another kind.
    #[error("means nothing for a column of kind \"{found}\"; it belongs to kind = {kinds}")]
    OfKind {
        /// The kinds that have the key.
        kinds: &'static str,
        /// The kind it has.
        found: &'static str,
    },
    /// A unit of what is no number.
    #[error("is no input that is a number, so it has no unit; the inputs are the columns of the layout")]
    NotMeasured,
    /// Weights of some sources only.
    #[error(
        "{weighted} of {sources} sources have a weight; give one to each, or to none (then every row is drawn once in an epoch)"
    )]
    SomeWeights {
        /// Sources with a weight.
        weighted: usize,
        sources: usize,
    },
    /// A sentinel that nothing asks for.
    #[error("means nothing without data.mask = \"value\"")]
    IdleMaskValue,
    /// Tokens beside the usual ones and in their place.
    #[error(
        "stands in place of the usual texts, so that `missing` adds nothing to them; write all of them in one of the two"
    )]
    MissingTwice,
    /// CUDA asked for and not there.
    #[error("CUDA is asked for, but {0}")]
    NoCuda(&'static str),
    /// An override that is not key=value.
    #[error("\"{0}\" is not of the form section.key=value, e.g. train.epochs=3")]
    Override(String),
    /// The file cannot be read.
    #[error("cannot read {path}: {message}")]
    Read { path: PathBuf, message: String },
}

fn hint(nearest: Option<&str>, known: &[String]) -> String {
    match nearest {
        Some(nearest) => format!(" (did you mean `{nearest}`?)"),
        None => format!(" (expected one of: {})", known.join(", ")),
    }
}

/// The known name nearest to `found`, when it is near enough to be meant.
pub fn nearest<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let lower = found.to_lowercase();
    let allowed = (found.chars().count() / 3).max(2);
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&lower, name), name))
        .filter(|(distance, name)| *distance <= allowed && *distance < name.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name.to_owned())
}
