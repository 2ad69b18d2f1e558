//! Evaluation of the current weights over a split, and the calibration of their answers on validation rows.
//!
//! Imports what stands below the learner: `agree`, `dataset`, `excluded_rows`, `memory`. Knows neither round nor training.

pub(crate) mod calibrate;
pub mod evaluate;
pub mod measure;
