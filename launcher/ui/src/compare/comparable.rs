//! Decides whether the errors of two runs may be compared: the same target, on the same rows.

use super::run::ComparedRun;
use crate::{format, metrics};
use enn_common::metrics::{Measure, Metrics};
use std::fmt;

/// Largest relative difference of one number that two runs computed from the same rows, in whatever order they added them up.
const SAME: f64 = 1e-6;

/// Why the errors of a run are not compared with those of the ranked runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incomparable {
    /// The run has no configuration of ENN: it is one of `enn run` or a cross-validation.
    NoTraining,
    /// Another target: the target of this run, and that of the ranked ones.
    Target { found: String, ranked: String },
    /// Other validation or test rows.
    Rows { found: String, ranked: String },
}

impl fmt::Display for Incomparable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTraining => f.write_str("no training of ENN: it has no errors of its own"),
            Self::Target { found, ranked } => write!(f, "another target ({found}; the ranked runs: {ranked})"),
            Self::Rows { found, ranked } => write!(f, "other rows ({found}; the ranked runs: {ranked})"),
        }
    }
}

/// Returns the index of the run with which most others can be compared, the first of several; `None` where no run has errors.
pub(super) fn reference(runs: &[ComparedRun]) -> Option<usize> {
    let has_errors = |run: &ComparedRun| run.metrics("val").is_some();
    let with_errors = || runs.iter().enumerate().filter(|(_, run)| has_errors(run));
    let count = |one: &ComparedRun| with_errors().filter(|(_, other)| reason(one, other).is_none()).count();
    with_errors().max_by_key(|(index, run)| (count(run), std::cmp::Reverse(*index))).map(|(index, _)| index)
}

/// Returns why the errors of `run` are not comparable with those of `first`; `None` where they are, or where `run` has none.
pub(super) fn reason(first: &ComparedRun, run: &ComparedRun) -> Option<Incomparable> {
    if run.config.is_empty() {
        return Some(Incomparable::NoTraining);
    }
    let ours = run.view.staged.as_ref()?;
    let theirs = first.view.staged.as_ref()?;
    let measure = |run: &ComparedRun| run.metrics("val").map(|metrics| metrics.measure());
    let of_other_measure = measure(run).is_some_and(|measure_of_run| Some(measure_of_run) != measure(first));
    if ours.out_shape != theirs.out_shape || ours.units != theirs.units || of_other_measure {
        return Some(Incomparable::Target { found: target(run), ranked: target(first) });
    }
    let same = match floors_agree(first, run) {
        Some(agree) => agree,
        None => ours.dir.file_name() == theirs.dir.file_name() || same_source(first, run),
    };
    (!same).then(|| Incomparable::Rows { found: rows(run), ranked: rows(first) })
}

/// Compares the error of the baseline that knows nothing but the targets of the rows: it is the same if, and practically only if, the
/// targets of the rows are. `None` where one of the runs lacks it.
fn floors_agree(first: &ComparedRun, run: &ComparedRun) -> Option<bool> {
    let close = |one: f64, other: f64| (one - other).abs() <= SAME * one.abs().max(other.abs());
    let same = |one: &Metrics, other: &Metrics| one.n == other.n && close(one.judged(), other.judged());
    let mut agree = None;
    for split in ["val", "test"] {
        let floor = |run: &ComparedRun| run.view.baselines.get(split).and_then(|all| metrics::floor(all).copied());
        if let (Some(one), Some(other)) = (floor(first), floor(run)) {
            agree = Some(agree.unwrap_or(true) && same(&one, &other));
        }
    }
    agree
}

/// Compares the files, the division into splits and the number of rows in each.
fn same_source(first: &ComparedRun, run: &ComparedRun) -> bool {
    let keys = |run: &ComparedRun| -> Vec<(String, String)> {
        let counts = |key: &str| key == "data.files" || key.starts_with("data.split.");
        run.config.iter().filter(|(key, _)| counts(key)).cloned().collect()
    };
    let counts =
        |run: &ComparedRun| run.view.staged.as_ref().map(|staged| [staged.split_rows[1], staged.split_rows[2]]);
    keys(first) == keys(run) && counts(first) == counts(run)
}

fn target(run: &ComparedRun) -> String {
    let Some(staged) = &run.view.staged else { return "unknown".to_owned() };
    let measure = run.metrics("val").map_or(Measure::Mae, |metrics| metrics.measure());
    let unit = measure.unit(&staged.units);
    let unit = if unit.is_empty() { String::new() } else { format!(" in {unit}") };
    format!("{}{unit} of {} cells", measure.name(), format::shape(&staged.out_shape))
}

fn rows(run: &ComparedRun) -> String {
    let Some(staged) = &run.view.staged else { return "unknown".to_owned() };
    let [_, val, test] = staged.split_rows.map(format::count);
    let data = staged.dir.file_name().map(|name| name.to_string_lossy().chars().take(8).collect::<String>());
    format!("{val} for validation and {test} for the test, staged data {}", data.unwrap_or_default())
}
