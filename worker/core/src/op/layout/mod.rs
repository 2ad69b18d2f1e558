//! Changes of shape: views, joins and splits; tensors made from nothing; sums into storage.

pub mod cat;
pub mod detach;
pub mod expand;
pub mod filled;
pub mod flip;
pub mod grad_add;
pub mod narrow;
pub mod permute;
pub mod reshape;
pub mod split;
pub mod stack;

use super::prelude::*;
use super::sample::Operand;

/// Operands, or results, more than fit a set of 16 bits.
const MANY: usize = 20;

fn many(one: impl Fn() -> Operand) -> [Operand; MANY] {
    std::array::from_fn(|_| one())
}

/// An axis counted from the front, in a reverse rule.
fn at_axis(v: &Vjp<'_>, at: i64, rank: usize) -> Result<i64, OpError> {
    axis(at, rank).map(|a| a as i64).map_err(|kind| v.fail(kind))
}
