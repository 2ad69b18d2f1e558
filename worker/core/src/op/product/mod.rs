//! Products of matrices.

pub mod linear;
mod linear_cpu;
mod linear_cuda;
pub mod matmul;
mod store;

/// Number of rows of a tensor, as a matrix over its last axis. An empty matrix does not tell it.
fn rows(meta: &super::value::Meta) -> i64 {
    meta.shape[..meta.rank().saturating_sub(1)].iter().product()
}
