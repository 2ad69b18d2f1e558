//! Sizes shared by all layers over tokens.

use enn_common::config::model::Norm;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Width {
    /// Token width D.
    pub model: i64,
    /// Number of heads H; D is a multiple of H.
    pub heads: i64,
    /// Hidden width of the feed-forwards.
    pub hidden: i64,
    pub norm: Norm,
}
