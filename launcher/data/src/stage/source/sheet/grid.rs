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

/// Returns the bytes of the text in a cell.
pub(super) fn text_bytes(cell: &Data) -> u64 {
    match cell {
        Data::String(text) | Data::DateTimeIso(text) | Data::DurationIso(text) => text.len() as u64,
        _ => 0,
    }
}

/// Bounding rectangle of cells.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Extent {
    corners: Option<[(u32, u32); 2]>,
}

impl Extent {
    pub(super) fn add(&mut self, row: u32, column: u32) {
        let [from, to] = self.corners.unwrap_or([(row, column); 2]);
        self.corners = Some([(from.0.min(row), from.1.min(column)), (to.0.max(row), to.1.max(column))]);
    }

    fn height(self) -> u64 {
        self.corners.map_or(0, |[from, to]| u64::from(to.0 - from.0) + 1)
    }

    fn width(self) -> u64 {
        self.corners.map_or(0, |[from, to]| u64::from(to.1 - from.1) + 1)
    }

    pub(super) fn area(self) -> u64 {
        self.height().saturating_mul(self.width())
    }
}

#[derive(Debug, Default)]
pub(super) struct SheetGrid {
    cells: Vec<((u32, u32), Data)>,
    extent: Extent,
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

    pub(super) fn push(&mut self, row: u32, column: u32, value: Data) -> Result<(), GridFull> {
        if value.is_empty() {
            return Ok(());
        }
        self.extent.add(row, column);
        let area = self.extent.area().max(self.cells.len() as u64 + 1);
        if area > CELLS_MAX {
            return Err(GridFull::Cells(area));
        }
        self.text_bytes += text_bytes(&value);
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
        self.extent.height() as usize
    }

    pub(super) fn width(&self) -> usize {
        self.extent.width() as usize
    }

    pub(super) fn get(&self, row: usize, column: usize) -> Option<&Data> {
        let [from, _] = self.extent.corners?;
        let place = (from.0 + row as u32, from.1 + column as u32);
        let at = self.cells.binary_search_by_key(&place, |(place, _)| *place).ok()?;
        Some(&self.cells[at].1)
    }

    pub(super) fn is_blank(&self, row: usize) -> bool {
        let Some([from, _]) = self.extent.corners else { return true };
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
