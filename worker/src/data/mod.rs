//! Training data: the rows of a batch (`permutation`, `mix`, `sampler`), their positions (`rows`), and their conversion
//! to tensors ahead of time (`batch`, `prefetch`).
//!
//! **Invariant:** the global batch of a step depends on (seed, epoch, step), the number of rows and the weights of sources only: never on the world
//! size, the clock or which rows were read before.

pub mod batch;
pub mod error;
pub mod mix;
pub mod permutation;
pub mod prefetch;
pub mod rows;
pub mod sampler;

pub use batch::{Batch, View};
pub use enn_common::fs::{FileError, mmap::ReadMap};
pub use error::DataError;
pub use mix::Mix;
pub use prefetch::Prefetch;
pub use rows::RowIndex;
pub use sampler::{Position, Sampler};
