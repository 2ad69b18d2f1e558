//! The common coin of all sources: a run of table rows, column by column, already cleaned cell by cell.

use super::super::error::{CellError, StageError};
use enn_common::config::data::{Index, Labels};
use std::collections::HashMap;

/// Index of a missing word.
pub(crate) const NO_WORD: u32 = u32::MAX;

/// A missing time.
pub(crate) const NO_TIME: i64 = i64::MIN;

/// How a column's cells are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A real number; NaN where missing.
    Number,
    /// A word of few: category, entity, group.
    Word,
    /// An integer that is a row of a table; NaN where missing.
    Index(Index),
    /// Labels, in one text.
    Labels(Labels),
    /// Microseconds since 1970.
    Time,
    /// Unix seconds whose day and hour count: what may be a year or a month is none.
    Calendar,
    /// What identifies the row.
    Key,
    /// One of the words train, val and test.
    Split,
}

/// A column that is wanted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Want {
    /// Name in the source.
    pub column: String,
    /// Meaning.
    pub kind: Kind,
    /// Smallest and largest number that is believed; others count as missing.
    pub range: (f64, f64),
    /// A number that means "missing".
    pub sentinel: Option<f64>,
}

impl Want {
    /// Every number that an f32 can hold.
    pub(crate) const ANY: (f64, f64) = (-(f32::MAX as f64), f32::MAX as f64);

    /// A column without a declared range.
    pub(crate) fn new(column: &str, kind: Kind) -> Self {
        Self { column: column.to_string(), kind, range: Self::ANY, sentinel: None }
    }
}

/// Cells of one wanted column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Values {
    /// Numbers, NaN where missing.
    Numbers(Vec<f64>),
    /// Indices into the block's own list of words, `NO_WORD` where missing.
    Words(Words),
    /// Unix seconds, or microseconds since 1970 where the kind says so; `NO_TIME` where missing.
    Times(Vec<i64>),
    Keys(Vec<Key>),
}

impl Values {
    /// An empty column with room for `rows` cells.
    pub(crate) fn new(kind: Kind, rows: usize) -> Self {
        match kind {
            Kind::Number | Kind::Index(_) => Self::Numbers(Vec::with_capacity(rows)),
            Kind::Word | Kind::Labels(_) | Kind::Split => Self::Words(Words::default()),
            Kind::Time | Kind::Calendar => Self::Times(Vec::with_capacity(rows)),
            Kind::Key => Self::Keys(Vec::with_capacity(rows)),
        }
    }

    /// Takes the cells from `rows` on away again.
    pub(crate) fn truncate(&mut self, rows: usize) {
        match self {
            Self::Numbers(values) => values.truncate(rows),
            Self::Words(words) => words.ids.truncate(rows),
            Self::Times(values) => values.truncate(rows),
            Self::Keys(values) => values.truncate(rows),
        }
    }

    /// The numbers; empty for another kind.
    pub(crate) fn numbers(&self) -> &[f64] {
        if let Self::Numbers(values) = self { values } else { &[] }
    }

    /// The words, of a word column.
    pub(crate) fn words(&self) -> Option<&Words> {
        if let Self::Words(words) = self { Some(words) } else { None }
    }

    /// The times; empty for another kind.
    pub(crate) fn times(&self) -> &[i64] {
        if let Self::Times(values) = self { values } else { &[] }
    }

    /// The keys; empty for another kind.
    pub(crate) fn keys(&self) -> &[Key] {
        if let Self::Keys(values) = self { values } else { &[] }
    }
}

/// A column of words, each stored once.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Words {
    /// One index per row.
    pub ids: Vec<u32>,
    /// The words, in order of first appearance in the block.
    pub list: Vec<String>,
    index: HashMap<String, u32>,
}

impl Words {
    /// Appends a cell.
    pub(crate) fn push(&mut self, word: &str) {
        // Runs of the same word are the rule in tables sorted by entity.
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

    /// Appends a missing cell.
    pub(crate) fn push_missing(&mut self) {
        self.ids.push(NO_WORD);
    }
}

/// What identifies a row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// An integer: kept as the row's id.
    Integer(i64),
    /// Any other text: rows are then numbered.
    Text(String),
}

/// Cells of a wanted column that are not taken as they are, and why: all but the last kind became missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CellCounts {
    /// Missing tokens.
    pub missing: u64,
    /// inf or nan as a number.
    pub non_finite: u64,
    /// Outside the declared range.
    pub out_of_range: u64,
    /// Beyond the rows of an index: these became the nearest instead.
    pub clamped: u64,
}

impl CellCounts {
    /// As they are kept.
    pub(crate) fn to_array(self) -> [u64; 4] {
        [self.missing, self.non_finite, self.out_of_range, self.clamped]
    }

    /// As they were kept.
    pub(crate) fn from_array([missing, non_finite, out_of_range, clamped]: &[u64; 4]) -> Self {
        Self { missing: *missing, non_finite: *non_finite, out_of_range: *out_of_range, clamped: *clamped }
    }

    /// Adds another count.
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
    /// File the rows are from, index into the configured files.
    pub file: usize,
    pub rows: usize,
    /// Lines (text) or rows (tables) the piece spans: the next piece of the file begins so many further on.
    pub span: u64,
    /// Bytes of the source the piece stands for.
    pub bytes: u64,
    /// One entry per wanted column.
    pub columns: Vec<Values>,
    /// One entry per wanted column.
    pub counts: Vec<CellCounts>,
    /// Hash of each whole row, when asked for.
    pub hashes: Vec<u128>,
    /// Rows left out because they have more or fewer fields than the header.
    pub wrong_width: u64,
    /// First of them, in lines from the beginning of the piece.
    pub wrong_width_at: Option<u64>,
}

/// Why a piece could not be decoded.
#[derive(Debug)]
pub(crate) enum PieceError {
    /// One cell.
    Cell {
        /// File index.
        file: usize,
        /// Lines or rows from the beginning of the piece.
        at: u64,
        column: String,
        /// What is wrong.
        kind: CellError,
    },
    /// The whole piece.
    Stage(StageError),
}

impl From<StageError> for PieceError {
    fn from(error: StageError) -> Self {
        Self::Stage(error)
    }
}
