//! Errors of transfers to and from object stores.

use enn_common::{
    artifact::seal::SealError,
    checkpoint::ReadError,
    fs::{FileError, displace::DisplaceError, space::SpaceError},
};
use std::path::PathBuf;

/// An error with a message of one sentence: the place, what was found, what was expected and a hint.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Space(#[from] SpaceError),
    #[error(transparent)]
    Displace(#[from] DisplaceError),
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Read(#[from] Box<ReadError>),
    #[error(
        "{place}: {what}; expected s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH, file:///PATH or a directory"
    )]
    Place {
        /// The address as given, without possible passwords.
        place: String,
        what: String,
    },
    #[error("cannot {action} {place}: {what}")]
    Store {
        action: &'static str,
        place: String,
        /// The store's message without secrets.
        what: String,
    },
    #[error("cannot read {place}: it is not there, or not of its length")]
    Missing { place: String },
    #[error("{address} names no run; expected the address of a directory of runs, and the run's name behind it")]
    NoRun { address: String },
    #[error(
        "{place} holds {step}, which the copy in {} has not seen: another enn has continued the run\n  hint: the work done here stays \
         there; `enn train --resume {place}` continues from the address", dir.display()
    )]
    Superseded {
        place: String,
        /// The name of the checkpoint.
        step: String,
        dir: PathBuf,
    },
    #[error("{} is being fetched by another enn for {waited} s; wait for it, or stop it", dir.display())]
    Busy { dir: PathBuf, waited: u64 },
    #[error("cannot start the network's runtime: {0}")]
    Runtime(std::io::Error),
    #[error("{place} holds no checkpoint: {what}")]
    NoCheckpoint { place: String, what: String },
    #[error("{place} is there already and is another one; choose another place, or say --replace")]
    Exists { place: String },
    #[error("{place} lists the file {file:?}; expected the name of a file that lies there")]
    FileName { place: String, file: String },
}

impl RemoteError {
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

/// Removes the query part of addresses from a store's message, since it contains signatures and keys.
pub(super) fn scrub(text: &str) -> String {
    let clean = |word: &str| match word.split_once('?') {
        Some((address, _)) if address.contains("://") => format!("{address}?…"),
        _ => word.to_owned(),
    };
    let line = text.split_whitespace().map(clean).collect::<Vec<_>>().join(" ");
    line.chars().take(600).collect()
}
