//! The launcher's part of exporting: the tools that make and run artifacts, the description of each, and its publication, which is
//! whole or absent.
//!
//! **Invariant:** nothing is published unchecked, unless that was requested and is recorded in its description.

mod artifact_runner;
mod describe;
mod draft_dir;
mod engine;
mod files;
mod forms;
mod limits;
mod outcome;
mod packed;
mod pythons;
mod tools;
mod usage;

pub use artifact_runner::{ArtifactRunner, Predictions};
pub use describe::{Subject, sidecar};
pub use draft_dir::{DraftDir, lock_output};
pub use engine::{Artifact, EngineRunner};
pub use enn_export::Ports;
pub use files::{Digest, digest};
pub use forms::{Form, Forms};
pub use outcome::{Exported, json, line};
pub use packed::{Packed, is_packed};
pub use pythons::Pythons;
pub use tools::Tools;
pub use usage::programs;
