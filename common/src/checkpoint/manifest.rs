//! manifest.json: the file that makes shards a checkpoint. Written last, sealed with its own digest.

use super::{
    metadata::{MergeError, Metadata},
    name,
    table::{ItemKind, ShardTable},
};
use crate::{
    artifact::{
        model_card::Findings,
        seal::{self, SealError},
    },
    fs::RelPath,
    metrics::Metrics,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

/// Version of manifest.json that is written, and the newest that is read.
pub const VERSION: u32 = 2;
pub const FORMAT: &str = "enn-checkpoint";

/// Facts that the launcher knows of a checkpoint before it is committed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Draft {
    pub run: String,
    pub attempt: String,
    pub step: u64,
    pub epoch: u64,
    /// Validation error that decides which checkpoint is best; smaller is better.
    pub metric: Option<f64>,
    /// `RunConfig` as JSON.
    pub config: serde_json::Value,
    /// `StagedMeta` as JSON, without `row_names`.
    pub meta: serde_json::Value,
    /// Metrics known at this step, by split.
    pub metrics: BTreeMap<String, Metrics>,
    /// Findings of the run up to then.
    pub findings: Findings,
    /// Names and versions of what wrote it: "enn", "libtorch".
    pub versions: BTreeMap<String, String>,
    /// Seconds since the Unix epoch.
    pub wall_time: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: String,
    pub version: u32,
    pub run: String,
    pub attempt: String,
    pub step: u64,
    pub epoch: u64,
    /// Ranks that wrote shards.
    pub world: u32,
    /// Validation error; smaller is better.
    pub metric: Option<f64>,
    /// Tensors, and their bytes.
    pub tensors: Tensors,
    /// `.metadata` first, then the shards.
    pub files: Vec<FileEntry>,
    /// Metrics known at this step, by split.
    pub metrics: BTreeMap<String, Metrics>,
    /// Findings of the run up to then.
    #[serde(default, skip_serializing_if = "Findings::is_empty")]
    pub findings: Findings,
    pub versions: BTreeMap<String, String>,
    /// Seconds since the Unix epoch.
    pub wall_time: f64,
    /// `RunConfig`.
    pub config: serde_json::Value,
    /// `StagedMeta` without `row_names`.
    pub meta: serde_json::Value,
}

/// How much state there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tensors {
    pub count: u64,
    /// Bytes of their elements.
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub path: RelPath,
    pub bytes: u64,
    /// blake3, hex; empty where the writer was not asked for one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub blake3: String,
    /// CRC-32 of the whole file. Manifests of version 1 have only blake3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_crc32: Option<u32>,
    /// CRC-32 of the payload of each item, in the order of the file: tells a shard of another step at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crc32: Vec<u32>,
}

impl FileEntry {
    /// Adds the table of a rank's shard.
    ///
    /// # Errors
    /// When it gives the shard a name that is not that of a file in the checkpoint's directory.
    pub fn of_shard(table: &ShardTable) -> Result<Self, MergeError> {
        Ok(Self {
            path: table.path()?,
            bytes: table.bytes,
            blake3: table.blake3.clone(),
            whole_crc32: table.crc32,
            crc32: checksums(table),
        })
    }

    /// The strongest digest there is of the file, in words: one file with two of them is two files.
    pub fn digest(&self) -> String {
        match self.whole_crc32 {
            _ if !self.blake3.is_empty() => self.blake3.clone(),
            Some(crc32) => format!("crc32 {crc32:08x}"),
            None => String::new(),
        }
    }
}

impl Manifest {
    /// Puts the draft and what was written together, a shard for each rank. `dcp` is the content of `.metadata`.
    pub fn new(draft: Draft, shards: Vec<FileEntry>, metadata: &Metadata, dcp: &[u8]) -> Self {
        let world = u32::try_from(shards.len()).unwrap_or(u32::MAX);
        let mut files = vec![FileEntry {
            path: RelPath::own(name::METADATA),
            bytes: dcp.len() as u64,
            blake3: blake3::hash(dcp).to_hex().to_string(),
            whole_crc32: Some(crc32fast::hash(dcp)),
            crc32: Vec::new(),
        }];
        files.extend(shards);
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            run: draft.run,
            attempt: draft.attempt,
            step: draft.step,
            epoch: draft.epoch,
            world,
            metric: draft.metric.filter(|metric| metric.is_finite()),
            tensors: Tensors { count: metadata.tensors.len() as u64, bytes: metadata.tensor_bytes() },
            files,
            metrics: draft.metrics,
            findings: draft.findings,
            versions: draft.versions,
            wall_time: draft.wall_time,
            config: draft.config,
            meta: draft.meta,
        }
    }

    /// Reads and checks the manifest of a checkpoint directory.
    pub fn read(dir: &Path) -> Result<Self, SealError> {
        let path = dir.join(name::MANIFEST);
        let found: Self = seal::read(&path)?;
        if found.format != FORMAT || found.version > VERSION {
            return Err(SealError::Damaged { path, what: "it is of another format or of a newer version of ENN" });
        }
        Ok(found)
    }

    /// Bytes of all files but the manifest.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add)
    }

    /// Names this save inside `.metadata`.
    pub(super) fn save_id(draft: &Draft) -> String {
        format!("{}/{}/{}", draft.run, draft.attempt, draft.step)
    }
}

/// Empty boxes are left out: they have no bytes, and readers skip them.
fn checksums(table: &ShardTable) -> Vec<u32> {
    let of = |kind: &ItemKind| match kind {
        ItemKind::Tensor { sizes, .. } if sizes.contains(&0) => None,
        ItemKind::Tensor { crc32, .. } | ItemKind::Value { crc32 } => Some(*crc32),
    };
    table.items.iter().filter_map(|item| of(&item.kind)).collect()
}
