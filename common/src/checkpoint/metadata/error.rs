//! Why `.metadata` cannot be read, or not be made.

use crate::{
    checkpoint::{boxes::CoverageError, unpickle::UnpickleError},
    fs::PathError,
};

/// The version of the format that is read, up to its first point. PyTorch 2.6 writes none, later ones 1.0.0.
pub(super) const VERSION_MAJOR: &str = "1";

/// Why `.metadata` was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    #[error(transparent)]
    Pickle(#[from] UnpickleError),
    #[error("{name} has no {field} that can be read")]
    Field { name: String, field: &'static str },
    #[error("{name} at {offsets:?} is listed, but no file holds it")]
    NoPlace {
        name: String,
        /// Beginning of the chunk; empty for a value.
        offsets: Vec<u64>,
    },
    #[error("{name} is said to lie elsewhere: {source}")]
    Path { name: String, source: PathError },
    #[error("found version {found:?}, expected {VERSION_MAJOR}.…; hint: copy it with the PyTorch that wrote it")]
    Version { found: String },
    #[error("two ranks disagree on the type or shape of {name}")]
    Disagree { name: String },
}

/// Why the tables of the ranks do not make one checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    #[error("two ranks say that they wrote {file}")]
    SameFile { file: String },
    #[error("the shard name {file:?} is not a plain file name")]
    FileName { file: String },
    #[error("tensor {fqn}: {file} says {found}, another shard says {expected}")]
    Disagree { fqn: String, file: String, found: String, expected: String },
    #[error("tensor {fqn}: {source}")]
    Coverage { fqn: String, source: Box<CoverageError> },
    /// A value is in two shards, or a name is a tensor in one and a value in the other.
    #[error("{fqn} is in {file} and in another shard")]
    Twice { fqn: String, file: String },
}
