//! Manifests of what a run leaves behind: predictions and the run itself.

pub mod chunk;
