//! Blocks from typed sources: cells are pushed column by column, hashes row by row.

use super::{
    Request,
    block::{Block, CellCounts, PieceError, Values},
    clean::{self, Cell},
};
use twox_hash::XxHash3_128;

/// Maximum rows of a piece of a typed source.
pub(crate) const PIECE_ROWS: usize = 8192;

/// Access to the cells of a piece.
pub(crate) trait CellSource {
    /// Returns the number of rows of the piece.
    fn rows(&self) -> usize;
    /// Returns the number of columns of the file; cells of other than the requested columns are only read to hash rows.
    fn width(&self) -> usize;
    fn cell(&self, row: usize, column: usize) -> Cell<'_>;
    /// Whether a row is empty and skipped, like a blank line of a text.
    fn is_blank(&self, _row: usize) -> bool {
        false
    }
}

/// Decodes and cleans a piece to a block.
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
