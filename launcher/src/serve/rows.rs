//! Rows as JSON: objects by the names of columns, or arrays in their order.

use crate::stage::listed;
use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Rows that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowsError {
    #[error("the body is no JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the body is no Arrow IPC stream: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
    #[error("the body is {found}, expected {{\"rows\": [{{COLUMN: VALUE, …}}, …]}} or {{\"rows\": [[VALUE, …], …]}}")]
    Shape { found: String },
    #[error("there are no rows")]
    None,
    #[error("row {row} is {found}, expected an object like the rows before it, or an array like them")]
    Row { row: usize, found: &'static str },
    #[error("row {row} has {found} values, expected {expected}: {columns}")]
    Width { row: usize, found: usize, expected: usize, columns: String },
    #[error("row {row}: there is no column {column:?}, expected {columns}")]
    Unknown { row: usize, column: String, columns: String },
    #[error("row {row}: column {column:?} is missing; null says that a value is not known")]
    Missing { row: usize, column: String },
    #[error("row {row}, column {column:?}: found {found}, expected {expected} or null")]
    Cell { row: usize, column: String, found: String, expected: &'static str },
}

/// What a column's cells are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Number,
    /// A word; truth values are words where the model knows them as such.
    Category {
        has_truth: bool,
    },
    /// A list of texts, or one text with the labels in it.
    Labels,
    Time,
}

/// A column of a request's rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Texts that mean "missing".
    pub(super) missing: Vec<String>,
}

/// Longest text of a cell in an error, characters.
const TOLD_MAX: usize = 40;

/// The columns that rows have, and those that they may have beside them and that are passed over.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Columns {
    pub(super) columns: Vec<Column>,
    pub(super) also: Vec<String>,
}

impl Columns {
    /// A body as a table, and whether its rows are objects.
    pub(super) fn read(&self, body: &[u8]) -> Result<(RecordBatch, bool), RowsError> {
        let whole: Value = serde_json::from_slice(body)?;
        let rows = match &whole {
            Value::Object(fields) if fields.len() == 1 => fields.get("rows").and_then(Value::as_array),
            _ => None,
        };
        let rows = rows.ok_or_else(|| RowsError::Shape { found: shape(&whole) })?;
        let objects = matches!(rows.first().ok_or(RowsError::None)?, Value::Object(_));
        let mut cells: Vec<&Value> = Vec::with_capacity(rows.len() * self.columns.len());
        for (row, value) in rows.iter().enumerate() {
            match value {
                Value::Object(fields) if objects => self.object(row, fields, &mut cells)?,
                Value::Array(values) if !objects => self.array(row, values, &mut cells)?,
                other => return Err(RowsError::Row { row, found: kind(other) }),
            }
        }
        let width = self.columns.len();
        let arrays = self.columns.iter().enumerate().map(|(at, column)| {
            let cells = cells.iter().skip(at).step_by(width.max(1));
            Ok((column.name.as_str(), column.array(cells.copied())?, true))
        });
        let arrays = arrays.collect::<Result<Vec<_>, RowsError>>()?;
        Ok((RecordBatch::try_from_iter_with_nullable(arrays)?, objects))
    }

    /// Whether a table has no column that is not known.
    pub(super) fn check(&self, batch: &RecordBatch) -> Result<(), RowsError> {
        let stranger = batch.schema().fields().iter().map(|field| field.name().clone()).find(|name| !self.has(name));
        stranger.map_or(Ok(()), |column| Err(self.unknown(0, &column)))
    }

    fn has(&self, name: &String) -> bool {
        self.columns.iter().any(|column| column.name == *name) || self.also.contains(name)
    }

