//! The inputs of a report.

use super::predictions::TestPredictions;
use crate::model::RunView;
use enn_common::staged::Staged;
use enn_data::baselines::Baselines;
use serde_json::Value;

/// The inputs of a report. All but the view may be absent, and their sections are then left out.
#[derive(Debug)]
pub struct ReportInputs {
    pub view: RunView,
    pub config: Option<Value>,
    pub staged: Option<Staged>,
    /// Baselines, for the plots; their errors come from the events.
    pub baselines: Option<Baselines>,
    pub predictions: Option<TestPredictions>,
    /// Notes on inputs that could not be read, shown at the end of the report.
    pub notes: Vec<String>,
}
