//! What is served.

use enn_common::{config::data::DataConfig, staged::StagedMeta};
use std::path::PathBuf;

/// The served model and the description of its data.
#[derive(Debug, Clone)]
pub struct Subject {
    pub run: String,
    pub step: u64,
    /// The configuration of reading its data.
    pub data: DataConfig,
    /// The description of its training data.
    pub meta: StagedMeta,
    /// The levels of the predicted quantiles, ascending; empty without quantiles.
    pub levels: Vec<f64>,
    /// An empty directory that no other process writes to.
    pub scratch: PathBuf,
}
