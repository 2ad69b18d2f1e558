//! Why a model cannot be exported.

use crate::{error::OpError, model::ModelError, op::lower::LowerError};
use enn_common::graph::infer::GraphError;

/// A model that stays where it is.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The forward pass itself failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// A stream of a model that has no state to carry.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// libtorch refused to show a tensor.
    #[error("a tensor of the model: {0}")]
    Torch(#[from] tch::TchError),
    /// A graph that contradicts itself.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An operation without a way out.
    #[error(
        "{op} at {place} cannot be exported: {why}\nhint: compute it there with functions of enn_worker::functional, which leave \
         as plain operations"
    )]
    NoWay {
        /// The operation.
        op: &'static str,
        /// Place in the model.
        place: String,
        /// Why.
        why: String,
    },
    /// Something that depends on the number of rows in another way than by repeating.
    #[error(
        "{what} at {place} depends on the number of rows: {found}\nhint: a row's answer must not depend on the rows beside it"
    )]
    Batch {
        /// What.
        what: &'static str,
        /// Place in the model.
        place: String,
        /// For both batches.
        found: String,
    },
    /// An element type that no graph has.
    #[error("{place}: {kind:?} has no place in an exported graph, expected f32, f64, i64 or bool")]
    Kind {
        /// Place in the model.
        place: String,
        /// The element type.
        kind: tch::Kind,
    },
}

impl ExportError {
    pub(super) fn no_way(op: &'static str, place: &str, why: &LowerError) -> Self {
        let place = if place.is_empty() { "the model" } else { place };
        Self::NoWay { op, place: place.to_owned(), why: why.to_string() }
    }
}
