//! Why data could not be staged: every error is one sentence with the place, what was found, what was expected and a hint.

use super::timestamp;
use enn_common::{
    fs::{FileError, regular, space::SpaceError},
    staged::StagedError,
};
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Characters of a cell that an error shows.
const SHOWN_CHARS: usize = 40;

/// Where in a source something was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub path: PathBuf,
    pub spot: Spot,
}

/// A place inside a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spot {
    /// Line of a text file, counted from 1.
    Line(u64),
    /// Row of a table or array, counted from 1, the header not counted.
    Row(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.spot {
            Spot::Line(line) => write!(f, "{}:{line}", self.path.display()),
            Spot::Row(row) => write!(f, "{}, row {row}", self.path.display()),
        }
    }
}

/// What was wrong with one cell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CellError {
    /// Text where the column's other cells are numbers.
    #[error(
        "found {:?}, expected a number like the rest of the column; if it means \"missing\", add it to data.missing; {}",
        brief(found),
        instead(found)
    )]
    NotANumber { found: String },
    /// A fraction where the column's other cells are indices.
    #[error("found {found}, expected an integer: the column is an index; read it as kind = \"number\" if it is none")]
    NotAnInteger { found: String },
    /// Not a time stamp.
    #[error(
        "found {:?}, expected a time stamp like 2013-01-31T06:00:00Z or integer Unix seconds{}",
        brief(found),
        dashes(found)
    )]
    NotATime { found: String },
    /// Neither train, val nor test.
    #[error("found {:?}, expected train, val or test", brief(found))]
    NotASplit { found: String },
    /// A cell that identifies its row is empty.
    #[error("found nothing, expected a value: the column identifies the row")]
    NoKey,
    /// The file ends inside a record.
    #[error(
        "the file ends here, in field {found} of {expected}, without a line end: it was cut; copy it again, or remove this line"
    )]
    CutRecord {
        /// Fields of the record.
        found: usize,
        /// Fields of the header.
        expected: usize,
    },
    /// Bytes that are not UTF-8.
    #[error("found bytes that are not UTF-8: {:?}; convert the file, e.g. iconv -f latin1 -t utf8", brief(found))]
    NotUtf8 {
        /// The cell, with replacement characters.
        found: String,
    },
}

