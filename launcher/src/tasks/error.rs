//! Why the tasks of a configuration cannot be read or edited.

use enn_common::config::{ConfigError, forest::ForestError};
use std::path::PathBuf;

/// Why an edit was not made.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// All mistakes in the model section.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<ConfigError>),
    /// The edit would leave no valid forest.
    #[error("{}: {source}", path.display())]
    Forest { path: PathBuf, source: ForestError },
    /// The section is an inline table.
    #[error("{}: `{key}` is written in braces, expected [{key}]\nhint: only sections of their own can be edited", path.display())]
    Inline { path: PathBuf, key: &'static str },
    /// The task cannot have this key.
    #[error("\"{name}\" is a {what}, which has no {key}")]
    Key { name: String, what: &'static str, key: &'static str },
    /// Neither of the two flags was given, or both.
    #[error("give --mode for a template, or --reduction for a sub-fuser; not both")]
    Kind,
    /// The edited text does not mean what the edit asked for, which is a bug.
    #[error("{}: the edited text means something else than the edit, which is a bug; nothing was written", path.display())]
    Differs { path: PathBuf },
}
