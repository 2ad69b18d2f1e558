//! A committed checkpoint as the model it holds: where it is, how the model was configured and for which data.

use crate::session::SessionError;
use enn_common::{
    checkpoint::{Manifest, name},
    config::RunConfig,
    staged::StagedMeta,
};
use std::path::{Path, PathBuf};

/// The model of a checkpoint, as its manifest describes it.
#[derive(Debug, Clone)]
pub struct SavedModel {
    pub path: PathBuf,
    pub config: RunConfig,
    /// Columns, grid and statistics of the training data.
    pub meta: StagedMeta,
}

impl SavedModel {
    /// Reads the manifest of a committed checkpoint.
    ///
    /// # Errors
    /// When there is none, it is damaged, or it lacks the configuration.
    pub fn open(path: &Path) -> Result<Self, SessionError> {
        let manifest = Manifest::read(path).map_err(SessionError::Manifest)?;
        let parse = |source| SessionError::Parse { path: path.join(name::MANIFEST), source };
        let mut meta = manifest.meta;
        if let Some(fields) = meta.as_object_mut() {
            // The manifest leaves the names of the training rows out.
            fields.entry("row_names").or_insert_with(|| serde_json::Value::Array(Vec::new()));
        }
        Ok(Self {
            path: path.to_owned(),
            config: serde_json::from_value(manifest.config).map_err(parse)?,
            meta: serde_json::from_value(meta).map_err(parse)?,
        })
    }
}
