//! A comparison for machines: JSON and CSV.

use super::{Comparison, FIGURES, RankedRun};
use serde_json::{Map, Value, json};

/// Returns the answer of `enn compare --json`: {measure, units, best, runs: […], differences: {key: {run: value}}}.
pub fn json(comparison: &Comparison) -> Value {
    let name = |entry: &RankedRun| entry.run.summary.name.clone();
    let differences: Map<String, Value> = comparison
        .differences
        .iter()
        .map(|one| {
            let of_run = |(entry, value): (&RankedRun, &Option<String>)| (name(entry), json!(value));
            (one.key.clone(), Value::Object(comparison.entries.iter().zip(&one.values).map(of_run).collect()))
        })
        .collect();
    json!({
        "measure": comparison.measure().map(|measure| measure.name()),
        "units": comparison.units(),
        "best": comparison.best.map(|best| name(&comparison.entries[best])),
        "runs": comparison.entries.iter().map(|entry| of_entry(comparison, entry)).collect::<Vec<_>>(),
        "differences": differences,
    })
}

fn of_entry(comparison: &Comparison, entry: &RankedRun) -> Value {
    let summary = &entry.run.summary;
    let mut value = json!({
        "run": summary.name, "path": summary.path, "kind": summary.kind.word(), "state": summary.state.word(),
        "under_way": summary.state.is_under_way(), "finished": summary.state.word() == "finished", "error": summary.error,
        "started": summary.started, "best": comparison.is_best(entry),
        "not_compared": entry.incomparable.as_ref().map(ToString::to_string), "units": entry.run.view.units(),
        "measure": entry.run.metrics("val").map(|metrics| metrics.measure().name()),
    });
    if let Value::Object(map) = &mut value {
        map.extend(FIGURES.iter().map(|figure| (figure.key.to_owned(), (figure.value)(entry))));
    }
    value
}

/// Returns a table with one row for each run: its figures, then the keys that differ.
pub fn csv(comparison: &Comparison) -> String {
    let Some(first) = comparison.entries.first() else { return String::new() };
    let mut head = ["run", "state", "error", "best", "not_compared", "measure", "units"].map(str::to_owned).to_vec();
    for figure in FIGURES {
        match (figure.value)(first) {
            Value::Object(map) => head.extend(map.keys().map(|inner| format!("{}_{inner}", figure.key))),
            _ => head.push(figure.key.to_owned()),
        }
    }
    head.extend(comparison.differences.iter().map(|one| one.key.clone()));
    let rows = comparison.entries.iter().enumerate().map(|(index, entry)| row(comparison, index, entry));
    std::iter::once(head).chain(rows).map(|cells| line(&cells)).collect()
}

fn row(comparison: &Comparison, index: usize, entry: &RankedRun) -> Vec<String> {
    let summary = &entry.run.summary;
    let mut cells = vec![
        summary.name.clone(),
        summary.state.word().to_owned(),
        summary.error.clone().unwrap_or_default(),
        comparison.is_best(entry).to_string(),
        entry.incomparable.as_ref().map(ToString::to_string).unwrap_or_default(),
        entry.run.metrics("val").map_or_else(String::new, |metrics| metrics.measure().name().to_owned()),
        entry.run.view.units().to_owned(),
    ];
    for figure in FIGURES {
        match (figure.value)(entry) {
            Value::Object(map) => cells.extend(map.values().map(plain)),
            value => cells.push(plain(&value)),
        }
    }
    cells.extend(comparison.differences.iter().map(|one| one.values[index].clone().unwrap_or_default()));
    cells
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Joins cells, of which those with a comma, a quote or a line's end are quoted (RFC 4180).
fn line(cells: &[String]) -> String {
    let quoted = |cell: &String| {
        if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.clone() }
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n"
}
