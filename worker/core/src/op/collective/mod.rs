//! Collectives: recorded with the rest of the step, run by the ranks together.
//!
//! **Invariant:** a kernel never runs them; [`run`] hands them to the step's [`Collectives`].

pub mod operations;
mod ranks;

pub use ranks::{Collectives, Unasked};

use super::Op;
use super::row::Launch;
use crate::error::OpErrorKind;

/// Runs one recorded collective.
///
/// # Errors
/// Errors of `collectives`, and [`OpErrorKind::NoCollectives`] without any.
pub fn run(op: &Op, l: &Launch<'_>, collectives: Option<&dyn Collectives>) -> Result<(), OpErrorKind> {
    let collectives = collectives.ok_or(OpErrorKind::NoCollectives)?;
    let run = op.row().collective.ok_or(OpErrorKind::NoCollectives)?;
    run(op, l, collectives)
}
