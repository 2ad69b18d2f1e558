//! The evaluation of a run or a cross-validation, as it is written: evaluation.json and report.html.

use crate::Error;
use enn_common::{
    artifact::evaluation::{Evaluation, FILE, FORMAT, VERSION},
    fs::atomic,
    staged::StagedMeta,
};
use enn_data::evaluation::{EvaluationParts, IntervalCoverage};
use enn_ui::report;
use std::path::Path;

/// Returns the evaluation with these parts, by groups of the column `group`. The caller fills in what is evaluated.
pub(super) fn assembled(
    meta: &StagedMeta,
    parts: EvaluationParts,
    coverage: Option<&IntervalCoverage>,
    group: Option<&str>,
) -> Evaluation {
    Evaluation {
        format: FORMAT.to_owned(),
        version: VERSION,
        run: String::new(),
        step: 0,
        data: Vec::new(),
        digest: meta.digest.clone(),
        units: meta.units.clone(),
        rows: meta.rows,
        judged: 0,
        seen: parts.seen,
        warning: None,
        all: parts.all,
        reactivity: parts.reactivity,
        horizons: parts.horizons,
        group: group.unwrap_or_default().to_owned(),
        groups: if group.is_some() { parts.groups } else { Vec::new() },
        cells: parts.cells,
        levels: coverage.map_or_else(Vec::new, IntervalCoverage::levels),
        intervals: coverage.map_or_else(Vec::new, IntervalCoverage::intervals),
        classes: None,
        importance: Vec::new(),
        notes: Vec::new(),
    }
}

/// Writes the evaluation and its report into `dir`; a report that cannot be written is logged.
pub(super) fn write(dir: &Path, evaluation: &Evaluation, meta: &StagedMeta) -> Result<(), Error> {
    let path = dir.join(FILE);
    let json = serde_json::to_vec_pretty(evaluation).map_err(|source| Error::Json { path: path.clone(), source })?;
    atomic::write(&path, &json)?;
    if let Err(error) = report::write_evaluation(dir, evaluation, meta) {
        tracing::warn!("no report: {error}");
    }
    Ok(())
}
