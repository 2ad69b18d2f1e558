//! What predictions of classes are worth: the share that is right, how well probabilities tell the classes apart, how honest they are, and
//! which classes are taken for which.

use crate::finite;
use serde::{Deserialize, Serialize};

/// Figures over some rows, each with a class and the probability of every class. Means are weighted where rows have weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassFigures {
    /// Names, in the order of the output.
    pub names: Vec<String>,
    /// Rows with a class and probabilities.
    pub rows: u64,
    /// Mean of −ln of the probability of the class that is true, of at least 1.2e-7.
    #[serde(with = "finite")]
    pub log_loss: f64,
    /// Share of the rows whose likeliest class is true.
    #[serde(with = "finite")]
    pub accuracy: f64,
    /// How often a row of a class has a higher probability of it than a row of another: of two classes that of the second, of more the
    /// mean of the classes; `None` where one class is all there is, or where classes and rows are too many.
    pub auc: Option<f64>,
    /// How far the probability of the likeliest class is from the share that is right, mean over `calibration`.
    #[serde(with = "finite")]
    pub calibration_error: f64,
    pub classes: Vec<ClassPart>,
    /// Rows by the class that is true, then by the likeliest; empty where there are too many classes.
    pub confusion: Vec<Vec<u64>>,
    /// Rows by the probability of the likeliest class, rising; parts without a row are left out.
    pub calibration: Vec<CalibrationPart>,
}

/// One class against all others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassPart {
    pub rows: u64,
    /// Rows predicted to be of it.
    #[serde(rename = "told")]
    pub predicted: u64,
    /// Rows of the class predicted to be of it.
    pub right: u64,
    /// Area under the ROC curve of its probability; `None` where all rows are of it or none is, or where there are too many.
    pub auc: Option<f64>,
}

impl ClassPart {
    /// Share of its rows that are predicted right; `None` without rows.
    pub fn recall(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.right as f64 / self.rows as f64)
    }

    /// Share of the rows predicted to be of it that are; `None` where nothing is.
    pub fn precision(&self) -> Option<f64> {
        (self.predicted > 0).then(|| self.right as f64 / self.predicted as f64)
    }
}

/// Rows whose likeliest class has about the same probability.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CalibrationPart {
    pub low: f64,
    pub high: f64,
    pub rows: u64,
    pub probability: f64,
    pub right: f64,
}
