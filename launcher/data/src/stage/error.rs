//! Errors of staging: every error is one sentence with the location, what was found, what was expected and a hint.

use super::{brief::brief, timestamp};
use enn_common::{
    fs::{FileError, regular, space::SpaceError},
    staged::StagedError,
};
use std::{
    fmt,
    path::{Path, PathBuf},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    pub path: PathBuf,
    pub position: Position,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Line of a text file, counted from 1.
    Line(u64),
    /// Row of a table or array, counted from 1, the header not counted.
    Row(u64),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Position::Line(line) => write!(f, "{}:{line}", self.path.display()),
            Position::Row(row) => write!(f, "{}, row {row}", self.path.display()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CellError {
    #[error(
        "found {:?}, expected a number like the rest of the column; if it means \"missing\", add it to data.missing; {}",
        brief(found),
        instead(found)
    )]
    NotANumber { found: String },
    #[error("found {found}, expected an integer: the column is an index; read it as kind = \"number\" if it is none")]
    NotAnInteger { found: String },
    #[error(
        "found {:?}, expected a time stamp like 2013-01-31T06:00:00Z or integer Unix seconds{}",
        brief(found),
        dashes(found)
    )]
    NotATime { found: String },
    #[error("found {:?}, expected train, val or test", brief(found))]
    NotASplit { found: String },
    #[error("found nothing, expected a value: the column identifies the row")]
    NoKey,
    #[error(
        "the file ends here, in field {found} of {expected}, without a line end: it was cut; copy it again, or remove this line"
    )]
    CutRecord { found: usize, expected: usize },
    #[error("found bytes that are not UTF-8: {:?}; convert the file, e.g. iconv -f latin1 -t utf8", brief(found))]
    NotUtf8 {
        /// The cell, with replacement characters.
        found: String,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error("data.files is empty; name at least one file")]
    NoFiles,
    #[error("{}", missing(path))]
    MissingFile { path: PathBuf },
    #[error(
        "{}: the extension does not name a format; {}set data.format (for `enn new`: --format) to csv, parquet, arrow, npy, npz, safetensors or xlsx",
        path.display(),
        packed(path)
    )]
    UnknownFormat { path: PathBuf },
    #[error("{}: cannot be read as {format}: {cause}", path.display())]
    Unreadable {
        path: PathBuf,
        format: &'static str,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{}: has no sheet {sheet:?}; it has {}", path.display(), quoted(found))]
    NoSheet { path: PathBuf, sheet: String, found: Vec<String> },
    #[error("{}: sheet {sheet:?} has {cells} cells, more than the {cells_max} a workbook is read with; save it as CSV or Parquet", path.display())]
    SheetTooLarge {
        path: PathBuf,
        sheet: String,
        /// Number of cells, rows × columns.
        cells: u64,
        cells_max: u64,
    },
    #[error(
        "{}: has no column {}{}; it has {}{}",
        path.display(),
        quoted(columns),
        nearest(near),
        quoted(found),
        headless(found)
    )]
    UnknownColumn { path: PathBuf, columns: Vec<String>, near: Vec<String>, found: Vec<String> },
    #[error(
        "{}: source {source_name:?} has no column {}, which source {other:?} has; all sources need the same columns",
        path.display(),
        quoted(columns)
    )]
    OtherColumns { path: PathBuf, source_name: String, columns: Vec<String>, other: String },
    #[error(
        "{}: array {array:?} of source {source_name:?} has {found} rows in the source's files, expected {expected} and at least 1",
        path.display()
    )]
    SourceRows {
        path: PathBuf,
        source_name: String,
        array: String,
        found: u64,
        /// Number of rows of the inputs.
        expected: u64,
    },
    #[error("{}: has no array {array:?}; it has {}", path.display(), quoted(found))]
    NoArray { path: PathBuf, array: String, found: Vec<String> },
    #[error("{}: the header names column {column:?} twice; give every column its own name", path.display())]
    RepeatedColumn { path: PathBuf, column: String },
    #[error("{place}, column {column:?}: {kind}")]
    Cell {
        place: Location,
        column: String,
        #[source]
        kind: CellError,
    },
    #[error(
        "{place}: a quote is opened and never closed; close it, or double each quote that belongs to the text and put the field in quotes"
    )]
    OpenQuote { place: Location },
    #[error("{place}: the record does not end within {bytes_max} bytes; is it a table, with a line for each row?")]
    EndlessRecord { place: Location, bytes_max: usize },
    #[error("{}: {found}; expected at least one data row{hint}", path.display())]
    ZeroRows {
        path: PathBuf,
        found: String,
        /// Empty, or a hint that begins with "; ".
        hint: String,
    },
    #[error(
        "target {}: no valid value in the training samples; check the column, data.missing and data.ranges",
        quoted(columns)
    )]
    NoTarget { columns: Vec<String> },
    #[error(
        "target {column:?}: found numbers as large as {size:e} that differ by less than {step:.0}, the step between two of an f32 there; \
         expected numbers that differ by more: subtract a constant offset, and add it to the predictions"
    )]
    Target {
        column: String,
        size: f64,
        /// Spacing of f32 numbers at `size`.
        step: f64,
    },
    #[error("the split leaves no training sample of {samples}; lower data.split.val and data.split.test")]
    NoTraining { samples: u64 },
    #[error(
        "the split leaves no training sample of {samples}, after {dropped} without a valid target were dropped; check the targets of \
         the training rows, data.missing and data.ranges"
    )]
    NoTrainingLeft { samples: u64, dropped: u64 },
    #[error("column {column:?}: no training sample has a weight above 0, expected at least one; check data.weight")]
    NoWeight { column: String },
    #[error("{}: row {second} repeats {what} of row {first} (counted without the header); remove it or set data.duplicates to \"first\" or \"last\"", path.display())]
    Duplicate {
        path: PathBuf,
        /// The repeated part of the row: "the row id", "all cells" or "entity and time".
        what: &'static str,
        first: u64,
        second: u64,
    },
    #[error("{}: row {row} (counted without the header) repeats entity {entity:?} at {time}; remove it or set data.duplicates to \"first\" or \"last\"", path.display())]
    RepeatedCell {
        path: PathBuf,
        /// Number of the later row, from 1.
        row: u64,
        entity: String,
        /// Time as in the file, UTC.
        time: String,
    },
    #[error(
        "column {column:?}: found {found}, expected one row of each step of {step_s} s (data.windows.step_s)\n  hint: {hint}"
    )]
    Steps { column: String, step_s: i64, found: String, hint: String },
    #[error(
        "data.split.kind: found {kind:?}, which leaves {left} of {before} training windows whose history holds no target of validation \
         or test, expected at least half\n  hint: set data.split.kind = \"chronological\", which loses none, or a shorter \
         data.windows.history"
    )]
    Leak { kind: String, before: u64, left: u64 },
    #[error("data.split.kind: found {found}, expected rows in the order of time\n  hint: {hint}")]
    NoOrder { found: String, hint: &'static str },
    #[error(
        "column {column:?} names more than {entities_max} entities; is it really the column of the grid's first axis?"
    )]
    TooManyEntities { column: String, entities_max: usize },
    #[error("{}: array {array:?} has shape {found:?}, expected {expected}", path.display())]
    Shape { path: PathBuf, array: String, found: Vec<u64>, expected: String },
    #[error("{key}: found {found}, expected {expected}")]
    Config {
        key: &'static str,
        found: String,
        /// The expected value, with a hint.
        expected: String,
    },
    #[error(transparent)]
    UnseenCategories(#[from] super::coverage::UnseenCategories),
    #[error(
        "column {column:?} has more than {categories_max} categories; is it an identifier? read it as a number or leave it out"
    )]
    TooManyCategories { column: String, categories_max: usize },
    #[error(
        "column {column:?} has more than {labels_max} labels; is its separator another one? read it as kind = \"category\" or leave it out"
    )]
    TooManyLabels { column: String, labels_max: usize },
    #[error(
        "column {column:?} spans {steps} steps of {step_s} s for {entities} entities but the table has only {rows} rows; check the time stamps and step_s"
    )]
    Sparse { column: String, steps: u64, step_s: i64, entities: usize, rows: u64 },
    #[error("{} changed while it was being read; stage again when nobody writes to it", path.display())]
    Changed { path: PathBuf },
    #[error("cannot start a thread for staging: {cause}")]
    Thread {
        #[source]
        cause: std::io::Error,
    },
    #[error(transparent)]
    Space(#[from] SpaceError),
    #[error(transparent)]
    Bound(#[from] super::bound::BoundError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Staged(#[from] StagedError),
}

impl StageError {
    pub(crate) fn config(key: &'static str, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Config { key, found: found.into(), expected: expected.into() }
    }

    pub(crate) fn zero_rows(path: &Path, found: impl Into<String>) -> Self {
        Self::ZeroRows { path: path.to_path_buf(), found: found.into(), hint: String::new() }
    }

    pub(crate) fn unreadable(
        path: &Path,
        format: &'static str,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Unreadable { path: path.to_path_buf(), format, cause: cause.into() }
    }

    /// Whether the system caused the error and not the data, so that another attempt may succeed.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Space(_) | Self::File(_) | Self::Thread { .. } => true,
            Self::Staged(error) => matches!(error, StagedError::File(_) | StagedError::Space(_)),
            _ => false,
        }
    }
}

