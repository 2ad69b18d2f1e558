//! `RunConfig`: the resolved configuration, written once to run.json and read by every worker.

use super::{
    data::DataConfig,
    model::ModelConfig,
    parent::Parent,
    train::{ClusterConfig, TrainConfig},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything a run is. A worker gets this plus its rank identity, and nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// Version of run.json; 1.
    pub version: u32,
    /// Name of the run as the user gave it.
    pub name: String,
    /// Seed of initial weights, sample order and dropout.
    pub seed: u64,
    /// Data; `None` for a model directory made by `new_model`.
    pub data: Option<DataConfig>,
    pub model: ModelConfig,
    pub train: TrainConfig,
    pub cluster: ClusterConfig,
    /// Kernels in the order in which they are tried, by operation; operations that are not named decide by themselves.
    #[serde(default)]
    pub kernels: BTreeMap<String, Vec<String>>,
    /// The model that training begins with; `None`: it begins by itself.
    #[serde(default)]
    pub parent: Option<Parent>,
}
