//! From gradients to new weights: schedule, AdamW over flat storage, average of the weights.
//!
//! **Invariant:** knows tensors and parameter names, never the model. Nothing here reads a clock; no step reads the device.

pub mod adamw;
pub mod ema;
pub mod error;
pub mod flat;
pub mod schedule;
pub mod tail;

pub use adamw::{AdamW, AdamWSettings, StepStats};
pub use ema::Ema;
pub use error::OptimError;
pub use flat::{Boxes, FlatParams, Shard};
pub use schedule::Schedule;
pub use tail::Tail;
