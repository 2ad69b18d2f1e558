//! The staged directory: memory-mapped arrays and what is known of them.
//!
//! ```text
//! staged/<digest>/
//!   x.npy        (N, F)          f32   inputs in the user's units; NaN where missing; categories as their index
//!   x_mask.npy   (N, F)          u8    1 valid, 0 missing
//!   y.npy        (N, *out_shape) f32   targets in the user's units; NaN where missing
//!   y_mask.npy   (N, *out_shape) u8    1 valid, 0 missing
//!   row_id.npy   (N)             i64   identity of a sample, kept through prediction
//!   split.npy    (N)             u8    0 train, 1 validation, 2 test
//!   meta.json                          `StagedMeta`, written last: the directory is complete iff it exists
//! ```
//! Array data begins at a multiple of 64 bytes (NumPy's own rule), so that `numpy.load(mmap_mode="r")` and ours map them.

pub mod meta;

pub use meta::StagedMeta;
