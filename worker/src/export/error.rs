//! Why a model cannot be exported.

use crate::{
    error::OpError,
    model::ModelError,
    op::{Op, lower::LowerError},
};
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
    #[error("{op} at {place} cannot be exported: {why}\nhint: what leaves and is nearest to it: {instead}")]
    NoWay {
        op: String,
        /// Place in the model.
        place: String,
        why: String,
        /// What is nearest to it and leaves.
        instead: String,
    },
    /// Something that depends on the number of rows in another way than by repeating.
    #[error(
        "{what} at {place} depends on the number of rows: {found}\nhint: a row's answer must not depend on the rows beside it"
    )]
    Batch {
        what: &'static str,
        /// Place in the model.
        place: String,
        found: String,
    },
    /// An element type that no graph has.
    #[error(
        "{place}: {kind:?} has no place in an exported graph, expected f32, f64, i64 or bool\nhint: functional::cast to f32"
    )]
    Kind {
        /// Place in the model.
        place: String,
        /// The element type.
        kind: tch::Kind,
    },
}

impl ExportError {
    pub(super) fn no_way(op: &Op, place: &str, why: &LowerError) -> Self {
        let (name, instead) = match op {
            Op::Aten(call) => (call.name(), call.instead()),
            op => (op.name(), None),
        };
        let instead = instead.unwrap_or_else(|| why.instead().to_owned());
        Self::without(name, place, why.to_string(), instead)
    }

    /// The same of what is no operation.
    pub(super) fn without(name: &str, place: &str, why: String, instead: String) -> Self {
        let place = if place.is_empty() { "the model" } else { place };
        Self::NoWay { op: name.to_owned(), place: place.to_owned(), why, instead }
    }
}
