//! Rows of a table by 64-bit ids, and positions of any axis.

pub mod embedding;
pub mod select;
