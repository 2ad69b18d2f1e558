//! Makes shards a checkpoint: check them, write `.metadata` and the manifest, give the directory its name.
//!
//! ```text
//! .step-N.tmp-A/ shards fsynced by their writers → .metadata, manifest.json fsynced → fsync(dir) → rename → fsync(parent)
//! ```
//! **Invariant:** the name `step-N` appears in one step, and only on a directory whose every byte is durable. An error or a
//! crash at any point leaves every committed checkpoint as it was.

use super::{
    manifest::{Draft, FileEntry, Manifest},
    metadata::{MergeError, Metadata},
    name,
    table::ShardTable,
};
use crate::{
    artifact::seal::{self, SealError},
    fs::{Disk, FileError, Storage, atomic},
};
use std::path::{Path, PathBuf};

/// A checkpoint that is durable under its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    pub step: u64,
    pub path: PathBuf,
    pub bytes: u64,
    pub files: u64,
}

/// Why a checkpoint was not committed. The one before stands.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error("the shards of step {step} do not fit together: {source}")]
    Merge { step: u64, source: Box<MergeError> },
    #[error("{} has {found} bytes, its writer said {expected}; it was cut or changed after it was written", path.display())]
    Length { path: PathBuf, found: u64, expected: u64 },
}

/// Commits the shards in `temporary` as `checkpoints/step-N`, where `checkpoints` is the parent of `committed`.
///
/// `tables` are those of all ranks. A directory that already has the name (the run was resumed from an older step) is
/// exchanged with the new one in one step and removed.
pub fn commit(
    temporary: &Path,
    committed: &Path,
    tables: &[ShardTable],
    draft: Draft,
) -> Result<Committed, CommitError> {
    commit_on(&Disk, temporary, committed, tables, draft)
}

pub fn commit_on(
    storage: &dyn Storage,
    temporary: &Path,
    committed: &Path,
    tables: &[ShardTable],
    draft: Draft,
) -> Result<Committed, CommitError> {
    let step = draft.step;
    let metadata = Metadata::merge(tables).map_err(|error| CommitError::Merge { step, source: Box::new(error) })?;
    let shards = tables.iter().map(FileEntry::of_shard).collect::<Result<Vec<_>, _>>();
    let shards = shards.map_err(|error| CommitError::Merge { step, source: Box::new(error) })?;
    for shard in &shards {
        let path = shard.path.below(temporary);
        let found = storage.len(&path)?;
        if found != shard.bytes {
            return Err(CommitError::Length { path, found, expected: shard.bytes });
        }
    }
    let dcp = metadata.to_bytes(&Manifest::save_id(&draft));
    let manifest = Manifest::new(draft, shards, &metadata, &dcp);
    let sealed = seal::seal(&temporary.join(name::MANIFEST), &manifest)?;
    // The directory is not yet visible under its name, so that plain writes are enough.
    storage.write(&temporary.join(name::METADATA), &[&dcp])?;
    storage.write(&temporary.join(name::MANIFEST), &[&sealed])?;
    atomic::place_dir_on(storage, temporary, committed)?;
    let bytes = manifest.bytes() + sealed.len() as u64;
    let files = manifest.files.len() as u64 + 1;
    Ok(Committed { step, path: committed.to_path_buf(), bytes, files })
}
