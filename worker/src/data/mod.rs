//! Training data: which rows make a batch (`permutation`, `sampler`), where they lie (`rows`), and how they become tensors
//! ahead of time (`batch`, `prefetch`).
//!
//! **Invariant:** the global batch of a step depends on (seed, epoch, step) and the number of rows only: never on the world
//! size, the clock or which rows were read before.

pub mod batch;
pub mod error;
pub mod permutation;
pub mod prefetch;
pub mod rows;
pub mod sampler;

pub use batch::{Batch, View};
pub use enn_common::fs::{FileError, mmap::ReadMap};
pub use error::DataError;
pub use prefetch::Prefetch;
pub use rows::RowIndex;
pub use sampler::{Position, Sampler};
