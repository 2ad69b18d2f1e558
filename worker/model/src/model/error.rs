//! Reasons for which a model cannot be built or initialised.

use crate::block::template::NoSubModel;
use enn_common::config::forest::ForestError;
use enn_core::error::OpError;
use tch::TchError;

/// Errors of building, initialising and loading a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A size that is zero.
    #[error("model.{key} is 0, expected at least 1")]
    Zero { key: &'static str },
    /// The number of heads does not divide the width.
    #[error("model.d_model is {d_model}, expected a multiple of model.heads = {heads}\nhint: {} would do", nearest_multiple(*d_model, *heads))]
    Heads { d_model: usize, heads: usize },
    /// A rate outside its range.
    #[error("model.{key} is {found}, expected 0 ≤ {key} < 1")]
    Rate { key: &'static str, found: f64 },
    /// A number that must be positive and finite.
    #[error("model.{key} is {found}, expected a positive number")]
    NotPositive { key: &'static str, found: f64 },
    /// An empty clamp of the output.
    #[error("model.output_range is [{low}, {high}], expected low < high")]
    OutputRange { low: f64, high: f64 },
    /// Statistics that do not fit the columns.
    #[error("the staged data has {found} statistics of {what}, expected {expected}\nhint: stage the data again")]
    Statistics { what: &'static str, found: usize, expected: usize },
    /// A model without inputs or outputs.
    #[error("the staged data has no {what}, expected at least one")]
    Empty {
        /// Either inputs or output cells.
        what: &'static str,
    },
    /// A buffer of a checkpoint that does not fit.
    #[error(
        "buffer {name} of the checkpoint has shape {found:?}, expected {expected:?}\nhint: is this a checkpoint of another model?"
    )]
    Buffer {
        /// Name of the buffer.
        name: String,
        /// Shape in the checkpoint; empty when the buffer is missing.
        found: Vec<i64>,
        /// Expected shape; empty when the model has no such buffer.
        expected: Vec<i64>,
    },
    /// The task forest is invalid.
    #[error("model.tasks: {0}")]
    Forest(#[from] ForestError),
    /// The worker lacks a user-defined module.
    #[error(transparent)]
    NoSubModel(#[from] NoSubModel),
    /// Patterns of the dilated mixer that do not match.
    #[error(
        "model.segments are {segments:?} and model.dilations {dilations:?}, expected as many, each segment a multiple of its dilation, the first dilation 1"
    )]
    Patterns { segments: Vec<usize>, dilations: Vec<usize> },
    /// A stream through a temporal task whose mixer keeps no state.
    #[error(
        "task \"{task}\" is temporal and has the mixer \"dilated\", which keeps no state: it cannot be part of a stream\nhint: \"gated_ema\" and \"retnet\" can"
    )]
    NoStream { task: String },
    /// The state is that of another model's stream.
    #[error(
        "the state of the stream is of {found}, expected that of {expected}\nhint: a stream must continue with the model it began with"
    )]
    OtherStream {
        /// Tasks and blocks of the state.
        found: String,
        expected: String,
    },
    /// An operation of the forward pass failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// Linear algebra of the data-dependent start failed.
    #[error("failed to compute the start from data: {0}")]
    Start(#[from] TchError),
}

fn nearest_multiple(d_model: usize, heads: usize) -> usize {
    (d_model + heads / 2).checked_div(heads).unwrap_or(1).max(1) * heads.max(1)
}
