//! Describes the inputs and outputs of the model for people and programs.

use super::{
    rows::{Column, Columns, Kind},
    subject::Subject,
};
use enn_common::{
    config::data::{FeatureKind, Layout, WindowsLayout},
    staged::meta::FeatureMeta,
};
use enn_data::stage::{Encoder, labels_of, timestamp};
use serde_json::{Value, json};
use std::{iter::repeat, net::SocketAddr};

const CATEGORIES_LISTED_MAX: usize = 1000;
/// Time of examples: 2024-01-01, in seconds since 1970.
const TIME: i64 = 1_704_067_200;
/// Maximum number of rows of an example of windows.
const EXAMPLE_ROWS_MAX: usize = 10_000;

#[derive(Debug)]
pub(super) struct Schema {
    pub(super) columns: Columns,
    pub(super) outputs: usize,
    description: Value,
    /// The rows of an example sample.
    example: Vec<Value>,
}

impl Schema {
    pub(super) fn new(subject: &Subject, encoder: Option<&Encoder>, outputs: Vec<String>) -> Self {
        let columns = columns(subject, encoder);
        let numbers = outputs.len();
        let inputs: Vec<Value> = columns.columns.iter().map(|column| describe(subject, column)).collect();
        let example = |column: &Column| (column.name.clone(), example(subject, column));
        let example = Value::Object(columns.columns.iter().map(example).collect());
        let example = match &subject.data.layout {
            Layout::Windows(layout) => history(&example, layout),
            _ => vec![example],
        };
        let mut whole = json!({
            "run": subject.run,
            "step": subject.step,
            "inputs": inputs,
            "outputs": outputs,
            "units": subject.data.units,
            "levels": subject.levels,
        });
        if let Layout::Windows(layout) = &subject.data.layout {
            whole["rows"] = json!(windows(layout));
        }
        Self { columns, outputs: numbers, description: whole, example }
    }

    /// Returns the description as a response, with a command line for this server.
    pub(super) fn body(&self, address: SocketAddr, has_token: bool, streams: Option<Value>) -> Vec<u8> {
        let mut description = self.description.clone();
        if let Some(streams) = streams {
            description["streams"] = streams;
        }
        description["example"] = self.example();
        description["curl"] = json!(self.curl(address, has_token));
        format!("{description:#}\n").into_bytes()
    }

    /// Returns an example request for one prediction.
    pub(super) fn example(&self) -> Value {
        json!({ "rows": self.example })
    }

    /// Returns a command line; where a sample has many rows, they are requested from the server.
    pub(super) fn curl(&self, address: SocketAddr, has_token: bool) -> String {
        let token = if has_token { " -H \"Authorization: Bearer $(cat TOKEN_FILE)\"" } else { "" };
        let ask = format!("curl http://{address}/predict{token} -H 'Content-Type: application/json' -d");
        if self.example.len() == 1 {
            format!("{ask} '{}'", self.example().to_string().replace('\'', "'\\''"))
        } else {
            format!("curl -s http://{address}/example{token} | {ask} @-")
        }
    }
}

fn columns(subject: &Subject, encoder: Option<&Encoder>) -> Columns {
    let data = &subject.data;
    let column = |name: &str, kind| {
        let kind = match kind {
            FeatureKind::Number | FeatureKind::Index(_) => Kind::Number,
            FeatureKind::Time => Kind::Time,
            FeatureKind::Labels(_) => Kind::Labels,
            FeatureKind::Category => {
                let has_truth = feature(subject, name)
                    .is_none_or(|known| known.categories.iter().any(|word| word == "true" || word == "false"));
                Kind::Category { has_truth }
            }
        };
        Column { name: name.to_owned(), kind, missing: data.missing.clone() }
    };
    let columns = match (&data.layout, encoder) {
        (Layout::Windows(_), _) => {
            let kinds = [FeatureKind::Category, FeatureKind::Time].into_iter().chain(repeat(FeatureKind::Number));
            data.input_columns().into_iter().zip(kinds).map(|(name, kind)| column(name, kind)).collect()
        }
        (_, Some(encoder)) => encoder.columns().iter().map(|one| column(&one.column, one.kind)).collect(),
        (_, None) => Vec::new(),
    };
    Columns { columns, also: data.other_columns().into_iter().map(str::to_owned).collect() }
}

