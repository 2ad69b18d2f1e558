//! Sizes shared by everything that works on tokens.

use enn_common::config::model::Norm;

/// Sizes of a token layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Width {
    /// Token width D.
    pub model: i64,
    /// Heads H; D is a multiple of H.
    pub heads: i64,
    /// Hidden width of feed-forwards.
    pub hidden: i64,
    /// Normalisation kind.
    pub norm: Norm,
}
