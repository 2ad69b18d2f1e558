//! A model as a graph for other runtimes: its forward pass recorded twice, for batches of two sizes, and lowered to plain operations.
//!
//! ```text
//! Model ─ answer: what is said of a row ─► two recordings ─ trace: sizes that follow the batch ─► Graph
//! ```
//! **Invariant:** plain kernels' order of operations, f32, no dropout; what is not a function of the inputs alone is refused.

mod answer;
mod error;
mod screen;
mod trace;

pub use answer::{ANSWERS, Answered, Extras, X, graph, next};
pub use error::ExportError;
pub use screen::Screen;

#[cfg(test)]
mod tests;
