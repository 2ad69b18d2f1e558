//! What is wrong with the rows of a request.

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
    #[error("row {row}: column {column:?} comes twice")]
    Twice { row: usize, column: String },
    #[error("row {row}: column {column:?} is missing; null says that a value is not known")]
    Missing { row: usize, column: String },
    #[error("row {row}, column {column:?}: found {found}, expected {expected} or null")]
    Cell { row: usize, column: String, found: String, expected: &'static str },
}
