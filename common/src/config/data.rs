//! How foreign tables become samples: what `[data]` means after resolving.

use super::names;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
};

/// Everything the stager needs to know. All column names are as in the source's header.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataConfig {
    /// Source files, absolute. Several files of one format are read as one table, in this order.
    pub files: Vec<PathBuf>,
    /// Which of the files belong together, and how much of training each such source is; empty when all are one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<DataSource>,
    /// Format of all files; `None` decides by file extension.
    pub format: Option<SourceFormat>,
    /// Sheet of a workbook; `None` takes the first.
    pub sheet: Option<String>,
    /// Cell texts that mean "missing", compared after trimming, numbers as numbers; the empty text is always one.
    pub missing: Vec<String>,
    /// Policy for rows that repeat a key (row id; or entity and time) or, without a key, an entire row. Rows without a key are
    /// kept unless the configuration asks for something else: that two rows are equal does not make them one.
    pub duplicates: DuplicatePolicy,
    /// How rows become samples.
    pub layout: Layout,
    /// How samples are divided.
    pub split: SplitConfig,
    /// Unit of the target as shown to people, e.g. "°F". Empty when unknown.
    pub units: String,
    /// Units of input columns, of those that have one: for people and for whoever makes the rows, nothing is converted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub input_units: BTreeMap<String, String>,
    /// Values outside [low, high] of a named column count as missing and are reported.
    pub ranges: Vec<ColumnRange>,
    /// Column that says how much a sample counts in training and in all reported errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// Which target cells count.
    #[serde(default, skip_serializing_if = "TargetMask::is_default")]
    pub mask: TargetMask,
}

/// Files of one origin, with the columns that those of the other sources have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataSource {
    pub name: String,
    /// Number of files of `DataConfig::files`, after those of the sources before.
    pub files: usize,
    /// Share of the samples drawn in an epoch, relative to the other sources' weights; above 0, given for all sources or for none.
    /// Without weights every training row is drawn once in an epoch.
    pub weight: Option<f64>,
}

impl DataConfig {
    /// Columns of a table that a model's inputs are made of; none where the data are arrays.
    pub fn input_columns(&self) -> Vec<&str> {
        match &self.layout {
            Layout::Rows(rows) => rows.features.iter().map(|feature| feature.column.as_str()).collect(),
            Layout::Windows(windows) => {
                // The history holds the target, whether it is named or not.
                let numbers = windows.inputs.iter().chain(&windows.circular).chain([&windows.target]);
                let mut seen = HashSet::new();
                let numbers = numbers.map(String::as_str).filter(|column| seen.insert(*column));
                [windows.entity.as_str(), &windows.time].into_iter().chain(numbers).collect()
            }
            Layout::Arrays(_) => Vec::new(),
        }
    }

    /// Columns that are read beside them: identities, and what only training needs.
    pub fn other_columns(&self) -> Vec<&str> {
        let mut columns: Vec<&String> = self.weight.iter().chain(&self.split.column).collect();
        if let Layout::Rows(rows) = &self.layout {
            columns.extend(rows.targets.iter().chain(&rows.row_id));
        }
        columns.into_iter().map(String::as_str).collect()
    }

    /// The files of each source, as ranges of `files`.
    pub fn source_files(&self) -> impl Iterator<Item = (&DataSource, std::ops::Range<usize>)> {
        let mut first = 0;
        self.sources.iter().map(move |source| {
            let files = first..first + source.files;
            first = files.end;
            (source, files)
        })
    }

    pub fn source_of(&self, file: usize) -> Option<&DataSource> {
        self.source_files().find(|(_, files)| files.contains(&file)).map(|(source, _)| source)
    }

    /// The weights of the sources; `None` where every row counts the same.
    pub fn source_weights(&self) -> Option<Vec<f64>> {
        self.sources.iter().map(|source| source.weight).collect::<Option<Vec<f64>>>().filter(|all| !all.is_empty())
    }
}

