//! The model that training begins with: where its weights are, and how numbers are standardised.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Another run's weights as the start of this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Committed checkpoint of the other run; its best weights are taken.
    pub checkpoint: PathBuf,
    /// Whose statistics inputs and targets are standardised by.
    pub scaler: ScalerChoice,
    /// Whether what fits is taken although something does not.
    pub partial: bool,
}

/// Whose statistics inputs and targets are standardised by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScalerChoice {
    Keep,
    /// Statistics of the new training rows; weights are rewritten so that the first prediction is the parent's all the same.
    Refit,
}
