//! MANIFEST.json of a run directory: every file that the run is made of, with its digest. Written last.

use super::{
    prediction::FileDigest,
    seal::{self, SealError},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

/// Name in the run directory.
pub const FILE: &str = "MANIFEST.json";
/// Version that is written, and the newest that is read.
pub const VERSION: u32 = 1;
pub const FORMAT: &str = "enn-run";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunManifest {
    pub format: String,
    pub version: u32,
    pub run: String,
    pub code: u8,
    /// Files, sorted by path. Those of a checkpoint are listed as its own manifest has them.
    pub files: Vec<FileDigest>,
    pub versions: BTreeMap<String, String>,
    /// Seconds since the Unix epoch.
    pub wall_time: f64,
}

impl RunManifest {
    /// Reads and checks the manifest of a run directory.
    pub fn read(run_dir: &Path) -> Result<Self, SealError> {
        let path = run_dir.join(FILE);
        let found: Self = seal::read(&path)?;
        if found.format != FORMAT || found.version > VERSION {
            return Err(SealError::Damaged { path, what: "it is of another format or of a newer version of ENN" });
        }
        Ok(found)
    }
}