/// Which target cells count; the others are missing: no statistic, loss or error has them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetMask {
    /// Cells that hold a number.
    #[default]
    Finite,
    /// All: training data in which one is missing are refused.
    None,
    /// Cells that hold a number other than this one, compared as it is in the source.
    Value(f64),
}

impl TargetMask {
    /// The number that means "missing" in a target.
    pub fn sentinel(self) -> Option<f64> {
        if let Self::Value(value) = self { Some(value) } else { None }
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// File formats the stager reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceFormat {
    /// Comma-, semicolon- or tab-separated text with a header line.
    Csv,
    Parquet,
    /// Arrow IPC file or stream (Feather v2).
    Arrow,
    Npy,
    /// A zip of NumPy arrays.
    Npz,
    Safetensors,
    /// A workbook: xlsx, xls or ods.
    Xlsx,
}

impl SourceFormat {
    pub const NAMES: [(&'static str, Self); 7] = [
        ("csv", Self::Csv),
        ("parquet", Self::Parquet),
        ("arrow", Self::Arrow),
        ("npy", Self::Npy),
        ("npz", Self::Npz),
        ("safetensors", Self::Safetensors),
        ("xlsx", Self::Xlsx),
    ];

    pub fn name(self) -> &'static str {
        names::name_of(&self)
    }
}

/// Policy for repeated rows. Every policy counts them in the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DuplicatePolicy {
    /// Keep the first, drop the rest.
    First,
    Last,
    /// Keep all (not allowed for the window layout, where a key names one cell).
    Keep,
    Error,
}

/// How table rows become samples with features x (N, F) and targets y (N, S, T).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Layout {
    /// One table row is one sample.
    Rows(RowsLayout),
    /// A long table of entity × time becomes windows: yesterday's values in, tomorrow's grid out.
    Windows(WindowsLayout),
    /// Arrays that already have the right shape (.npz, safetensors, or one .npy per name).
    Arrays(ArraysLayout),
}

impl Layout {
    /// Whether rows are told apart by a name that the configuration declares: a row id, or entity and time.
    pub fn has_row_id(&self) -> bool {
        match self {
            Self::Rows(rows) => rows.row_id.is_some(),
            Self::Arrays(arrays) => arrays.row_id.is_some(),
            Self::Windows(_) => true,
        }
    }

