//! What `enn ckpt ls`, `show` and `verify` tell: the checkpoints of a run, complete or not, for people and machines.

use super::{Checkpoint, Latest, Manifest, ReadError, latest, name};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// One line of `enn ckpt ls`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    pub step: u64,
    pub path: PathBuf,
    /// Whether it can be resumed from: the manifest is whole and all files have their size.
    pub complete: bool,
    /// Bytes of its files; 0 when unknown.
    pub bytes: u64,
    /// Ranks that wrote it; 0 when unknown.
    pub world: u32,
    /// Validation error, smaller is better.
    pub metric: Option<f64>,
    /// Why it is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Output of `enn ckpt show`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    pub path: PathBuf,
    /// The manifest; none in a directory that PyTorch wrote.
    pub manifest: Option<Manifest>,
    pub tensors: Vec<ShownTensor>,
    pub values: Vec<String>,
}

/// A tensor of `enn ckpt show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownTensor {
    pub name: String,
    /// PyTorch's name of the element type.
    pub dtype: String,
    pub shape: Vec<u64>,
    pub chunks: usize,
}

/// Why no checkpoint was found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error("{} holds no checkpoint; expected a run directory, a checkpoints directory or a step-… directory", path.display())]
    None { path: PathBuf },
    #[error("{} holds {shard} and no {}: its save did not end", path.display(), name::METADATA)]
    Unlisted { path: PathBuf, shard: String },
    /// There are checkpoints, but none is complete; the newest one's reason.
    #[error("{} holds no complete checkpoint: {reason}", path.display())]
    Incomplete { path: PathBuf, reason: Box<ReadError> },
    #[error(transparent)]
    Read(#[from] Box<ReadError>),
}

/// The directory that holds the checkpoints of `path`: a run directory has them in `checkpoints`.
pub fn checkpoints_dir(path: &Path) -> PathBuf {
    let inside = path.join("checkpoints");
    if inside.is_dir() { inside } else { path.to_path_buf() }
}

/// All checkpoints of a run (or checkpoints) directory, oldest first. One that cannot be resumed from says why.
pub fn list(path: &Path) -> Vec<Listed> {
    let mut found: Vec<_> =
        name::list(&checkpoints_dir(path)).into_iter().map(|(step, path)| listed(step, path)).collect();
    found.reverse();
    found
}

fn listed(step: u64, path: PathBuf) -> Listed {
    let opened = Checkpoint::open(&path);
    let manifest = opened.as_ref().ok().and_then(Checkpoint::manifest);
    let (bytes, world, metric) = manifest.map(|found| (found.bytes(), found.world, found.metric)).unwrap_or_default();
    let reason = opened.err().map(|error| error.to_string());
    Listed { step, path, complete: reason.is_none(), bytes, world, metric, reason }
}

/// Opens the checkpoint that `path` means: itself, or the newest complete one of a run or checkpoints directory.
pub fn find(path: &Path) -> Result<Checkpoint, FindError> {
    if path.join(name::MANIFEST).exists() && path.join(name::METADATA).exists() {
        return Ok(Checkpoint::open(path).map_err(Box::new)?);
    }
    let Latest { found, mut skipped } = latest(&checkpoints_dir(path));
    if let Some(found) = found {
        return Ok(found);
    }
    if !skipped.is_empty() {
        let reason = Box::new(skipped.swap_remove(0).1);
        return Err(FindError::Incomplete { path: path.to_path_buf(), reason });
    }
    if name::is_dcp(path) {
        return Ok(Checkpoint::open_dcp(path).map_err(Box::new)?);
    }
    let names = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let path = path.to_path_buf();
    match names.filter(|name| name.ends_with(name::SHARD_END)).min() {
        Some(shard) => Err(FindError::Unlisted { path, shard }),
        None => Err(FindError::None { path }),
    }
}

/// Everything about a checkpoint but its data.
pub fn show(checkpoint: &Checkpoint) -> Shown {
    let metadata = checkpoint.metadata();
    let tensor = |(name, entry): (&String, &super::metadata::TensorEntry)| ShownTensor {
        name: name.clone(),
        dtype: entry.dtype.clone(),
        shape: entry.shape.clone(),
        chunks: entry.chunks.len(),
    };
    Shown {
        path: checkpoint.dir().to_path_buf(),
        manifest: checkpoint.manifest().cloned(),
        tensors: metadata.tensors.iter().map(tensor).collect(),
        values: metadata.values.keys().cloned().collect(),
    }
}
