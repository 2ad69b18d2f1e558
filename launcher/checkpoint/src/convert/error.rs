//! Errors of saving, loading and converting models.

use enn_common::{
    artifact::seal::SealError,
    checkpoint::{CommitError, ReadError, ShardError, listing::FindError, state_file::StateFileError},
    fs::{FileError, displace::DisplaceError, space::SpaceError},
};
use std::path::PathBuf;

/// An error with a message of one sentence: the place, what was found, what was expected and a hint.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The existing target may not be replaced.
    #[error(transparent)]
    Displace(#[from] DisplaceError),
    /// There is no checkpoint at the given place.
    #[error(transparent)]
    Find(#[from] FindError),
    /// A checkpoint is damaged.
    #[error(transparent)]
    Read(#[from] Box<ReadError>),
    /// A manifest is damaged.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The checkpoint could not be written.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The checkpoint could not be committed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// A .pt file is damaged or not of ENN.
    #[error(transparent)]
    StateFile(#[from] StateFileError),
    /// A .safetensors file is damaged.
    #[error("{} is not a safetensors file that can be read: {source}", path.display())]
    Safetensors { path: PathBuf, source: safetensors::SafeTensorError },
    /// Files that are not one set of tensors.
    #[error("{}: {what}", path.display())]
    Sharded { path: PathBuf, what: String },
    /// The format has no name for the element type.
    #[error("{} cannot hold {name}: safetensors has no element type {element}; give another form, or --dtype", path.display())]
    NoType { path: PathBuf, name: String, element: &'static str },
    /// The options do not fit the source or the target.
    #[error("{}: {what}", path.display())]
    InvalidOptions { path: PathBuf, what: String },
    /// The name has no known extension.
    #[error(
        "{} does not end like a form of a saved model; expected .safetensors, .pt, or a name without extension for a directory",
        path.display()
    )]
    Form { path: PathBuf },
    /// The target is there already.
    #[error("{} is there already; choose another name, or replace it with --replace", path.display())]
    Exists { path: PathBuf },
    /// The source contains weights but no description of the model.
    #[error("{} does not say which model it holds: {what}; expected a model saved by enn", path.display())]
    NoModelCard { path: PathBuf, what: &'static str },
    /// A file of ENN for PyTorch, whose layers differ.
    #[error(
        "{} was saved by ENN for PyTorch ({about}): not all of its {tensors} tensors exist in ENN's model, so that it cannot be loaded as \
         a model; `enn train DATA.toml --from FILE --partial` begins with those that do, and `enn ckpt show` lists the use of each",
        path.display()
    )]
    Native {
        path: PathBuf,
        /// The file's description of the model.
        about: String,
        /// The number of tensors of its state.
        tensors: usize,
    },
    /// A file that runs code when Python loads it.
    #[error(
        "{} is dangerous: it mentions {mention}, which runs code when Python loads the file; expected a model saved by enn\n  hint: `enn ckpt \
         verify` lists all of it, and `enn ckpt convert` takes the tensors alone",
        path.display()
    )]
    Dangerous { path: PathBuf, mention: String },
    /// The checkpoint has no best weights.
    #[error("{} holds no tensors named best.…; expected a checkpoint of an ENN model", path.display())]
    NoWeights { path: PathBuf },
    /// The tensors do not match the model card.
    #[error("{} does not fit its own description: {}", path.display(), list(problems))]
    Fit {
        path: PathBuf,
        /// Sentences about mismatches, one for each tensor.
        problems: Vec<String>,
    },
}

impl From<ReadError> for ConvertError {
    fn from(error: ReadError) -> Self {
        Self::Read(Box::new(error))
    }
}

/// Maximum number of problems in one message.
const PROBLEMS_MAX: usize = 12;

fn list(problems: &[String]) -> String {
    let listed = problems.iter().take(PROBLEMS_MAX).cloned().collect::<Vec<_>>().join("; ");
    match problems.len().checked_sub(PROBLEMS_MAX) {
        Some(more @ 1..) => format!("{listed}; and {more} more"),
        _ => listed,
    }
}
