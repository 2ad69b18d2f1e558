//! What lies about an exported model: the tools that make and run artifacts, what is said beside each, and how it comes to be whole or
//! absent.
//!
//! **Invariant:** nothing is published that was not checked, unless that was asked for and is said beside it.

mod describe;
mod engine;
mod place;
mod told;
mod tools;
mod usage;

pub use describe::{Subject, sidecar};
pub use engine::{Artifact, EngineRunner};
pub use place::{Draft, digest};
pub use told::{Exported, json, line};
pub use tools::{Ports, Tools};
pub use usage::usage;
