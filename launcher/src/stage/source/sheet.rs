//! Workbooks: xlsx, xls, xlsb, ods. A sheet is read whole, so its size is bounded; the first row that holds anything is the header.

use super::{
    Piece, Pieces, Request, Source,
    block::{Block, PieceError},
    clean::Cell,
    typed::{self, Cells, PIECE_ROWS},
};
use crate::stage::{error::StageError, timestamp};
use calamine::{Data, DataType, Reader, Sheets, open_workbook_auto};
use enn_common::panics;
use std::{path::Path, sync::Arc};

/// Cells of a sheet, at most, empty ones between others counted: with 40 bytes each and the reader's own copy they stay well below 512 MB.
const CELLS_MAX: u64 = 6_000_000;

/// Bytes of a workbook whose reader does not tell cell by cell what it finds.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// An open sheet.
#[derive(Debug)]
pub(crate) struct SheetSource {
    sheet: Arc<Grid>,
    header: Vec<String>,
    bytes: u64,
}

impl SheetSource {
    /// Opens a sheet, the first when none is named. The format's own reader panics on some damaged ones; here that is an error like any
    /// other.
    pub(crate) fn open(path: &Path, name: Option<&str>) -> Result<Self, StageError> {
        panics::caught("calamine", || Self::read(path, name)).unwrap_or_else(|panic| {
            Err(StageError::Unreadable { path: path.to_path_buf(), format: "a workbook", cause: panic.into() })
        })
    }

    fn read(path: &Path, name: Option<&str>) -> Result<Self, StageError> {
        let unreadable = |cause: calamine::Error| StageError::Unreadable {
            path: path.to_path_buf(),
            format: "a workbook",
            cause: cause.into(),
        };
        let bytes = path.metadata().map_err(enn_common::fs::FileError::of("measure", path))?.len();
        let mut book = open_workbook_auto(path).map_err(unreadable)?;
        let found = book.sheet_names();
        let wanted = name.unwrap_or_default();
        let Some(name) = found.iter().find(|sheet| name.is_none() || *sheet == wanted) else {
            let sheet = wanted.to_string();
            return Err(StageError::NoSheet { path: path.to_path_buf(), sheet, found });
        };
        let too_large = |cells| StageError::SheetTooLarge {
            path: path.to_path_buf(),
            sheet: name.clone(),
            cells,
            cells_max: CELLS_MAX,
        };
        let mut sheet = Grid::default();
        match &mut book {
            Sheets::Xlsx(book) => {
                let mut reader = book.worksheet_cells_reader(name).map_err(|cause| unreadable(cause.into()))?;
                while let Some(cell) = reader.next_cell().map_err(|cause| unreadable(cause.into()))? {
                    sheet.push(cell.get_position(), cell.get_value().clone().into()).map_err(too_large)?;
                }
            }
            Sheets::Xlsb(book) => {
                let mut reader = book.worksheet_cells_reader(name).map_err(|cause| unreadable(cause.into()))?;
                while let Some(cell) = reader.next_cell().map_err(|cause| unreadable(cause.into()))? {
                    sheet.push(cell.get_position(), cell.get_value().clone().into()).map_err(too_large)?;
                }
            }
            _ if bytes > BYTES_MAX => return Err(too_large(u64::MAX)),
            other => {
                for (row, column, value) in other.worksheet_range(name).map_err(unreadable)?.used_cells() {
                    sheet.push((row as u32, column as u32), value.clone()).map_err(too_large)?;
                }
            }
        }
        let sheet = sheet.settled();
        // The grid begins with the first row that holds anything.
        let header: Vec<String> = (0..sheet.width())
            .map(|column| sheet.get(0, column).map_or_else(String::new, |cell| text(cell).trim().to_string()))
            .collect();
        if sheet.height() <= 1 {
            let found = format!("sheet {name:?} holds no row below a header");
            return Err(StageError::ZeroRows { path: path.to_path_buf(), found, hint: String::new() });
        }
        Ok(Self { sheet: Arc::new(sheet), header, bytes })
    }
}

/// Cells that hold something, in the rectangle that they lie in.
#[derive(Debug, Default)]
struct Grid {
    /// By row and column.
    cells: Vec<((u32, u32), Data)>,
    corners: Option<[(u32, u32); 2]>,
}

impl Grid {
    /// Takes up a cell; how many there would be where they are too many.
    fn push(&mut self, (row, column): (u32, u32), value: Data) -> Result<(), u64> {
        if value.is_empty() {
            return Ok(());
        }
        let [from, to] = self.corners.unwrap_or([(row, column); 2]);
        self.corners = Some([(from.0.min(row), from.1.min(column)), (to.0.max(row), to.1.max(column))]);
        let area = (self.height() as u64).saturating_mul(self.width() as u64).max(self.cells.len() as u64);
        if area > CELLS_MAX {
            return Err(area);
        }
        self.cells.push(((row, column), value));
        Ok(())
    }

