//! A source of columns, a pass over it, and the pieces of the pass.

use super::{
    block::{Block, ColumnSpec, PieceError},
    clean::MissingTokens,
};
use crate::stage::error::StageError;
use std::sync::Arc;

pub(crate) trait Source: Send + Sync {
    /// Returns the column names in file order.
    fn header(&self) -> &[String];

    /// Estimates the number of rows for the disk check; exact where the format states it.
    fn rows_estimate(&self) -> u64;

    fn warning(&self) -> Option<String> {
        None
    }

    /// Returns what the file declares a column to hold; text files and workbooks declare nothing.
    fn declared(&self, _column: usize) -> DeclaredType {
        DeclaredType::Open
    }

    /// Returns positions, at most `count`, that are spread over the file and from which a pass can start; the first is its beginning.
    fn positions(&self, _count: u64) -> Vec<Option<u64>> {
        vec![None]
    }

    /// Starts a pass over all rows, or over the rows from `from` on, which is a [`Piece::end`].
    fn start(&self, request: Arc<Request>, from: Option<u64>) -> Result<Box<dyn Pieces>, StageError>;
}

/// What a file declares a column to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeclaredType {
    Open,
    Integer,
    Real,
    Truth,
    Text,
    Time,
    List,
    /// A type that is not read.
    Other,
}

/// A pass over a file. `next` is called in order, one call at a time, and does as little as possible.
pub(crate) trait Pieces: Send {
    /// Returns the next piece; `None` at the end.
    fn next(&mut self) -> Result<Option<Box<dyn Piece>>, StageError>;
}

pub(crate) trait Piece: Send {
    fn decode(self: Box<Self>) -> Result<Block, PieceError>;

    /// Returns the position of the next piece, in the source's own unit.
    fn end(&self) -> u64;
}

#[derive(Debug)]
pub(crate) struct Request {
    pub file: usize,
    pub specs: Vec<ColumnSpec>,
    /// For each requested column its index in this file's header.
    pub columns: Vec<usize>,
    /// Texts that mean "missing".
    pub missing: MissingTokens,
    /// Whether every block has a hash per row over all columns of the file.
    pub hash_rows: bool,
}
