//! Converts a model to a graph for other runtimes: its forward pass is recorded for batches of two sizes, and lowered
//! to plain operations.
//!
//! ```text
//! Model ─ answer: outputs of a row ─► two recordings ─ trace: sizes that follow the batch ─► Graph
//! ```
//! **Invariant:** the graph has the order of operations of the plain kernels, f32, and no dropout; outputs that depend on
//! anything but the inputs are rejected.

mod answer;
mod error;
mod screen;
mod trace;

pub use answer::{ANSWERS, ExportedModel, Extras, X, graph, next};
pub use error::ExportError;
pub use screen::Screen;

#[cfg(test)]
mod tests;
