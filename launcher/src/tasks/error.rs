//! Why the tasks of a configuration cannot be read or edited.

use enn_common::config::{ConfigError, forest::ForestError};
use std::path::PathBuf;

/// Why an edit was not made.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// Mistakes in the model section, all of them.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<ConfigError>),
    /// The edit itself.
    #[error("{}: {source}", path.display())]
    Forest { path: PathBuf, source: ForestError },
    /// A section in braces.
    #[error("{}: `{key}` is written in braces, expected [{key}]\nhint: only sections of their own can be edited", path.display())]
    Inline { path: PathBuf, key: &'static str },
    /// A key that the task cannot have.
    #[error("\"{name}\" is a {what}, which has no {key}")]
    Key { name: String, what: &'static str, key: &'static str },
    /// Neither or both.
    #[error("give --mode for a template, or --reduction for a sub-fuser; not both")]
    Kind,
    /// A bug.
    #[error("{}: the edited text means something else than the edit, which is a bug; nothing was written", path.display())]
    Differs { path: PathBuf },
}
