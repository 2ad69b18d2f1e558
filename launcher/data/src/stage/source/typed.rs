//! Blocks from typed sources: cells are pushed column by column, hashes row by row.

use super::{
    Piece, Pieces, Request,
    block::{Block, CellCounts, PieceError, Values},
    clean::{self, Cell},
};
use crate::stage::error::StageError;
use std::{ops::Range, sync::Arc};
use twox_hash::XxHash3_128;

pub(crate) const PIECE_ROWS: usize = 8192;

pub(crate) trait CellSource {
    fn rows(&self) -> usize;
    /// Returns the number of columns of the file; cells of other than the requested columns are only read to hash rows.
    fn width(&self) -> usize;
    fn cell(&self, row: usize, column: usize) -> Cell<'_>;
    /// Whether a row is empty and skipped, like a blank line of a text.
    fn is_blank(&self, _row: usize) -> bool {
        false
    }
}

/// A table whose rows can be read in any order.
pub(crate) trait RowTable: Send + Sync + 'static {
    fn decode(&self, rows: Range<u64>, request: &Request) -> Result<Block, PieceError>;
}

/// A pass over a table in pieces of `step` rows.
pub(crate) struct RowPieces<T> {
    pub table: Arc<T>,
    pub rows: Range<u64>,
    pub step: u64,
    pub request: Arc<Request>,
}

struct RowPiece<T> {
    table: Arc<T>,
    rows: Range<u64>,
    request: Arc<Request>,
}

impl<T: RowTable> Pieces for RowPieces<T> {
    fn next(&mut self) -> Result<Option<Box<dyn Piece>>, StageError> {
        if self.rows.is_empty() {
            return Ok(None);
        }
        let rows = self.rows.start..(self.rows.start + self.step).min(self.rows.end);
        self.rows.start = rows.end;
        Ok(Some(Box::new(RowPiece { table: self.table.clone(), rows, request: self.request.clone() })))
    }
}

impl<T: RowTable> Piece for RowPiece<T> {
    fn decode(self: Box<Self>) -> Result<Block, PieceError> {
        self.table.decode(self.rows, &self.request)
    }

    fn end(&self) -> u64 {
        self.rows.end
    }
}

pub(crate) fn block(request: &Request, cells: &dyn CellSource, bytes: u64) -> Result<Block, PieceError> {
    let rows: Vec<usize> = (0..cells.rows()).filter(|row| !cells.is_blank(*row)).collect();
    let mut block = Block {
        file: request.file,
        rows: rows.len(),
        span: cells.rows() as u64,
        bytes,
        counts: vec![CellCounts::default(); request.specs.len()],
        ..Block::default()
    };
    for ((spec, column), counts) in request.specs.iter().zip(&request.columns).zip(&mut block.counts) {
        let mut values = Values::new(spec.kind, rows.len());
        for row in &rows {
            match clean::push_cell(cells.cell(*row, *column), spec, &request.missing, &mut values) {
                Ok(found) => counts.count(found),
                Err(kind) => {
                    let at = *row as u64;
                    let column = spec.column.clone();
                    return Err(PieceError::Cell { file: request.file, at, column, kind });
                }
            }
        }
        block.columns.push(values);
    }
    if request.hash_rows {
        let mut bytes = Vec::new();
        for row in &rows {
            bytes.clear();
            (0..cells.width()).for_each(|column| cells.cell(*row, column).fingerprint(&mut bytes));
            block.hashes.push(XxHash3_128::oneshot(&bytes));
        }
    }
    Ok(block)
}
