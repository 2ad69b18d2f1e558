//! The manifest beside predictions: which rows, which columns, made by which checkpoint from which data.

use super::seal::{self, SealError};
use crate::fs::{RelPath, digest};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Version that is written, and the newest that is read.
pub const VERSION: u32 = 1;
pub const FORMAT: &str = "enn-predictions";
/// File name in a directory of predictions.
pub const MANIFEST: &str = "manifest.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Path relative to the manifest's directory.
    pub path: RelPath,
    pub bytes: u64,
    /// blake3, hex; empty for a checkpoint's file that has only a CRC-32.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub blake3: String,
    /// CRC-32 of a checkpoint's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32: Option<u32>,
}

/// Rows [start, end) that one worker predicted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkDigest {
    /// First row of the staged order.
    pub start: u64,
    /// Row behind the last.
    pub end: u64,
    /// Digest told by the worker (see `artifact::chunk`), hex.
    pub blake3: String,
}

/// The checkpoint that predicted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModelDigest {
    pub run: String,
    pub step: u64,
    /// blake3 of its manifest.json, hex.
    pub blake3: String,
}

/// One axis of the output grid: what its cells are called, and which column of the data they come from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OutputAxis {
    /// Column of series, of times or of classes; `None` for an axis of targets, whose labels are columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// As many as the axis is long; empty where the data name none.
    pub labels: Vec<String>,
    /// For an axis of times: seconds from the row's identity, a time in seconds since 1970, to each cell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seconds: Vec<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictionManifest {
    pub format: String,
    pub version: u32,
    /// Rows: all of them are in the files, in the order of the source.
    pub rows: u64,
    /// Cells that are not finite numbers; the model could not say.
    pub non_finite: u64,
    /// Rows without a prediction, by reason; the file names them.
    #[serde(default)]
    pub failed: BTreeMap<String, u64>,
    /// Levels of the predicted quantiles, rising; empty where points or classes are predicted.
    #[serde(default)]
    pub levels: Vec<f64>,
    /// Names of the output cells, row-major over `out_shape`.
    pub columns: Vec<String>,
    pub out_shape: Vec<usize>,
    /// The axes of `out_shape`. Manifests of 0.1 have none.
    #[serde(default)]
    pub axes: Vec<OutputAxis>,
    /// Unit of the predictions, empty when unknown.
    pub units: String,
    pub checkpoint: ModelDigest,
    /// Digest of the staged data, hex.
    pub data: String,
    pub files: Vec<FileDigest>,
    /// Chunks that were put together; they tile the rows.
    pub chunks: Vec<ChunkDigest>,
    pub versions: BTreeMap<String, String>,
    /// Seconds since the Unix epoch.
    pub wall_time: f64,
}

impl PredictionManifest {
    pub fn read(path: &Path) -> Result<Self, SealError> {
        let found: Self = seal::read(path)?;
        if found.format != FORMAT || found.version > VERSION {
            let what = "it is of another format or of a newer version of ENN";
            return Err(SealError::Damaged { path: path.to_path_buf(), what });
        }
        Ok(found)
    }
}

/// Reads the files of predictions and compares them with their manifest; what is wrong, a sentence each.
pub fn verify(output: &Path) -> Result<Vec<String>, SealError> {
    let manifest = manifest_path(output);
    let found = PredictionManifest::read(&manifest)?;
    let dir = crate::fs::atomic::parent(&manifest);
    let mut problems = Vec::new();
    for file in &found.files {
        let path = file.path.below(dir);
        match file.path.locate(dir).and_then(|path| digest::of_file(&path, &mut |_| {})) {
            Ok((_, blake3)) if blake3 == file.blake3 => {}
            Ok((bytes, blake3)) => problems.push(format!(
                "{} has {bytes} bytes with blake3 {blake3}, the manifest says {} with {}: it was changed after it was written",
                path.display(),
                file.bytes,
                file.blake3
            )),
            Err(error) => problems.push(error.to_string()),
        }
    }
    Ok(problems)
}

/// Where the manifest of predictions is: inside a directory, or beside a file as `NAME.manifest.json`.
pub fn manifest_path(output: &Path) -> PathBuf {
    match output.extension() {
        None => output.join(MANIFEST),
        Some(_) => {
            let name = output.file_name().unwrap_or_default().to_string_lossy();
            output.with_file_name(format!("{name}.manifest.json"))
        }
    }
}
