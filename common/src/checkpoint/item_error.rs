//! Why an item of a checkpoint cannot be read.

use super::{unpickle::UnpickleError, zip::ZipError};
use std::io;

/// Why an item could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ItemError {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("the file ends before it does")]
    Cut,
    #[error(transparent)]
    Zip(#[from] ZipError),
    #[error(transparent)]
    Pickle(#[from] UnpickleError),
    #[error("its record {name} is missing or has another size than its pickle says")]
    Record { name: String },
    #[error("it is {found}, not what .metadata says")]
    Mismatch { found: String },
    #[error("it is {what}, which is not read")]
    Unsupported { what: String },
    #[error(
        "its bytes have CRC-32 {found:08x}, {expected:08x} was written: it is damaged or belongs to another checkpoint"
    )]
    Checksum { found: u32, expected: u32 },
}

impl ItemError {
    /// Whether the bytes are wrong, and not merely of a kind that is not read.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Io(_)
            | Self::Cut
            | Self::Zip(_)
            | Self::Record { .. }
            | Self::Mismatch { .. }
            | Self::Checksum { .. } => true,
            Self::Pickle(error) => matches!(error, UnpickleError::Short { .. } | UnpickleError::Operand { .. }),
            Self::Unsupported { .. } => false,
        }
    }
}
