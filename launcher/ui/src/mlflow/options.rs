//! What an export to MLflow is asked for, and what it says of a run.

use std::path::PathBuf;

/// How report and configuration of a run get into the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArtifactMode {
    Copy,
    /// A hard link to the file in the run's directory, which is replaced as a whole when it changes.
    Link,
    None,
}

impl ArtifactMode {
    pub const ALL: [(&'static str, Self); 3] = [("copy", Self::Copy), ("link", Self::Link), ("none", Self::None)];
}

/// Where and how runs are exported.
#[derive(Debug, Clone)]
pub struct MlflowOptions {
    /// The store, which is made when absent.
    pub store: PathBuf,
    /// Name of the experiment; `None`: the name in the configuration of each run.
    pub experiment: Option<String>,
    pub artifacts: ArtifactMode,
}

/// A run in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRun {
    pub run: String,
    pub experiment: String,
    pub experiment_id: String,
    pub run_id: String,
    pub path: PathBuf,
    /// Whether the run was not in the store before.
    pub is_new: bool,
}