    /// With its cells in order; of two in one place the later.
    fn settled(mut self) -> Self {
        self.cells.reverse();
        self.cells.sort_by_key(|(place, _)| *place);
        self.cells.dedup_by_key(|(place, _)| *place);
        self
    }

    fn height(&self) -> usize {
        self.corners.map_or(0, |[from, to]| (to.0 - from.0) as usize + 1)
    }

    fn width(&self) -> usize {
        self.corners.map_or(0, |[from, to]| (to.1 - from.1) as usize + 1)
    }

    /// What lies in this row and column of the rectangle.
    fn get(&self, row: usize, column: usize) -> Option<&Data> {
        let [from, _] = self.corners?;
        let place = (from.0 + row as u32, from.1 + column as u32);
        let at = self.cells.binary_search_by_key(&place, |(place, _)| *place).ok()?;
        Some(&self.cells[at].1)
    }

    /// Whether this row holds nothing.
    fn is_blank(&self, row: usize) -> bool {
        let Some([from, _]) = self.corners else { return true };
        let row = from.0 + row as u32;
        let at = self.cells.partition_point(|(place, _)| place.0 < row);
        self.cells.get(at).is_none_or(|(place, _)| place.0 > row)
    }
}

/// A cell as text.
fn text(cell: &Data) -> String {
    match cell {
        Data::String(text) | Data::DateTimeIso(text) | Data::DurationIso(text) => text.clone(),
        Data::DateTime(_) => seconds(cell).map_or_else(String::new, timestamp::text),
        other => other.to_string(),
    }
}

/// A date cell as Unix seconds: workbooks have no time zone, it is taken as UTC.
fn seconds(cell: &Data) -> Option<i64> {
    let Data::DateTime(moment) = cell else { return None };
    let (year, month, day, hour, minute, second, _) = moment.to_ymd_hms_milli();
    timestamp::parse(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}").as_bytes())
}

impl Source for SheetSource {
    fn header(&self) -> &[String] {
        &self.header
    }

    fn rows_estimate(&self) -> u64 {
        self.sheet.height() as u64 - 1
    }

    fn start(&self, request: Arc<Request>, from: Option<u64>) -> Result<Box<dyn Pieces>, StageError> {
        let bytes_per_row = self.bytes / self.rows_estimate().max(1);
        let at = from.map_or(1, |row| row as usize);
        Ok(Box::new(SheetPieces { sheet: self.sheet.clone(), at, bytes_per_row, request }))
    }
}

struct SheetPieces {
    sheet: Arc<Grid>,
    at: usize,
    bytes_per_row: u64,
    request: Arc<Request>,
}

impl Pieces for SheetPieces {
    fn next(&mut self) -> Result<Option<Box<dyn Piece>>, StageError> {
        let rows = (self.sheet.height() - self.at).min(PIECE_ROWS);
        if rows == 0 {
            return Ok(None);
        }
        let (sheet, request) = (self.sheet.clone(), self.request.clone());
        let piece = SheetPiece { sheet, first: self.at, rows, bytes: self.bytes_per_row * rows as u64, request };
        self.at += rows;
        Ok(Some(Box::new(piece)))
    }
}

struct SheetPiece {
    sheet: Arc<Grid>,
    first: usize,
    rows: usize,
    bytes: u64,
    request: Arc<Request>,
}

impl Piece for SheetPiece {
    fn decode(self: Box<Self>) -> Result<Block, PieceError> {
        typed::block(&self.request, &*self, self.bytes)
    }

    fn end(&self) -> u64 {
        (self.first + self.rows) as u64
    }
}

impl Cells for SheetPiece {
    fn rows(&self) -> usize {
        self.rows
    }

    fn width(&self) -> usize {
        self.sheet.width()
    }

    fn cell(&self, row: usize, column: usize) -> Cell<'_> {
        match self.sheet.get(self.first + row, column) {
            None | Some(Data::Empty | Data::Error(_)) => Cell::Missing,
            Some(Data::Int(value)) => Cell::Integer(*value),
            // A workbook has only floating numbers; whole ones are meant as integers.
            Some(Data::Float(value)) if value.fract() == 0.0 && value.abs() < 1e15 => Cell::Integer(*value as i64),
            Some(Data::Float(value)) => Cell::Real(*value),
            Some(Data::Bool(value)) => Cell::Truth(*value),
            Some(Data::String(text) | Data::DateTimeIso(text) | Data::DurationIso(text)) => Cell::Text(text),
            Some(moment @ Data::DateTime(_)) => seconds(moment).map_or(Cell::Missing, Cell::Time),
        }
    }

    fn is_blank(&self, row: usize) -> bool {
        self.sheet.is_blank(self.first + row)
    }
}
