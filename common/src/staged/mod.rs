//! The staged directory: memory-mapped arrays and what is known of them.
//!
//! ```text
//! staged/<digest>/
//!   x.npy        (N, F)          f32   inputs in the user's units; NaN where missing; categories as their index
//!   x_mask.npy   (N, F)          u8    1 valid, 0 missing
//!   y.npy        (N, *out_shape) f32   targets in the user's units; NaN where missing      absent when the source
//!   y_mask.npy   (N, *out_shape) u8    1 valid, 0 missing                                  had no targets
//!   row_id.npy   (N)             i64   identity of a sample, kept through prediction
//!   split.npy    (N)             u8    0 train, 1 validation, 2 test
//!   weight.npy   (N)             f32   how much a sample counts, ≥ 0                       absent when all count the same
//!   sums.json                          checksums of the arrays by block, sealed; absent in what was staged before there were any
//!   meta.json                          `StagedMeta`, written last: the directory is complete iff it exists
//! ```
//! Array data begins at a multiple of 64 bytes (NumPy's own rule), so that `numpy.load(mmap_mode="r")` and ours map them.
//!
//! A directory is made under a hidden temporary name and renamed when it is whole (`StagedWriter`); one that was cut off is gone on
//! with where its journal says (`unfinished`). `Staged::open` checks every
//! header, length and count before it hands out a slice.

pub mod error;
pub mod history;
pub mod known;
pub mod meta;
pub mod mix;
pub mod npy;
pub mod reader;
pub mod stats;
pub mod sums;
pub mod unfinished;
pub mod words;
pub mod writer;

pub use error::StagedError;
pub use history::Histories;
pub use meta::StagedMeta;
pub use reader::{LEFT_OUT, Split, Staged};
pub use stats::Moments;
pub use sums::Sums;
pub use writer::{ArrayWriter, StagedWriter};

/// Version of meta.json that this build writes and reads.
pub const VERSION: u32 = 1;

/// Name of the file that makes the directory complete.
pub const META: &str = "meta.json";

/// An array of the directory, by what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrayName {
    /// Inputs (N, F) f32.
    X,
    /// Validity of the inputs (N, F) u8.
    XMask,
    /// Targets (N, *out_shape) f32.
    Y,
    /// Validity of the targets (N, *out_shape) u8.
    YMask,
    /// Identity of the samples (N) i64.
    RowId,
    /// Split of the samples (N) u8.
    Split,
    /// Weights of the samples (N) f32.
    Weight,
}

impl ArrayName {
    pub const ALL: [Self; 7] = [Self::X, Self::XMask, Self::Y, Self::YMask, Self::RowId, Self::Split, Self::Weight];

    /// File name inside the directory.
    pub fn file(self) -> &'static str {
        match self {
            Self::X => "x.npy",
            Self::XMask => "x_mask.npy",
            Self::Y => "y.npy",
            Self::YMask => "y_mask.npy",
            Self::RowId => "row_id.npy",
            Self::Split => "split.npy",
            Self::Weight => "weight.npy",
        }
    }

    pub fn element(self) -> npy::NpyElement {
        match self {
            Self::X | Self::Y | Self::Weight => npy::NpyElement::F32,
            Self::XMask | Self::YMask | Self::Split => npy::NpyElement::U8,
            Self::RowId => npy::NpyElement::I64,
        }
    }
}
