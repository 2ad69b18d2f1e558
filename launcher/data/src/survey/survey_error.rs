//! Errors of a proposal: columns that are not there, and targets of which nothing can be learned.

use crate::stage::StageError;
use std::fmt::Write as _;

/// Names that an error lists.
const LISTED_MAX: usize = 20;

#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    #[error(transparent)]
    Stage(#[from] StageError),
    #[error("{flag}: the table has no column {name:?}{}", known_columns(near, columns))]
    NoColumn { flag: &'static str, name: String, near: Vec<String>, columns: Vec<String> },
    #[error(
        "{flag} {name:?}: the column has another role already ({role})\n  hint: name another column, or leave {flag} out"
    )]
    TwoRoles { flag: &'static str, name: String, role: &'static str },
    #[error("--target {name:?}: {found}\n  hint: {hint}")]
    Target { name: String, found: String, hint: String },
    #[error(
        "--time {name:?}: found {found}, expected times like 2024-01-31T06:00:00, or whole numbers\n  hint: {hint}"
    )]
    Time { name: String, found: String, hint: &'static str },
    #[error("{0}\n  hint: {1}")]
    Forecast(&'static str, &'static str),
    #[error(
        "no column is left to predict {targets} from:{left_out}\n  hint: list the inputs yourself, in features = [...] of a configuration"
    )]
    NoInputs { targets: String, left_out: String },
}

fn known_columns(near: &[String], columns: &[String]) -> String {
    let quoted = |names: &[String]| names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let mut text = String::new();
    if !near.is_empty() {
        let _written = write!(text, "\n  hint: did you mean {}?", quoted(near).replace(", ", " or "));
    }
    let more = if columns.len() > LISTED_MAX { format!(", … ({} in all)", columns.len()) } else { String::new() };
    let listed = quoted(&columns[..columns.len().min(LISTED_MAX)]);
    let _written = write!(text, "\n  its columns: {listed}{more}");
    text
}