fn quoted(names: &[String]) -> String {
    const SHOWN_MAX: usize = 20;
    let mut text: Vec<String> = names.iter().take(SHOWN_MAX).map(|name| format!("{name:?}")).collect();
    if names.len() > SHOWN_MAX {
        text.push(format!("… ({} in all)", names.len()));
    }
    text.join(", ")
}

fn nearest(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", quoted(near)) }
}

fn missing(path: &Path) -> String {
    let shown = path.display();
    let each = "a list in data.files, or --data once for each";
    let kind = path.metadata().ok().and_then(|found| regular::other_kind(found.file_type()));
    if let Some(what) = kind.filter(|_| !path.is_dir()) {
        return format!(
            "{shown} is {what}, expected a regular file: write what it gives to a file first, it is read twice"
        );
    }
    let is_pattern = path.file_name().is_some_and(|name| name.to_string_lossy().contains(['*', '?']));
    match (path.is_dir(), is_pattern) {
        (true, _) => format!("{shown} is a directory, expected a file; name the files in it: {each}"),
        (_, true) => format!("{shown} does not exist, and patterns are not expanded; name every file: {each}"),
        _ => {
            format!("{shown} does not exist; data.files is relative to the configuration file, --data to where you are")
        }
    }
}

fn packed(path: &Path) -> &'static str {
    let ends = |extension: &&str| path.extension().is_some_and(|own| own.eq_ignore_ascii_case(extension));
    if ["gz", "zip", "zst", "bz2", "xz", "7z", "lz4"].iter().any(ends) { "unpack it first, or " } else { "" }
}

