//! From gradients to new weights: learning rate schedule, AdamW over flat storage, averages of the weights.
//!
//! **Invariant:** the module knows tensors and parameter names, never the model. It reads no clock, and no step reads
//! from the device.

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