/// Staging failed. The output directory holds nothing new.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The configuration names no file.
    #[error("data.files is empty; name at least one file")]
    NoFiles,
    /// A source file does not exist.
    #[error("{}", missing(path))]
    MissingFile { path: PathBuf },
    /// The extension says nothing and no format was given.
    #[error(
        "{}: the extension does not name a format; {}set data.format to csv, parquet, arrow, npy, npz, safetensors or xlsx",
        path.display(),
        packed(path)
    )]
    UnknownFormat { path: PathBuf },
    /// The file cannot be read as what it claims to be.
    #[error("{}: cannot be read as {format}: {cause}", path.display())]
    Unreadable {
        path: PathBuf,
        format: &'static str,
        /// What its reader said.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The workbook lacks the sheet.
    #[error("{}: has no sheet {sheet:?}; it has {}", path.display(), quoted(found))]
    NoSheet { path: PathBuf, sheet: String, found: Vec<String> },
    /// A workbook is larger than what is read at once.
    #[error("{}: sheet {sheet:?} has {cells} cells, more than the {cells_max} a workbook is read with; save it as CSV or Parquet", path.display())]
    SheetTooLarge {
        path: PathBuf,
        sheet: String,
        /// Rows × columns.
        cells: u64,
        cells_max: u64,
    },
    /// A source lacks columns that the configuration, or the model, names.
    #[error(
        "{}: has no column {}{}; it has {}{}",
        path.display(),
        quoted(columns),
        nearest(near),
        quoted(found),
        headless(found)
    )]
    UnknownColumn {
        path: PathBuf,
        columns: Vec<String>,
        /// Existing columns with a similar name.
        near: Vec<String>,
        found: Vec<String>,
    },
    /// A source lacks columns that another one has.
    #[error(
        "{}: source {source_name:?} has no column {}, which source {other:?} has; all sources need the same columns",
        path.display(),
        quoted(columns)
    )]
    OtherColumns {
        path: PathBuf,
        /// Name of its source.
        source_name: String,
        columns: Vec<String>,
        /// Name of the other source.
        other: String,
    },
    /// The arrays of a source do not fit each other.
    #[error(
        "{}: array {array:?} of source {source_name:?} has {found} rows in the source's files, expected {expected} and at least 1",
        path.display()
    )]
    SourceRows {
        /// The source's first file.
        path: PathBuf,
        source_name: String,
        array: String,
        /// Rows of the array.
        found: u64,
        /// Rows of the inputs.
        expected: u64,
    },
    /// A file lacks an array.
    #[error("{}: has no array {array:?}; it has {}", path.display(), quoted(found))]
    NoArray { path: PathBuf, array: String, found: Vec<String> },
    /// A header names one column twice.
    #[error("{}: the header names column {column:?} twice; give every column its own name", path.display())]
    RepeatedColumn { path: PathBuf, column: String },
    /// A cell cannot be used.
    #[error("{place}, column {column:?}: {kind}")]
    Cell {
        place: Place,
        column: String,
        #[source]
        kind: CellError,
    },
    /// A quoted field never ends.
    #[error(
        "{place}: a quote is opened and never closed; close it, or double each quote that is a letter and put the field in quotes"
    )]
    OpenQuote {
        /// Where the quote is.
        place: Place,
    },
    /// A line is absurdly long.
    #[error("{place}: the record does not end within {bytes_max} bytes; is it a table, with a line for each row?")]
    EndlessRecord {
        /// Where the record begins.
        place: Place,
        bytes_max: usize,
    },
    /// There is nothing to learn from.
    #[error("{}: {found}; expected at least one data row{hint}", path.display())]
    ZeroRows {
        path: PathBuf,
        /// What was there instead.
        found: String,
        /// What may help; empty or beginning with "; ".
        hint: String,
    },
    /// No sample has a valid target in the training split.
    #[error(
        "target {}: no valid value in the training samples; check the column, data.missing and data.ranges",
        quoted(columns)
    )]
    NoTarget { columns: Vec<String> },
    /// A target whose numbers are staged as one.
    #[error(
        "target {column:?}: found numbers as large as {size:e} that differ by less than {step:.0}, the step between two of an f32 there; \
         expected numbers that differ by more: take off what all have in common, and add it to the predictions"
    )]
    Target {
        column: String,
        size: f64,
        /// To the next number of an f32.
        step: f64,
    },
    /// Every sample fell into validation or test.
    #[error("the split leaves no training sample of {samples}; lower data.split.val and data.split.test")]
    NoTraining { samples: u64 },
    /// No training sample has a target.
    #[error(
        "the split leaves no training sample of {samples}, after {dropped} without a valid target were dropped; check the targets of \
         the training rows, data.missing and data.ranges"
    )]
    NoTrainingLeft {
        /// Samples that are left.
        samples: u64,
        /// Samples without a target.
        dropped: u64,
    },
    /// No training sample counts.
    #[error("column {column:?}: no training sample has a weight above 0, expected at least one; check data.weight")]
    NoWeight {
        /// Column of the weights.
        column: String,
    },
    /// Repeated rows under the policy `error`.
    #[error("{}: row {second} repeats {what} of row {first} (counted without the header); remove it or set data.duplicates to \"first\" or \"last\"", path.display())]
    Duplicate {
        path: PathBuf,
        /// What is repeated: "the row id", "all cells", "entity and time".
        what: &'static str,
        /// First row, from 1.
        first: u64,
        /// Second row, from 1.
        second: u64,
    },
    /// Two rows for one cell under the policy `error`.
    #[error("{}: row {row} (counted without the header) repeats entity {entity:?} at {time}; remove it or set data.duplicates to \"first\" or \"last\"", path.display())]
    RepeatedCell {
        path: PathBuf,
        /// The later row, from 1.
        row: u64,
        entity: String,
        /// Time as in the file, UTC.
        time: String,
    },
    /// Steps that the time stamps do not have.
    #[error(
        "column {column:?}: found {found}, expected one row of each step of {step_s} s (data.windows.step_s)\n  hint: {hint}"
    )]
    Steps {
        /// Column of the times.
        column: String,
        /// The step, seconds.
        step_s: i64,
        /// What the rows are like.
        found: String,
        hint: String,
    },
    /// Windows whose history holds targets of another part.
    #[error(
        "data.split.kind: found {kind:?}, which leaves {left} of {before} training windows whose history holds no target of validation \
         or test, expected at least half\n  hint: set data.split.kind = \"chronological\", which loses none, or a shorter \
         data.windows.history"
    )]
    Leak {
        kind: String,
        before: u64,
        /// Those that may stay.
        left: u64,
    },
    /// Rows that are to be divided by time and are not in its order, or have none.
    #[error("data.split.kind: found {found}, expected rows in the order of time\n  hint: {hint}")]
    NoOrder {
        /// What the rows are like.
        found: String,
        hint: &'static str,
    },
    /// More entities than a grid can have.
    #[error(
        "column {column:?} names more than {entities_max} entities; is it really the column of the grid's first axis?"
    )]
    TooManyEntities { column: String, entities_max: usize },
    /// An array has the wrong shape.
    #[error("{}: array {array:?} has shape {found:?}, expected {expected}", path.display())]
    Shape { path: PathBuf, array: String, found: Vec<u64>, expected: String },
    /// Parts of the configuration do not fit each other or the source.
    #[error("{key}: found {found}, expected {expected}")]
    Config {
        /// Key of the configuration.
        key: &'static str,
        found: String,
        /// What was expected, with a hint.
        expected: String,
    },
    /// Data that the model was not trained on.
    #[error(transparent)]
    Unseen(#[from] super::known::Unseen),
    /// More categories than an embedding can be made of.
    #[error(
        "column {column:?} has more than {categories_max} categories; is it an identifier? read it as a number or leave it out"
    )]
    TooManyCategories { column: String, categories_max: usize },
    /// More labels than there can be inputs.
    #[error(
        "column {column:?} has more than {labels_max} labels; is its separator another one? read it as kind = \"category\" or leave it out"
    )]
    TooManyLabels { column: String, labels_max: usize },
    /// The table's times are so far apart that the grid would be almost empty.
    #[error(
        "column {column:?} spans {steps} steps of {step_s} s for {entities} entities but the table has only {rows} rows; check the time stamps and step_s"
    )]
    Sparse {
        column: String,
        /// Steps from the first to the last time.
        steps: u64,
        /// Step, seconds.
        step_s: i64,
        entities: usize,
        /// Table rows.
        rows: u64,
    },
    /// A file was written to while it was read.
    #[error("{} changed while it was being read; stage again when nobody writes to it", path.display())]
    Changed { path: PathBuf },
    /// The machine refused a thread.
    #[error("cannot start a thread for staging: {cause}")]
    Thread {
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// The disk is too small.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// A source says, or unpacks to, more than is read of one.
    #[error(transparent)]
    Bound(#[from] super::bound::BoundError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The staged directory could not be written or read.
    #[error(transparent)]
    Staged(#[from] StagedError),
}

impl StageError {
    /// Whether the disk is at fault and not the data: the same again may succeed.
    pub(crate) fn is_of_the_disk(&self) -> bool {
        match self {
            Self::Space(_) | Self::File(_) | Self::Thread { .. } => true,
            Self::Staged(error) => matches!(error, StagedError::File(_) | StagedError::Space(_)),
            _ => false,
        }
    }
}

/// The beginning of a cell.
pub(super) fn brief(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

/// Names in quotes, the first twenty of them.
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

/// A hint for a file that was packed as a whole.
fn packed(path: &Path) -> &'static str {
    let ends = |extension: &&str| path.extension().is_some_and(|own| own.eq_ignore_ascii_case(extension));
    if ["gz", "zip", "zst", "bz2", "xz", "7z", "lz4"].iter().any(ends) { "unpack it first, or " } else { "" }
}

/// A hint for a table whose first line is data.
fn headless(found: &[String]) -> &'static str {
    let numbers = found.iter().filter(|name| name.parse::<f64>().is_ok()).count();
    if 2 * numbers > found.len() { "; is the line with the names of the columns missing?" } else { "" }
}

/// What may help with a text that is no number.
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

/// What may help with a text that is no time.
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
        let place = Place { path: "/data/w.csv".into(), spot: Spot::Line(17) };
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
    fn long_lists_and_long_cells_are_cut() {
        assert_eq!(brief(&"é".repeat(100)).chars().count(), 41);
        let many: Vec<String> = (0..30).map(|i| i.to_string()).collect();
        assert!(quoted(&many).ends_with("(30 in all)"));
    }
}
