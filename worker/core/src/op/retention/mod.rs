//! Retention: the scan that carries a decaying state from token to token, and its decay.

pub mod decay;
mod lower;
pub mod scan;

/// Positions per chunk.
pub const CHUNK: i64 = 64;