fn headless(found: &[String]) -> &'static str {
    let numbers = found.iter().filter(|name| name.parse::<f64>().is_ok()).count();
    if 2 * numbers > found.len() { "; is the line with the names of the columns missing?" } else { "" }
}

fn instead(found: &str) -> &'static str {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = found.trim_start_matches(['-', '+']);
    match unsigned.split_once(',') {
        Some((whole, fraction)) if digits(whole) && digits(&fraction.replace(['.', ','], "")) => {
            "commas between digits are not read: write 3.14, or 1000"
        }
        _ if unsigned.strip_suffix('%').is_some_and(|number| number.trim().parse::<f64>().is_ok()) => {
            "signs of percent are not read: write 3.14"
        }
        _ if timestamp::parse(found.as_bytes()).is_some() => "a time is read as { column = …, kind = \"time\" }",
        _ => "words are read as { column = …, kind = \"category\" }, those of a target with target_kind = \"category\"",
    }
}

fn dashes(found: &str) -> String {
    let is_coarse = timestamp::is_year_or_month(found.as_bytes());
    match found.len() {
        8 if timestamp::is_compact_date(found.as_bytes()) => {
            format!("; write the day as {}-{}-{}", &found[..4], &found[4..6], &found[6..])
        }
        6 if is_coarse => format!("; write its first day as {}-{}-01", &found[..4], &found[4..]),
        4 if is_coarse => "; a year has neither day nor hour: read the column with kind = \"number\"".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_error_names_line_column_found_and_hint() {
        let place = Location { path: "/data/w.csv".into(), position: Position::Line(17) };
        let kind = CellError::NotANumber { found: "3,14".into() };
        let text = StageError::Cell { place, column: "temp".into(), kind }.to_string();
        assert!(text.starts_with("/data/w.csv:17, column \"temp\": found \"3,14\", expected a number"), "{text}");
        assert!(text.ends_with("not read: write 3.14, or 1000"), "{text}");
        for (found, expected) in [
            ("-1,000.5", "or 1000"),
            ("41.1 %", "signs of percent are not read: write 3.14"),
            ("2024-01-31", "a time is read as { column = …, kind = \"time\" }"),
            ("high", "as { column = …, kind = \"category\" }, those of a target with target_kind = \"category\""),
            ("a,b", "target_kind = \"category\""),
        ] {
            let text = CellError::NotANumber { found: found.into() }.to_string();
            assert!(text.ends_with(expected), "{text}");
        }
        let text = CellError::NotATime { found: "20240131".into() }.to_string();
        assert!(text.ends_with("or integer Unix seconds; write the day as 2024-01-31"), "{text}");
        let text = CellError::NotATime { found: "202401".into() }.to_string();
        assert!(text.ends_with("or integer Unix seconds; write its first day as 2024-01-01"), "{text}");
    }

    #[test]
    fn packed_files_and_tables_without_names_are_recognised() {
        let of = |name: &str| StageError::UnknownFormat { path: name.into() }.to_string();
        assert!(of("t.csv.gz").contains("unpack it first, or set data.format") && !of("t.dat").contains("unpack"));
        let of = |found: &[&str]| {
            let found = found.iter().map(|name| (*name).to_owned()).collect();
            StageError::UnknownColumn { path: "t.csv".into(), columns: vec!["a".into()], near: vec![], found }
                .to_string()
        };
        assert!(of(&["0", "-1.5", "x"]).ends_with("missing?") && of(&["2024", "b", "c"]).ends_with("\"c\""));
    }

    #[test]
    fn long_lists_are_cut() {
        let many: Vec<String> = (0..30).map(|i| i.to_string()).collect();
        assert!(quoted(&many).ends_with("(30 in all)"));
    }
}
