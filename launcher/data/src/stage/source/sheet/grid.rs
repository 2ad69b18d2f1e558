//! Sparse grid of the nonempty cells of a sheet.

use calamine::{Data, DataType};

/// Maximum cells of a sheet, including empty cells in its rectangle: with 40 bytes each and calamine's copy they stay far below 512 MB.
pub(super) const CELLS_MAX: u64 = 6_000_000;

/// Maximum bytes of the texts in the cells: one text in the file may be in every cell.
pub(super) const TEXT_BYTES_MAX: u64 = 256 << 20;

/// Limits of the grid that a cell would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GridFull {
    /// Number of cells in the rectangle with the cell.
    Cells(u64),
    /// Bytes of all texts with the cell.
    Text(u64),
}

/// Nonempty cells and their bounding rectangle.
#[derive(Debug, Default)]
pub(super) struct SheetGrid {
    /// Cells with row and column.
    cells: Vec<((u32, u32), Data)>,
    corners: Option<[(u32, u32); 2]>,
    text_bytes: u64,
}

impl SheetGrid {
    /// Refuses further cells, with texts of `text_bytes` bytes, that would exceed a limit.
    pub(super) fn check_room(&self, cells: u64, text_bytes: u64) -> Result<(), GridFull> {
        let all = cells.saturating_add(self.cells.len() as u64);
        let text = text_bytes.saturating_add(self.text_bytes);
        match (all > CELLS_MAX, text > TEXT_BYTES_MAX) {
            (true, _) => Err(GridFull::Cells(all)),
            (_, true) => Err(GridFull::Text(text)),
            _ => Ok(()),
        }
    }

    /// Adds a cell unless it is empty.
    pub(super) fn push(&mut self, row: u32, column: u32, value: Data) -> Result<(), GridFull> {
        if value.is_empty() {
            return Ok(());
        }
        let [from, to] = self.corners.unwrap_or([(row, column); 2]);
        self.corners = Some([(from.0.min(row), from.1.min(column)), (to.0.max(row), to.1.max(column))]);
        let area = (self.height() as u64).saturating_mul(self.width() as u64).max(self.cells.len() as u64 + 1);
        if area > CELLS_MAX {
            return Err(GridFull::Cells(area));
        }
        if let Data::String(text) | Data::DateTimeIso(text) | Data::DurationIso(text) = &value {
            self.text_bytes += text.len() as u64;
        }
        if self.text_bytes > TEXT_BYTES_MAX {
            return Err(GridFull::Text(self.text_bytes));
        }
        self.cells.push(((row, column), value));
        Ok(())
    }

    /// Sorts the cells; of several cells with one position the last is kept.
    pub(super) fn sorted(mut self) -> Self {
        self.cells.reverse();
        self.cells.sort_by_key(|(place, _)| *place);
        self.cells.dedup_by_key(|(place, _)| *place);
        self
    }

    pub(super) fn height(&self) -> usize {
        self.corners.map_or(0, |[from, to]| (to.0 - from.0) as usize + 1)
    }

    pub(super) fn width(&self) -> usize {
        self.corners.map_or(0, |[from, to]| (to.1 - from.1) as usize + 1)
    }

    /// Returns the cell at a row and column of the rectangle.
    pub(super) fn get(&self, row: usize, column: usize) -> Option<&Data> {
        let [from, _] = self.corners?;
        let place = (from.0 + row as u32, from.1 + column as u32);
        let at = self.cells.binary_search_by_key(&place, |(place, _)| *place).ok()?;
        Some(&self.cells[at].1)
    }

    /// Whether a row of the rectangle is empty.
    pub(super) fn is_blank(&self, row: usize) -> bool {
        let Some([from, _]) = self.corners else { return true };
        let row = from.0 + row as u32;
        let at = self.cells.partition_point(|(place, _)| place.0 < row);
        self.cells.get(at).is_none_or(|(place, _)| place.0 > row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_and_texts_have_a_bound() {
        let mut grid = SheetGrid::default();
        grid.push(0, 0, Data::Int(1)).unwrap();
        assert_eq!(grid.push(CELLS_MAX as u32, 0, Data::Int(1)), Err(GridFull::Cells(CELLS_MAX + 1)));
        let mut grid = SheetGrid::default();
        let text = Data::String("x".repeat(1 << 20));
        let taken = (0..1 << 20).take_while(|row| grid.push(*row, 0, text.clone()).is_ok()).count() as u64;
        assert_eq!(taken << 20, TEXT_BYTES_MAX);
    }
}
