//! Why the tasks of a configuration cannot be read or edited.

use enn_common::config::{ConfigError, forest::ForestError};
use std::path::PathBuf;

/// Why an edit was not made.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<ConfigError>),
    #[error("{}: {source}", path.display())]
    Forest { path: PathBuf, source: ForestError },
    #[error("{}: `{key}` is written in braces, expected [{key}]\nhint: only sections of their own can be edited", path.display())]
    Inline { path: PathBuf, key: &'static str },
    #[error("\"{name}\" is a {what}, which has no {key}")]
    Key { name: String, what: &'static str, key: &'static str },
    #[error("give --mode for a template, or --reduction for a sub-fuser; not both")]
    Kind,
    #[error("{}: the edited text means something else than the edit, which is a bug; nothing was written", path.display())]
    Differs { path: PathBuf },
}
