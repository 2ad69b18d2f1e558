//! Reasons for which a model cannot be built or initialised.

use crate::block::template::NoSubModel;
use enn_common::config::forest::ForestError;
use enn_core::error::OpError;
use tch::TchError;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("model.{key} is 0, expected at least 1")]
    Zero { key: &'static str },
    #[error("model.d_model is {d_model}, expected a multiple of model.heads = {heads}\nhint: {} would do", nearest_multiple(*d_model, *heads))]
    Heads { d_model: usize, heads: usize },
    #[error("model.{key} is {found}, expected 0 ≤ {key} < 1")]
    Rate { key: &'static str, found: f64 },
    #[error("model.{key} is {found}, expected a positive number")]
    NotPositive { key: &'static str, found: f64 },
    #[error("model.output_range is [{low}, {high}], expected low < high")]
    OutputRange { low: f64, high: f64 },
    #[error("the staged data has {found} statistics of {what}, expected {expected}\nhint: stage the data again")]
    Statistics { what: &'static str, found: usize, expected: usize },
    #[error("the staged data has no {what}, expected at least one")]
    Empty {
        /// Either inputs or output cells.
        what: &'static str,
    },
    #[error(
        "buffer {name} of the checkpoint has shape {found:?}, expected {expected:?}\nhint: is this a checkpoint of another model?"
    )]
    Buffer {
        name: String,
        /// Shape in the checkpoint; empty when the buffer is missing.
        found: Vec<i64>,
        /// Expected shape; empty when the model has no such buffer.
        expected: Vec<i64>,
    },
    #[error("model.tasks: {0}")]
    Forest(#[from] ForestError),
    #[error(transparent)]
    NoSubModel(#[from] NoSubModel),
    #[error(
        "model.segments are {segments:?} and model.dilations {dilations:?}, expected as many, each segment a multiple of its dilation, the first dilation 1"
    )]
    Patterns { segments: Vec<usize>, dilations: Vec<usize> },
    #[error(
        "task \"{task}\" is temporal and has the mixer \"dilated\", which keeps no state: it cannot be part of a stream\nhint: \"gated_ema\" and \"retnet\" can"
    )]
    NoStream { task: String },
    #[error(
        "the state of the stream is of {found}, expected that of {expected}\nhint: a stream must continue with the model it began with"
    )]
    OtherStream { found: String, expected: String },
    #[error(transparent)]
    Op(#[from] OpError),
    #[error("failed to compute the start from data: {0}")]
    Start(#[from] TchError),
}

fn nearest_multiple(d_model: usize, heads: usize) -> usize {
    (d_model + heads / 2).checked_div(heads).unwrap_or(1).max(1) * heads.max(1)
}
