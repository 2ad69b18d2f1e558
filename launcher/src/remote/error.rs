//! Why something could not be moved to or from an object store.

use enn_common::{
    artifact::seal::SealError,
    checkpoint::ReadError,
    fs::{FileError, space::SpaceError},
};

/// One sentence with place, found, expected and, where there is one, a hint.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The disk.
    #[error(transparent)]
    File(#[from] FileError),
    /// Too little room.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// A manifest.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// A checkpoint that cannot be read.
    #[error(transparent)]
    Read(#[from] Box<ReadError>),
    /// The place is none.
    #[error(
        "{place}: {what}; expected s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH, file:///PATH or a directory"
    )]
    Place {
        /// As given, without what could be a password.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// The store says no.
    #[error("cannot {action} {place}: {what}")]
    Store {
        /// Verb.
        action: &'static str,
        /// Object.
        place: String,
        /// What the store said, without secrets.
        what: String,
    },
    /// The runtime of the store could not be made.
    #[error("cannot start the network's runtime: {0}")]
    Runtime(std::io::Error),
    /// Nothing to pull.
    #[error("{place} holds no checkpoint: {what}")]
    NoCheckpoint {
        /// Place.
        place: String,
        /// What was looked for.
        what: String,
    },
    /// The target is there already.
    #[error("{place} is there already and is another one; choose another place, or say --replace")]
    Exists {
        /// Target.
        place: String,
    },
    /// A manifest that names a file elsewhere.
    #[error("the manifest of {place} names the file {file:?}, which is no plain file name")]
    FileName {
        /// Place.
        place: String,
        /// File.
        file: String,
    },
}

impl From<ReadError> for RemoteError {
    fn from(error: ReadError) -> Self {
        Self::Read(Box::new(error))
    }
}

/// What a store said, without what follows a question mark in an address: signatures and keys are there.
pub(super) fn scrub(text: &str) -> String {
    let clean = |word: &str| match word.split_once('?') {
        Some((address, _)) if address.contains("://") => format!("{address}?…"),
        _ => word.to_owned(),
    };
    let line = text.split_whitespace().map(clean).collect::<Vec<_>>().join(" ");
    line.chars().take(600).collect()
}
