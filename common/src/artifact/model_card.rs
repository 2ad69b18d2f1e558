//! What a saved model says of itself, inside a .safetensors or .pt file: enough to predict with it and to train it on.

use crate::metrics::Metrics;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version that is written, and the newest that is read.
pub const VERSION: u32 = 1;
pub const FORMAT: &str = "enn-model";
/// Key of the card in the file: in `__metadata__` of safetensors, in the dictionary of a .pt.
pub const KEY: &str = "enn";

/// Findings of a run up to a checkpoint, besides the model's own errors.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Findings {
    /// Errors of the baselines by split and name; empty where they were not known yet.
    pub baselines: BTreeMap<String, BTreeMap<String, Metrics>>,
    /// Decisions with their reasons, in sentences: precision, kernels, sizes, what the baselines are.
    pub decisions: Vec<String>,
}

impl Findings {
    /// Whether nothing was found out.
    pub fn is_empty(&self) -> bool {
        self.baselines.is_empty() && self.decisions.is_empty()
    }
}

/// A tensor that belongs to the model or to the state of its training.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardTensor {
    pub name: String,
    /// PyTorch's name of the element type.
    pub dtype: String,
    pub shape: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    pub format: String,
    pub version: u32,
    pub run: String,
    pub step: u64,
    pub epoch: u64,
    pub metric: Option<f64>,
    pub metrics: BTreeMap<String, Metrics>,
    #[serde(default, skip_serializing_if = "Findings::is_empty")]
    pub findings: Findings,
    /// `RunConfig`.
    pub config: serde_json::Value,
    /// `StagedMeta` without `row_names`: columns, grid, units, statistics (the scaler's).
    pub meta: serde_json::Value,
    /// Tensors in the file: weights and buffers.
    pub tensors: Vec<CardTensor>,
    /// Tensors of the checkpoint it came from. Those that are not made from `tensors` begin anew: the optimizer's at zero.
    pub state: Vec<CardTensor>,
    /// First values of state that does not begin at zero, hex.
    pub initial: BTreeMap<String, String>,
    pub versions: BTreeMap<String, String>,
}