    /// Whether this names an input that is a number; of arrays one of its columns, `x[3]`.
    pub fn measures(&self, input: &str) -> bool {
        match self {
            Self::Rows(rows) => {
                rows.features.iter().any(|feature| feature.column == input && feature.kind == FeatureKind::Number)
            }
            Self::Windows(windows) => {
                let is_in = |columns: &[String]| columns.iter().any(|column| column == input);
                is_in(&windows.inputs) && !is_in(&windows.circular)
            }
            Self::Arrays(arrays) => {
                let place =
                    input.strip_prefix(arrays.x.as_str()).and_then(|rest| rest.strip_prefix('[')?.strip_suffix(']'));
                place.is_some_and(|place| place.parse::<usize>().is_ok())
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowsLayout {
    /// Input columns in order; empty as long as `features = "*"` awaits the columns of the table.
    pub features: Vec<Feature>,
    /// Target columns in order, row-major over `out_shape`.
    pub targets: Vec<String>,
    /// Whether the only target is a category: its classes become the output cells, `out_shape` is 1 before they are known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub classes: bool,
    /// Shape of the output grid; its product is the number of targets.
    pub out_shape: Vec<usize>,
    /// Column that identifies a row; `None` numbers the rows from 0 in reading order.
    pub row_id: Option<String>,
}

/// An input column and how it is read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Feature {
    pub column: String,
    pub kind: FeatureKind,
    /// Whether the model reads a category or index as one column for each, rather than looks it up in a table that it learns.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub one_hot: bool,
}

impl Feature {
    pub fn new(column: impl Into<String>, kind: FeatureKind) -> Self {
        Self { column: column.into(), kind, one_hot: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureKind {
    /// A real number, standardised by the scaler.
    Number,
    /// A category: staged as its index (0.. in order of first appearance in the training rows; unseen → the unknown id, the
    /// number of categories), embedded by the model.
    Category,
    /// An integer that is the row of a table already: staged as value − offset.
    Index(Index),
    /// Any number of labels in one cell: staged as a column of 0 and 1 for each label of the training rows.
    Labels(Labels),
    /// A time stamp, expanded to the calendar features of `Calendar::ALL`.
    Time,
}

/// Integers from `offset` to `offset + rows − 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    pub offset: i64,
    /// How many, whether training has them all or not.
    pub rows: usize,
    /// Treatment of other values.
    pub outside: Outside,
}

/// Treatment of an integer that is no row of the table. Either way it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outside {
    /// The value gets the unknown id, the number of rows.
    Unknown,
    /// The value counts as the nearest row.
    Clamp,
}

/// How a cell holds its labels. A list of texts, where the format has such, needs no separator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labels {
    /// Separator of labels; blanks around it do not count.
    pub separator: char,
    /// Whether an empty cell is missing; else it has no label.
    pub empty_is_missing: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WindowsLayout {
    /// Column that names the entity: axis s of the grid, sorted by name.
    pub entity: String,
    /// Column with the time stamp (ISO 8601, `YYYY-MM-DD[ T]HH:MM[:SS][Z|±HH:MM]`, or integer Unix seconds).
    pub time: String,
    /// Added to every time stamp before windows are cut, seconds: −18000 turns UTC into US Eastern standard time.
    pub time_offset_s: i64,
    /// Time between rows, seconds.
    pub step_s: i64,
    /// Steps per sample: axis t of the grid. A window begins at a multiple of `step_s × steps` (after the offset).
    pub steps: usize,
    /// Windows of history given as input (≥ 1): the last one is the window before the target's.
    pub history: usize,
    /// Columns given as input for every entity and step of the history, then the calendar of the target window.
    pub inputs: Vec<String>,
    /// Circular inputs in degrees (wind direction): replaced by sine and cosine.
    pub circular: Vec<String>,
    pub target: String,
    /// Calendar features of the target window's first step.
    pub calendar: Vec<Calendar>,
    /// Samples whose target has fewer valid cells than this fraction are dropped, and counted.
    pub target_valid_min: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArraysLayout {
    /// Name of the (N, F) input array.
    pub x: String,
    /// Name of the (N, S[, T[, U]]) target array.
    pub y: String,
    /// Name of an optional (N) integer array of row ids.
    pub row_id: Option<String>,
}

/// Calendar features; cyclic ones are a sine and a cosine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Calendar {
    /// Position in the year, sine and cosine.
    DayOfYear,
    /// Day of the week, sine and cosine.
    Weekday,
    /// Hour of the day, sine and cosine.
    Hour,
    /// Years since 2000 with fraction: a trend.
    Trend,
}

impl Calendar {
    /// The features a `Time` column expands to.
    pub const ALL: &'static [Self] = &[Self::DayOfYear, Self::Weekday, Self::Hour];
}

/// How samples are divided into training, validation and test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SplitConfig {
    pub kind: SplitKind,
    /// Fraction of samples for validation, 0..1.
    pub val: f64,
    /// Fraction of samples for test, 0..1.
    pub test: f64,
    /// Seed of the random and group rules.
    pub seed: u64,
    /// Column of the group and column rules, or of the times of the chronological one.
    pub column: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SplitKind {
    /// Each sample by a keyed hash of its row id: stable when rows are added.
    Random,
    /// In order of time (windows, rows by a column) or of reading (arrays): train, then val, then test.
    Chronological,
    /// In the order of reading, which is that of time: train, then val, then test.
    #[serde(rename = "in_order")]
    InOrder,
    /// All samples of a group together, by a keyed hash of the group's name.
    Group,
    /// By a column that says train, val or test.
    Column,
    /// Chronological within each calendar month (windows) or each of twelve equal parts (rows): every season is in every
    /// split, and validation and test follow training in time inside the block.
    Blocked,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ColumnRange {
    pub column: String,
    pub low: f64,
    pub high: f64,
}
