//! Losses: sums over valid cells or rows.

pub mod cross_entropy;
pub mod masked;

use super::row::Export;

/// The answer to an export of a loss.
const fn not_exported<A>() -> Export<A> {
    Export::no(
        "a training objective, not part of the model",
        "nothing: a model answers, and train.loss or the user's learner judges it",
    )
}
