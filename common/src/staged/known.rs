//! What is remembered of source files between two runs: `.sources.json` beside the staged directories.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs::Metadata, os::unix::fs::MetadataExt, path::PathBuf};

/// A file as the system describes it. Two equal identities at different times mean unchanged contents, unless the second is
/// younger than the resolution of the file system's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Length, bytes.
    pub bytes: u64,
    pub device: u64,
    pub inode: u64,
    /// Last change of the contents, nanoseconds since the Unix epoch.
    pub modified_ns: i64,
    /// Last change of contents or attributes, nanoseconds since the Unix epoch.
    pub changed_ns: i64,
}

impl From<&Metadata> for FileIdentity {
    fn from(metadata: &Metadata) -> Self {
        let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
        Self {
            bytes: metadata.len(),
            device: metadata.dev(),
            inode: metadata.ino(),
            modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A file whose contents were hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownSource {
    pub identity: FileIdentity,
    /// Digest of its contents, hex.
    pub digest: String,
}

pub type KnownSources = BTreeMap<PathBuf, KnownSource>;
