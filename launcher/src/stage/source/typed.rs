//! Blocks from sources that know types: cells are pushed column by column, hashes row by row.

use super::{
    Request,
    block::{Block, CellCounts, PieceError, Values},
    clean::{self, Cell},
};
use twox_hash::XxHash3_128;

/// Rows of a piece of a typed source.
pub(crate) const PIECE_ROWS: usize = 8192;

/// The columns of a piece: how to get at a cell.
pub(crate) trait Cells {
    /// Rows of the piece.
    fn rows(&self) -> usize;
    /// Columns of the file; cells of columns that are not wanted are only asked for to hash a row.
    fn width(&self) -> usize;
    fn cell(&self, row: usize, column: usize) -> Cell<'_>;
    /// Whether a row holds nothing at all and is to be passed over, like a blank line of a text.
    fn is_blank(&self, _row: usize) -> bool {
        false
    }
}

/// Cleans a piece.
pub(crate) fn block(request: &Request, cells: &dyn Cells, bytes: u64) -> Result<Block, PieceError> {
    let rows: Vec<usize> = (0..cells.rows()).filter(|row| !cells.is_blank(*row)).collect();
    let mut block = Block {
        file: request.file,
        rows: rows.len(),
        span: cells.rows() as u64,
        bytes,
        counts: vec![CellCounts::default(); request.wants.len()],
        ..Block::default()
    };
    for ((want, column), counts) in request.wants.iter().zip(&request.columns).zip(&mut block.counts) {
        let mut values = Values::new(want.kind, rows.len());
        for row in &rows {
            match clean::push_cell(cells.cell(*row, *column), want, &request.missing, &mut values) {
                Ok(found) => counts.count(found),
                Err(kind) => {
                    let at = *row as u64;
                    let column = want.column.clone();
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
