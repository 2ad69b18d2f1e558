//! Reasons for which a model cannot be exported.

use enn_common::graph::infer::GraphError;
use enn_core::{
    error::OpError,
    op::{Op, lower::LowerError},
};
use enn_model::model::ModelError;

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The forward pass itself failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The stream of the model has no state.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// libtorch failed to read a tensor.
    #[error("a tensor of the model: {0}")]
    Torch(#[from] tch::TchError),
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("{op} at {place} cannot be exported: {why}\nhint: the nearest operation that can be exported: {instead}")]
    Unsupported {
        op: String,
        /// Place in the model.
        place: String,
        why: String,
        /// Similar operation that can be exported.
        instead: String,
    },
    /// A size depends on the number of rows in another way than as a multiple.
    #[error(
        "{what} at {place} depends on the number of rows: {found}\nhint: a row's answer must not depend on the rows beside it"
    )]
    Batch {
        what: &'static str,
        /// Place in the model.
        place: String,
        found: String,
    },
    #[error(
        "{place}: {kind:?} cannot be stored in an exported graph, expected f32, f64, i64 or bool\nhint: functional::cast to f32"
    )]
    Kind {
        /// Place in the model.
        place: String,
        kind: tch::Kind,
    },
}

impl ExportError {
    pub(super) fn unsupported(op: &Op, place: &str, why: &LowerError) -> Self {
        let (name, instead) = match op {
            Op::Aten(aten) => (aten.0.name(), aten.0.instead()),
            op => (op.name(), None),
        };
        let instead = instead.unwrap_or_else(|| why.instead().to_owned());
        Self::without(name, place, why.to_string(), instead)
    }

    /// Describes the operation `name`, which cannot be exported.
    pub(super) fn without(name: &str, place: &str, why: String, instead: String) -> Self {
        let place = if place.is_empty() { "the model" } else { place };
        Self::Unsupported { op: name.to_owned(), place: place.to_owned(), why, instead }
    }
}