fn feature<'a>(subject: &'a Subject, name: &str) -> Option<&'a FeatureMeta> {
    subject.meta.features.iter().find(|feature| feature.name == name)
}

fn describe(subject: &Subject, column: &Column) -> Value {
    let known = feature(subject, &column.name);
    let mut description = json!({"name": column.name});
    match column.kind {
        Kind::Time => description["kind"] = json!("time"),
        Kind::Category { .. } => {
            description["kind"] = json!("category");
            let categories = known.map(|known| known.categories.as_slice()).unwrap_or_default();
            description["categories"] = json!(categories.iter().take(CATEGORIES_LISTED_MAX).collect::<Vec<_>>());
            if categories.len() > CATEGORIES_LISTED_MAX {
                description["categories_in_all"] = json!(categories.len());
            }
        }
        Kind::Labels => {
            description["kind"] = json!("labels");
            description["labels"] = json!(labels_of(&subject.meta, &column.name));
        }
        Kind::Number if known.is_some_and(|known| known.index.is_some()) => {
            description["kind"] = json!("index");
            let rows = known.map_or(0, |known| known.categories.len() as i64);
            let offset = offset(known);
            description["range"] = json!([offset, offset + rows - 1]);
        }
        Kind::Number => {
            description["kind"] = json!("number");
            if let Some(units) = subject.data.input_units.get(&column.name) {
                description["units"] = json!(units);
            }
            let at = subject.meta.features.iter().position(|feature| feature.name == column.name);
            if let Some(stats) = at.and_then(|at| subject.meta.x_stats.get(at)).filter(|stats| stats.n > 0) {
                description["seen"] = json!({"min": stats.min, "max": stats.max, "mean": stats.mean});
            }
            if let Some(range) = subject.data.ranges.iter().find(|range| range.column == column.name) {
                description["range"] = json!([range.low, range.high]);
            }
        }
    }
    description
}

/// Returns an example value from the range of the training data.
fn example(subject: &Subject, column: &Column) -> Value {
    // A column of windows is one input for each entity and step.
    let is_of = |name: &str| {
        name.strip_prefix(column.name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
    };
    let known = subject.meta.features.iter().zip(&subject.meta.x_stats).find(|(feature, _)| is_of(&feature.name));
    match column.kind {
        Kind::Time => json!(timestamp(TIME)),
        Kind::Category { .. } => match &subject.data.layout {
            Layout::Windows(_) => json!(subject.meta.out_labels.first().and_then(|names| names.first())),
            _ => json!(known.and_then(|(feature, _)| feature.categories.first())),
        },
        Kind::Labels => json!(labels_of(&subject.meta, &column.name).into_iter().take(1).collect::<Vec<_>>()),
        Kind::Number if known.is_some_and(|(known, _)| known.index.is_some()) => {
            json!(offset(known.map(|(known, _)| known)))
        }
        Kind::Number => {
            json!(known.filter(|(_, stats)| stats.n > 0 || stats.std > 0.0).map(|(_, stats)| round(stats.mean)))
        }
    }
}

fn offset(known: Option<&FeatureMeta>) -> i64 {
    known.and_then(|known| known.index.as_ref()).map_or(0, |index| index.offset)
}

/// Rounds to four digits.
fn round(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Returns the history of one entity, with the same values at each step.
fn history(row: &Value, layout: &WindowsLayout) -> Vec<Value> {
    let steps = layout.history.saturating_mul(layout.steps).min(EXAMPLE_ROWS_MAX);
    let at = |step: usize| {
        let mut row = row.clone();
        let past = i64::try_from(step).unwrap_or(i64::MAX).saturating_mul(layout.step_s);
        row[&layout.time] = json!(timestamp(TIME.saturating_sub(layout.time_offset_s).saturating_add(past)));
        row
    };
    (0..steps).map(at).collect()
}

fn windows(layout: &WindowsLayout) -> String {
    let WindowsLayout { history, steps, step_s, entity, .. } = layout;
    format!(
        "a request is a table of its own: {history} windows of {steps} steps of {step_s} s of every {entity} for each prediction"
    )
}
