//! The figures that are shown of each run: one list for the terminal, the page, JSON and CSV.

use super::{Comparison, RankedRun};
use crate::format;
use enn_common::metrics::{Measure, above};
use serde_json::{Value, json};

/// A figure of a run.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// Key in JSON and heading in CSV.
    pub key: &'static str,
    /// Heading of the figure for people.
    pub heading: &'static str,
    /// Whether the figure is in the unit of the errors.
    pub is_error: bool,
    /// Text for people; empty where the run has no such figure.
    pub text: fn(&RankedRun) -> String,
    /// Value for machines.
    pub value: fn(&RankedRun) -> Value,
}

/// The figures in the order in which they are shown.
pub const FIGURES: [Figure; 11] = [
    Figure {
        key: "val_error",
        heading: "val",
        is_error: true,
        text: |entry| error_text(entry, "val"),
        value: |entry| error_value(entry, "val"),
    },
    Figure {
        key: "test_error",
        heading: "test",
        is_error: true,
        text: |entry| error_text(entry, "test"),
        value: |entry| error_value(entry, "test"),
    },
    Figure {
        key: "best_baseline",
        heading: "best baseline",
        is_error: true,
        text: |entry| {
            let baseline = baseline(entry);
            baseline.map_or_else(String::new, |of| format!("{} {}", format::label(&of.name), format::measure(of.error)))
        },
        // The same keys for every run, so that a table of them has the same columns.
        value: |entry| {
            let of = baseline(entry);
            let error = of.as_ref().map(|of| finite(of.error));
            json!({"name": of.as_ref().map(|of| &of.name), "split": of.as_ref().map(|of| of.split), "error": error})
        },
    },
    Figure {
        key: "above_baseline",
        heading: "difference to it",
        is_error: false,
        text: |entry| {
            margin(entry).map_or_else(String::new, |share| format!("{:+.1} %", 100.0 * share).replace('-', "−"))
        },
        value: |entry| margin(entry).map_or(Value::Null, finite),
    },
    Figure {
        key: "best_epoch",
        heading: "best epoch",
        is_error: false,
        text: |entry| entry.run.best_epoch().map_or_else(String::new, |epoch| epoch.to_string()),
        value: |entry| json!(entry.run.best_epoch()),
    },
    Figure {
        key: "epochs",
        heading: "epochs",
        is_error: false,
        text: |entry| entry.run.epochs().map_or_else(String::new, |epochs| epochs.to_string()),
        value: |entry| json!(entry.run.epochs()),
    },
    Figure {
        key: "steps",
        heading: "steps",
        is_error: false,
        text: |entry| entry.run.steps().map_or_else(String::new, format::count),
        value: |entry| json!(entry.run.steps()),
    },
    Figure {
        key: "parameters",
        heading: "parameters",
        is_error: false,
        text: |entry| entry.run.parameters().map_or_else(String::new, format::count),
        value: |entry| json!(entry.run.parameters()),
    },
    Figure {
        key: "seconds",
        heading: "time",
        is_error: false,
        text: |entry| entry.run.seconds().map_or_else(String::new, format::seconds),
        value: |entry| entry.run.seconds().map_or(Value::Null, finite),
    },
    Figure {
        key: "workers",
        heading: "workers",
        is_error: false,
        text: |entry| match (entry.run.workers(), entry.run.devices()) {
            (Some(workers), Some(devices)) => format!("{workers} × {devices}"),
            (Some(workers), None) => workers.to_string(),
            _ => String::new(),
        },
        value: |entry| json!({"count": entry.run.workers(), "devices": entry.run.devices()}),
    },
    Figure {
        key: "failures",
        heading: "failures",
        is_error: false,
        text: |entry| match (entry.run.failures(), entry.run.recoveries()) {
            (0, _) => "none".to_owned(),
            (failures, recoveries) => format!("{failures}, recovered {recoveries}"),
        },
        value: |entry| json!({"count": entry.run.failures(), "recovered": entry.run.recoveries()}),
    },
];

struct BaselineOf {
    name: String,
    split: &'static str,
    error: f64,
}

/// Returns the best baseline on the test rows where the run has a test error, else on the validation rows.
fn baseline(entry: &RankedRun) -> Option<BaselineOf> {
    let split = if entry.run.metrics("test").is_some() { "test" } else { "val" };
    let best = entry.run.best_baseline(split)?;
    Some(BaselineOf { name: best.name.to_owned(), split, error: best.judged() })
}

/// Returns how far the error of the run is above that of its best baseline, relative to it.
fn margin(entry: &RankedRun) -> Option<f64> {
    let baseline = baseline(entry)?;
    let ours = entry.run.metrics(baseline.split)?.judged();
    Some(above(ours, baseline.error)).filter(|share| share.is_finite())
}

fn error_text(entry: &RankedRun, split: &str) -> String {
    entry.run.metrics(split).map_or_else(String::new, |metrics| format::measure(metrics.judged()))
}

fn error_value(entry: &RankedRun, split: &str) -> Value {
    entry.run.metrics(split).map_or(Value::Null, |metrics| finite(metrics.judged()))
}

/// JSON has no number that is not finite.
fn finite(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { Value::Null }
}

impl Figure {
    /// Returns the heading for people, with the measure and the unit of errors.
    pub fn title(&self, comparison: &Comparison) -> String {
        let measure = comparison.measure().unwrap_or(Measure::Mae);
        match self.key {
            "val_error" | "test_error" => {
                let name = format!("{} {}", self.heading, measure.name());
                let unit = measure.unit(comparison.units());
                if unit.is_empty() { name } else { format!("{name} ({unit})") }
            }
            _ => self.heading.to_owned(),
        }
    }

    /// Returns whether at least one run has the figure.
    pub fn is_known(&self, comparison: &Comparison) -> bool {
        comparison.entries.iter().any(|entry| !(self.text)(entry).is_empty())
    }
}