    fn names(&self) -> String {
        self.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    fn unknown(&self, row: usize, column: &str) -> RowsError {
        RowsError::Unknown { row, column: brief(column), columns: self.names() }
    }

    fn object<'v>(
        &self,
        row: usize,
        fields: &'v Map<String, Value>,
        cells: &mut Vec<&'v Value>,
    ) -> Result<(), RowsError> {
        let before = cells.len();
        for column in &self.columns {
            let missing = || RowsError::Missing { row, column: column.name.clone() };
            // A name that is written wrongly is told before the one that it leaves out.
            match fields.get(&column.name) {
                Some(value) => cells.push(value),
                None => {
                    return Err(fields
                        .keys()
                        .find(|name| !self.has(name))
                        .map_or_else(missing, |name| self.unknown(row, name)));
                }
            }
        }
        if fields.len() > cells.len() - before
            && let Some(name) = fields.keys().find(|name| !self.has(name))
        {
            return Err(self.unknown(row, name));
        }
        Ok(())
    }

    fn array<'v>(&self, row: usize, values: &'v [Value], cells: &mut Vec<&'v Value>) -> Result<(), RowsError> {
        if values.len() != self.columns.len() {
            let (found, expected, columns) = (values.len(), self.columns.len(), self.names());
            return Err(RowsError::Width { row, found, expected, columns });
        }
        cells.extend(values);
        Ok(())
    }
}

impl Column {
    fn array<'v>(&self, cells: impl Iterator<Item = &'v Value>) -> Result<ArrayRef, RowsError> {
        let wrong = |row: usize, cell: &Value, expected| {
            let found = brief(&cell.to_string());
            RowsError::Cell { row, column: self.name.clone(), found, expected }
        };
        let number = |(row, cell): (usize, &Value)| match cell {
            Value::Null => Ok(None),
            Value::Number(number) => Ok(number.as_f64()),
            Value::String(text) if text.trim().is_empty() || self.missing.iter().any(|token| token == text.trim()) => {
                Ok(None)
            }
            other => Err(wrong(row, other, "a number")),
        };
        let word = |(row, cell): (usize, &Value)| match (cell, &self.kind) {
            (Value::Null, _) => Ok(None),
            (Value::String(text), _) => Ok(Some(text.clone())),
            (Value::Number(number), _) => Ok(Some(number.to_string())),
            (Value::Bool(truth), Kind::Category { has_truth: true }) => Ok(Some(truth.to_string())),
            (Value::Bool(truth), Kind::Category { has_truth: false }) => Ok(Some(u8::from(*truth).to_string())),
            (other, Kind::Time) => Err(wrong(row, other, "a time stamp or Unix seconds")),
            (other, _) => Err(wrong(row, other, "a text")),
        };
        let labels = |(row, cell): (usize, &Value)| {
            let label = |label: &Value| label.as_str().map(str::to_owned);
            match cell {
                Value::Null => Ok(None),
                Value::String(text) => Ok(Some(text.clone())),
                Value::Array(all) => match all.iter().map(label).collect::<Option<Vec<String>>>() {
                    Some(labels) => Ok(Some(listed(&labels))),
                    None => Err(wrong(row, cell, "a list of texts, one text")),
                },
                other => Err(wrong(row, other, "a list of texts, one text")),
            }
        };
        let cells = cells.enumerate();
        Ok(match self.kind {
            Kind::Labels => Arc::new(StringArray::from(cells.map(labels).collect::<Result<Vec<_>, _>>()?)),
            Kind::Number => Arc::new(Float64Array::from(cells.map(number).collect::<Result<Vec<_>, _>>()?)),
            Kind::Category { .. } | Kind::Time => {
                Arc::new(StringArray::from(cells.map(word).collect::<Result<Vec<_>, _>>()?))
            }
        })
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn shape(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let names: Vec<String> = fields.keys().take(3).map(|name| brief(name)).collect();
            format!("an object with {}", if names.is_empty() { "nothing in it".to_owned() } else { names.join(", ") })
        }
        other => kind(other).to_owned(),
    }
}

