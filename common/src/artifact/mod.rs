//! Manifests of what a run leaves behind: predictions and the run itself.
//!
//! **Invariant:** a manifest is written last and atomically; what it names exists if and only if the manifest does.

pub mod bounds;
pub mod chunk;
pub mod classes;
pub mod cv;
pub mod evaluation;
pub mod export;
pub mod model_card;
pub mod prediction;
pub mod ranking;
pub mod run;
pub mod seal;
