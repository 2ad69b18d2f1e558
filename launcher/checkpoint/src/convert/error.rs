//! Errors of saving, loading and converting models.

use enn_common::{
    artifact::seal::SealError,
    checkpoint::{CommitError, ReadError, ShardError, listing::FindError, state_file::StateFileError},
    fs::{FileError, displace::DisplaceError, space::SpaceError},
};
use std::path::{Path, PathBuf};

/// An error with a message of one sentence: the place, what was found, what was expected and a hint.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Space(#[from] SpaceError),
    #[error(transparent)]
    Displace(#[from] DisplaceError),
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Read(#[from] Box<ReadError>),
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Shard(#[from] ShardError),
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error(transparent)]
    StateFile(#[from] StateFileError),
    #[error("{} is not a safetensors file that can be read: {source}", path.display())]
    Safetensors { path: PathBuf, source: safetensors::SafeTensorError },
    #[error("{}: {what}", path.display())]
    Sharded { path: PathBuf, what: String },
    #[error("{} cannot hold {name}: safetensors has no element type {element}; give another form, or --dtype", path.display())]
    NoType { path: PathBuf, name: String, element: &'static str },
    #[error("{}: {what}", path.display())]
    InvalidOptions { path: PathBuf, what: String },
    #[error(
        "{} does not end like a form of a saved model; expected .safetensors, .pt, or a name without extension for a directory",
        path.display()
    )]
    Form { path: PathBuf },
    #[error("{} is there already; choose another name, or replace it with --replace", path.display())]
    Exists { path: PathBuf },
    #[error("{} does not say which model it holds: {what}; expected a model saved by enn", path.display())]
    NoModelCard { path: PathBuf, what: &'static str },
    #[error(
        "{} was saved by ENN for PyTorch ({about}): not all of its {tensors} tensors exist in ENN's model, so that it cannot be loaded as \
         a model; `enn train DATA.toml --from FILE --partial` begins with those that do, and `enn ckpt show` lists the use of each",
        path.display()
    )]
    Native { path: PathBuf, about: String, tensors: usize },
    #[error(
        "{} is dangerous: it mentions {mention}, which runs code when Python loads the file; expected a model saved by enn\n  hint: `enn ckpt \
         verify` lists all of it, and `enn ckpt convert` takes the tensors alone",
        path.display()
    )]
    Dangerous { path: PathBuf, mention: String },
    #[error("{} holds no tensors named best.…; expected a checkpoint of an ENN model", path.display())]
    NoWeights { path: PathBuf },
    #[error("{} does not fit its own description: {}", path.display(), list(problems))]
    Fit { path: PathBuf, problems: Vec<String> },
}

impl ConvertError {
    pub(super) fn sharded(path: &Path, what: impl Into<String>) -> Self {
        Self::Sharded { path: path.to_path_buf(), what: what.into() }
    }

    /// Returns the error of tensors that do not fit, with a single problem.
    pub(super) fn unfit(path: &Path, problem: String) -> Self {
        Self::Fit { path: path.to_path_buf(), problems: vec![problem] }
    }
}

impl From<ReadError> for ConvertError {
    fn from(error: ReadError) -> Self {
        Self::Read(Box::new(error))
    }
}

const PROBLEMS_MAX: usize = 12;

fn list(problems: &[String]) -> String {
    let listed = problems.iter().take(PROBLEMS_MAX).cloned().collect::<Vec<_>>().join("; ");
    match problems.len().checked_sub(PROBLEMS_MAX) {
        Some(more @ 1..) => format!("{listed}; and {more} more"),
        _ => listed,
    }
}
