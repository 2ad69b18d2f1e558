//! What lies about an exported model: the tools that make and run artifacts, what is said beside each, and how it comes to be whole or
//! absent.
//!
//! **Invariant:** nothing is published that was not checked, unless that was asked for and is said beside it.

mod at_work;
mod describe;
mod engine;
mod files;
mod forms;
mod packed;
mod place;
mod pythons;
mod told;
mod tools;
mod usage;

pub use at_work::{AtWork, Said};
pub use describe::{Subject, sidecar};
pub use engine::{Artifact, EngineRunner};
pub use files::{Digest, digest};
pub use forms::{Form, Forms};
pub use packed::{Packed, is_packed};
pub use place::{Draft, alone};
pub use pythons::Pythons;
pub use told::{Exported, json, line};
pub use tools::{Ports, Tools};
pub use usage::programs;
