//! Runs beside each other: what differs in their configurations, and their figures.
//!
//! `run` reads one run, `comparable` decides whether errors of two runs may be compared, `figure` lists what is shown of each run,
//! `table` draws for a terminal and `documents` writes JSON and CSV. The page is `report::compared`. **Invariant:** errors on other rows
//! or of another target are shown with the reason, and are never ranked.

mod comparable;
mod documents;
mod figure;
mod run;
mod table;
#[cfg(test)]
mod tests;

pub use comparable::Incomparable;
pub use documents::{csv, json};
pub use figure::{FIGURES, Figure};
pub use run::ComparedRun;
pub use table::{Style, text};

use enn_common::metrics::Measure;
use std::collections::BTreeSet;

/// Maximum number of runs in one comparison.
pub const RUNS_MAX: usize = 50;

/// What the runs are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortKey {
    /// The order in which the runs were given.
    Given,
    Val,
    Test,
    Epochs,
    Steps,
    Parameters,
    Time,
    Started,
    Name,
}

/// A run of a comparison.
#[derive(Debug)]
pub struct RankedRun {
    /// Number of the run in the comparison, from 1.
    pub number: usize,
    pub run: ComparedRun,
    /// The reason for which its errors are not compared with those of the others.
    pub incomparable: Option<Incomparable>,
}

/// A key whose values differ, with the value of each run in the order of the runs; `None` where a run does not have the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub key: String,
    pub values: Vec<Option<String>>,
}

/// Runs that are compared.
#[derive(Debug)]
pub struct Comparison {
    pub entries: Vec<RankedRun>,
    pub differences: Vec<Difference>,
    /// Index of the entry with the lowest validation error.
    pub best: Option<usize>,
}

impl Comparison {
    /// Compares the runs. Those that cannot be compared with most of the others come last.
    pub fn new(runs: Vec<ComparedRun>, sort: SortKey) -> Self {
        let reasons: Vec<_> = match comparable::reference(&runs) {
            Some(first) => runs.iter().map(|run| comparable::reason(&runs[first], run)).collect(),
            None => runs.iter().map(|_| None).collect(),
        };
        let mut both: Vec<_> = runs.into_iter().zip(reasons).collect();
        both.sort_by(|(one, _), (other, _)| sort.compare(one, other));
        // The sort is stable, so that each part keeps its order.
        both.sort_by_key(|(_, reason)| reason.is_some());
        let number = |(index, (run, incomparable))| RankedRun { number: index + 1, run, incomparable };
        let entries: Vec<RankedRun> = both.into_iter().enumerate().map(number).collect();
        Self { differences: differences(&entries), best: best(&entries), entries }
    }

    /// Returns the entries whose errors are compared.
    pub fn compared(&self) -> impl Iterator<Item = &RankedRun> {
        self.entries.iter().filter(|entry| entry.incomparable.is_none())
    }

    pub fn is_best(&self, entry: &RankedRun) -> bool {
        self.best == Some(entry.number - 1)
    }

    /// Returns the measure by which the runs are compared; `None` where no run has errors.
    pub fn measure(&self) -> Option<Measure> {
        self.compared().find_map(|entry| Some(entry.run.metrics("val")?.measure()))
    }

    /// Returns the unit of the target of the runs that are compared; empty when unknown.
    pub fn units(&self) -> &str {
        self.compared().map(|entry| entry.run.view.units()).find(|units| !units.is_empty()).unwrap_or("")
    }

    /// Says which run is best, or why none is.
    pub fn verdict(&self) -> String {
        let with_errors = self.compared().filter(|entry| entry.run.metrics("val").is_some()).count();
        match self.best {
            _ if with_errors == 0 => "no run has validated an epoch: there are no errors to compare".to_owned(),
            None => "no run is best: their validation errors are not finite".to_owned(),
            Some(_) if with_errors == 1 => {
                "only one run has errors that count here: there is nothing to rank".to_owned()
            }
            Some(best) => {
                let RankedRun { number, run, .. } = &self.entries[best];
                let measure = self.measure().unwrap_or(Measure::Mae);
                let error = run.metrics("val").map_or(f64::NAN, |metrics| metrics.judged());
                let error = crate::format::with_unit(error, measure.unit(self.units()));
                let so_far = if run.summary.state.is_under_way() { " so far" } else { "" };
                format!(
                    "best by validation {}: {number}, {} ({error}{so_far}), of {with_errors} runs",
                    measure.name(),
                    run.summary.name
                )
            }
        }
    }
}

/// Returns the index of the lowest finite validation error among several that are compared. Test errors choose nothing: the error of a
/// run that was chosen by them would be too low.
fn best(entries: &[RankedRun]) -> Option<usize> {
    let error =
        |entry: &RankedRun| entry.run.metrics("val").map(|metrics| metrics.judged()).filter(|error| error.is_finite());
    let compared = entries.iter().enumerate().filter(|(_, entry)| entry.incomparable.is_none());
    let errors = compared.filter_map(|(index, entry)| Some((index, error(entry)?)));
    errors.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index)
}

/// Returns the keys whose values differ between runs that have a configuration, in the order of the files.
fn differences(entries: &[RankedRun]) -> Vec<Difference> {
    let configured: Vec<&RankedRun> = entries.iter().filter(|entry| !entry.run.config.is_empty()).collect();
    let mut seen = BTreeSet::new();
    let mut keys: Vec<&str> = Vec::new();
    for (key, _) in configured.iter().flat_map(|entry| &entry.run.config) {
        if seen.insert(key.as_str()) {
            keys.push(key);
        }
    }
    let mut all = Vec::new();
    for key in keys {
        let mut values = configured.iter().map(|entry| entry.run.key(key));
        let first = values.next().flatten();
        if values.any(|value| value != first) {
            let values = entries.iter().map(|entry| entry.run.key(key).map(str::to_owned)).collect();
            all.push(Difference { key: key.to_owned(), values });
        }
    }
    all
}

impl SortKey {
    pub const ALL: [(&'static str, Self); 9] = [
        ("given", Self::Given),
        ("val", Self::Val),
        ("test", Self::Test),
        ("epochs", Self::Epochs),
        ("steps", Self::Steps),
        ("parameters", Self::Parameters),
        ("time", Self::Time),
        ("started", Self::Started),
        ("name", Self::Name),
    ];

    /// Orders from the lowest number, and from the newest run; runs without the figure come last.
    fn compare(self, one: &ComparedRun, other: &ComparedRun) -> std::cmp::Ordering {
        let number = |of: &dyn Fn(&ComparedRun) -> Option<f64>| {
            let value = |run| of(run).filter(|value| value.is_finite()).unwrap_or(f64::INFINITY);
            value(one).total_cmp(&value(other))
        };
        match self {
            Self::Given => std::cmp::Ordering::Equal,
            Self::Val => number(&|run| Some(run.metrics("val")?.judged())),
            Self::Test => number(&|run| Some(run.metrics("test")?.judged())),
            Self::Epochs => number(&ComparedRun::epochs),
            Self::Steps => number(&|run| run.steps().map(|steps| steps as f64)),
            Self::Parameters => number(&|run| run.parameters().map(|count| count as f64)),
            Self::Time => number(&ComparedRun::seconds),
            Self::Started => number(&|run| run.summary.started.map(|started| -started)),
            Self::Name => one.summary.name.cmp(&other.summary.name),
        }
    }
}
