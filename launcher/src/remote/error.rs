//! Why something could not be moved to or from an object store.

use enn_common::{
    artifact::seal::SealError,
    checkpoint::ReadError,
    fs::{FileError, displace::DisplaceError, space::SpaceError},
};
use std::path::PathBuf;

/// One sentence with place, found, expected and, where there is one, a hint.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The disk.
    #[error(transparent)]
    File(#[from] FileError),
    /// Too little room.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// What is there is not replaced.
    #[error(transparent)]
    Displace(#[from] DisplaceError),
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
        what: String,
    },
    /// The store says no.
    #[error("cannot {action} {place}: {what}")]
    Store {
        action: &'static str,
        place: String,
        /// What the store said, without secrets.
        what: String,
    },
    /// A file that a manifest lists, or that.
    #[error("cannot read {place}: it is not there, or not of its length")]
    Missing { place: String },
    /// An address that names no run.
    #[error("{address} names no run; expected the address of a directory of runs, and the run's name behind it")]
    NoRun { address: String },
    /// Somebody else went on with the run.
    #[error(
        "{place} holds {step}, which the copy in {} has not seen: another enn has gone on with the run\n  hint: what was done here is \
         left there; `enn train --resume {place}` goes on from what is at the address", dir.display()
    )]
    Outgrown {
        place: String,
        /// Name of the checkpoint.
        step: String,
        dir: PathBuf,
    },
    /// Another process fetches the same.
    #[error("{} is being fetched by another enn for {waited} s; wait for it, or stop it", dir.display())]
    Busy {
        dir: PathBuf,
        /// Seconds.
        waited: u64,
    },
    /// The runtime of the store could not be made.
    #[error("cannot start the network's runtime: {0}")]
    Runtime(std::io::Error),
    /// Nothing to pull.
    #[error("{place} holds no checkpoint: {what}")]
    NoCheckpoint {
        place: String,
        /// What was looked for.
        what: String,
    },
    /// The target is there already.
    #[error("{place} is there already and is another one; choose another place, or say --replace")]
    Exists { place: String },
    /// A manifest or a store that names a file elsewhere.
    #[error("{place} lists the file {file:?}; expected the name of a file that lies there")]
    FileName { place: String, file: String },
}

impl RemoteError {
    /// Whether the checkpoint at the place is to blame.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Read(error) => error.is_damage(),
            Self::Seal(_) | Self::Missing { .. } | Self::FileName { .. } => true,
            _ => false,
        }
    }
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