fn brief(text: &str) -> String {
    if text.chars().count() <= TOLD_MAX {
        text.to_owned()
    } else {
        text.chars().take(TOLD_MAX).chain("…".chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Array, cast::AsArray, types::Float64Type};
    use proptest::prelude::*;

    fn columns() -> Columns {
        let column = |name: &str, kind| Column { name: name.to_owned(), kind, missing: vec!["NA".to_owned()] };
        let columns = vec![
            column("temp", Kind::Number),
            column("city", Kind::Category { has_truth: false }),
            column("at", Kind::Time),
        ];
        Columns { columns, also: vec!["y".to_owned()] }
    }

    #[test]
    fn objects_and_arrays_are_the_same_table() {
        let objects =
            r#"{"rows": [{"city": "x", "temp": 3.5, "at": 7, "y": [1]}, {"temp": "NA", "city": true, "at": null}]}"#;
        let arrays = r#"{"rows": [[3.5, "x", 7], [null, 1, null]]}"#;
        let (one, two) = (columns().read(objects.as_bytes()).unwrap(), columns().read(arrays.as_bytes()).unwrap());
        assert!(one.1 && !two.1);
        assert_eq!(one.0, two.0);
        assert_eq!(one.0.column(0).as_primitive::<Float64Type>().value(0), 3.5);
        assert!(one.0.column(0).is_null(1));
        assert_eq!(one.0.column(1).as_string::<i32>().value(1), "1");
    }

    #[test]
    fn labels_are_a_list_or_one_text() {
        let column = Column { name: "weather".into(), kind: Kind::Labels, missing: vec![] };
        let columns = Columns { columns: vec![column], also: vec![] };
        let body = br#"{"rows": [[["rain", "a;b"]], ["rain;wind"], [[]], [null]]}"#;
        let (batch, _) = columns.read(body).unwrap();
        let texts: Vec<Option<&str>> = batch.column(0).as_any().downcast_ref::<StringArray>().unwrap().iter().collect();
        assert_eq!(texts, [Some("\u{1f}rain\u{1f}a;b"), Some("rain;wind"), Some("\u{1f}"), None]);
        let error = columns.read(br#"{"rows": [[["rain", 3]]]}"#).unwrap_err().to_string();
        assert_eq!(error, "row 0, column \"weather\": found [\"rain\",3], expected a list of texts, one text or null");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let error = |body: &str| columns().read(body.as_bytes()).unwrap_err().to_string();
        assert!(error("{").starts_with("the body is no JSON: EOF"));
        assert!(error("[]").starts_with("the body is an array, expected {\"rows\""));
        assert!(error(r#"{"rows": [], "row": 1}"#).starts_with("the body is an object with row, rows"));
        assert_eq!(error(r#"{"rows": []}"#), "there are no rows");
        assert!(error(r#"{"rows": [1]}"#).starts_with("row 0 is a number"));
        assert!(error(r#"{"rows": [[1, "x", 2], {"temp": 1}]}"#).starts_with("row 1 is an object"));
        assert_eq!(error(r#"{"rows": [[1]]}"#), "row 0 has 1 values, expected 3: temp, city, at");
        let unknown = error(r#"{"rows": [{"city": "x", "tmp": 3.5, "at": 7}]}"#);
        assert_eq!(unknown, "row 0: there is no column \"tmp\", expected temp, city, at");
        assert!(error(r#"{"rows": [{"city": "x", "at": 7}]}"#).starts_with("row 0: column \"temp\" is missing"));
        let cell = error(r#"{"rows": [[1, "x", 2], ["high", "x", 2]]}"#);
        assert_eq!(cell, "row 1, column \"temp\": found \"high\", expected a number or null");
        assert!(error(r#"{"rows": [[1, [], 2]]}"#).contains("found [], expected a text or null"));
        assert!(error(r#"{"rows": [[1, "x", true]]}"#).contains("expected a time stamp or Unix seconds"));
    }

    proptest! {
        /// Any bytes are a table or an error.
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), rows in "[\\[\\]{}\",:0-9a-z ]{0,60}") {
            let _outcome = columns().read(&bytes);
            let _outcome = columns().read(format!("{{\"rows\": [{rows}]}}").as_bytes());
        }
    }
}
