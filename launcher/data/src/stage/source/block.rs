//! The common output of all sources: a run of table rows, column by column, with cleaned cells.

use super::super::error::{CellError, StageError};
use enn_common::config::data::{Index, Labels};
use std::collections::HashMap;

pub(crate) const NO_WORD: u32 = u32::MAX;

pub(crate) const NO_TIME: i64 = i64::MIN;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// Real numbers, NaN where missing.
    Number,
    /// Words with few distinct values: categories, entities, groups.
    Word,
    /// Integers that are rows of a lookup table, NaN where missing.
    Index(Index),
    /// Any number of labels in one text.
    Labels(Labels),
    /// Times, microseconds since 1970.
    Time,
    /// Times with day and hour, Unix seconds: a bare year or month is invalid.
    Calendar,
    Key,
    /// The words train, val and test.
    Split,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ColumnSpec {
    pub column: String,
    pub kind: ColumnKind,
    /// Smallest and largest number that is input_bounds; others count as missing.
    pub range: (f64, f64),
    /// A number that means "missing".
    pub sentinel: Option<f64>,
}

impl ColumnSpec {
    /// Range of all finite f32 numbers.
    pub(crate) const ANY: (f64, f64) = (-(f32::MAX as f64), f32::MAX as f64);

    pub(crate) fn new(column: &str, kind: ColumnKind) -> Self {
        Self { column: column.to_string(), kind, range: Self::ANY, sentinel: None }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Values {
    /// NaN stands for missing numbers.
    Numbers(Vec<f64>),
    /// Indices into the block's own list of words, `NO_WORD` where missing.
    Words(Words),
    /// Unix seconds, or microseconds since 1970, by the column's kind; `NO_TIME` where missing.
    Times(Vec<i64>),
    Keys(Vec<Key>),
}

impl Values {
    pub(crate) fn new(kind: ColumnKind, rows: usize) -> Self {
        match kind {
            ColumnKind::Number | ColumnKind::Index(_) => Self::Numbers(Vec::with_capacity(rows)),
            ColumnKind::Word | ColumnKind::Labels(_) | ColumnKind::Split => Self::Words(Words::default()),
            ColumnKind::Time | ColumnKind::Calendar => Self::Times(Vec::with_capacity(rows)),
            ColumnKind::Key => Self::Keys(Vec::with_capacity(rows)),
        }
    }

    pub(crate) fn truncate(&mut self, rows: usize) {
        match self {
            Self::Numbers(values) => values.truncate(rows),
            Self::Words(words) => words.ids.truncate(rows),
            Self::Times(values) => values.truncate(rows),
            Self::Keys(values) => values.truncate(rows),
        }
    }

    /// Returns the numbers; empty for another kind.
    pub(crate) fn numbers(&self) -> &[f64] {
        if let Self::Numbers(values) = self { values } else { &[] }
    }

    /// Returns the words; `None` for another kind.
    pub(crate) fn words(&self) -> Option<&Words> {
        if let Self::Words(words) = self { Some(words) } else { None }
    }

    /// Returns the times; empty for another kind.
    pub(crate) fn times(&self) -> &[i64] {
        if let Self::Times(values) = self { values } else { &[] }
    }

    /// Returns the keys; empty for another kind.
    pub(crate) fn keys(&self) -> &[Key] {
        if let Self::Keys(values) = self { values } else { &[] }
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Words {
    /// Index into `list`, one per row.
    pub ids: Vec<u32>,
    /// Distinct words in order of first appearance in the block.
    pub list: Vec<String>,
    index: HashMap<String, u32>,
}

impl Words {
    pub(crate) fn push(&mut self, word: &str) {
        // Tables that are sorted by entity have long runs of one word.
        if let Some(last) = self.ids.last()
            && self.list.get(*last as usize).is_some_and(|text| text == word)
        {
            return self.ids.push(*last);
        }
        if let Some(id) = self.index.get(word) {
            return self.ids.push(*id);
        }
        let id = u32::try_from(self.list.len()).unwrap_or(NO_WORD);
        self.list.push(word.to_string());
        self.index.insert(word.to_string(), id);
        self.ids.push(id);
    }

    pub(crate) fn push_missing(&mut self) {
        self.ids.push(NO_WORD);
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// An integer, which becomes the row's id.
    Integer(i64),
    Text(String),
}

/// Cells of a requested column that were changed, by reason: all but the last kind became missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CellCounts {
    /// Number of missing tokens.
    pub missing: u64,
    /// Number of cells with inf or nan.
    pub non_finite: u64,
    pub out_of_range: u64,
    /// Number of cells beyond the rows of an index, which became the nearest row.
    pub clamped: u64,
}

impl CellCounts {
    pub(crate) fn to_array(self) -> [u64; 4] {
        [self.missing, self.non_finite, self.out_of_range, self.clamped]
    }

    pub(crate) fn from_array(counts: &[u64; 4]) -> Self {
        let [missing, non_finite, out_of_range, clamped] = *counts;
        Self { missing, non_finite, out_of_range, clamped }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.missing += other.missing;
        self.non_finite += other.non_finite;
        self.out_of_range += other.out_of_range;
        self.clamped += other.clamped;
    }
}

/// A run of rows in reading order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Block {
    /// Index of the rows' file among the configured files.
    pub file: usize,
    pub rows: usize,
    /// Number of lines (text) or rows (tables) that the piece spans.
    pub span: u64,
    /// Bytes of the source in the piece.
    pub bytes: u64,
    /// One entry per requested column.
    pub columns: Vec<Values>,
    /// One entry per requested column.
    pub counts: Vec<CellCounts>,
    /// Hash of each whole row, if requested.
    pub hashes: Vec<u128>,
    /// Number of rows left out because they have more or fewer fields than the header.
    pub wrong_width: u64,
    /// Line of the first such row, from the beginning of the piece.
    pub wrong_width_at: Option<u64>,
}

#[derive(Debug)]
pub(crate) enum PieceError {
    Cell {
        file: usize,
        /// Number of lines or rows from the beginning of the piece.
        at: u64,
        column: String,
        kind: CellError,
    },
    Stage(StageError),
}

impl From<StageError> for PieceError {
    fn from(error: StageError) -> Self {
        Self::Stage(error)
    }
}
