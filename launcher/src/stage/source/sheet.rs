//! Workbooks: xlsx, xls, xlsb, ods. A sheet is read whole, so its size is bounded; the first row that holds anything is the header.

use super::{
    Piece, Pieces, Request, Source,
    block::{Block, PieceError},
    clean::Cell,
    typed::{self, Cells, PIECE_ROWS},
};
use crate::stage::{error::StageError, timestamp};
use calamine::{Cell as BookCell, Data, DataRef, DataType, Range, Reader, Sheets, open_workbook_auto};
use std::{panic::catch_unwind, path::Path, sync::Arc};

/// Cells of a sheet, at most, empty ones between others counted: with 32 bytes each and the reader's own copy they stay well below 512 MB.
const CELLS_MAX: u64 = 6_000_000;

/// Bytes of a workbook whose reader does not tell cell by cell what it finds.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// An open sheet.
#[derive(Debug)]
pub(crate) struct SheetSource {
    sheet: Arc<Range<Data>>,
    header: Vec<String>,
    /// Rows of the range before the first data row.
    skip: usize,
    bytes: u64,
}

impl SheetSource {
    /// Opens a sheet, the first when none is named. The format's own reader panics on some damaged ones; here that is an error like any
    /// other.
    pub(crate) fn open(path: &Path, name: Option<&str>) -> Result<Self, StageError> {
        catch_unwind(|| Self::read(path, name)).unwrap_or_else(|_| {
            let cause = "it is damaged: what it says of its own parts does not fit them".into();
            Err(StageError::Unreadable { path: path.to_path_buf(), format: "a workbook", cause })
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
        let mut sheet = SparseCells::default();
        let sheet = match &mut book {
            Sheets::Xlsx(book) => {
                let mut reader = book.worksheet_cells_reader(name).map_err(|cause| unreadable(cause.into()))?;
                while let Some(cell) = reader.next_cell().map_err(|cause| unreadable(cause.into()))? {
                    sheet.push(cell).map_err(too_large)?;
                }
                Range::from_sparse(sheet.cells)
            }
            Sheets::Xlsb(book) => {
                let mut reader = book.worksheet_cells_reader(name).map_err(|cause| unreadable(cause.into()))?;
                while let Some(cell) = reader.next_cell().map_err(|cause| unreadable(cause.into()))? {
                    sheet.push(cell).map_err(too_large)?;
                }
                Range::from_sparse(sheet.cells)
            }
            _ if bytes > BYTES_MAX => return Err(too_large(u64::MAX)),
            other => other.worksheet_range(name).map_err(unreadable)?,
        };
        let is_blank = |row: &&[Data]| row.iter().all(DataType::is_empty);
        let before = sheet.rows().take_while(is_blank).count();
        let header: Vec<String> =
            sheet.rows().nth(before).unwrap_or_default().iter().map(|cell| text(cell).trim().to_string()).collect();
        if header.is_empty() || sheet.height() <= before + 1 {
            let found = format!("sheet {name:?} holds no row below a header");
            return Err(StageError::ZeroRows { path: path.to_path_buf(), found, hint: String::new() });
        }
        Ok(Self { sheet: Arc::new(sheet), header, skip: before + 1, bytes })
    }
}

/// Cells that hold something, in the rectangle that they lie in: all of that is made.
#[derive(Default)]
struct SparseCells {
    cells: Vec<BookCell<Data>>,
    corners: Option<[(u32, u32); 2]>,
}

impl SparseCells {
    /// Takes up a cell; how many there would be where they are too many.
    fn push(&mut self, cell: BookCell<DataRef<'_>>) -> Result<(), u64> {
        let (row, column) = cell.get_position();
        if *cell.get_value() == DataRef::Empty {
            return Ok(());
        }
        let [from, to] = self.corners.unwrap_or([(row, column); 2]);
        let [from, to] = [(from.0.min(row), from.1.min(column)), (to.0.max(row), to.1.max(column))];
        self.corners = Some([from, to]);
        let length = |from, to| u64::from(to - from) + 1;
        let area = length(from.0, to.0).saturating_mul(length(from.1, to.1)).max(self.cells.len() as u64);
        if area > CELLS_MAX {
            return Err(area);
        }
        self.cells.push(BookCell::new((row, column), Data::from(cell.get_value().clone())));
        Ok(())
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
        (self.sheet.height() - self.skip) as u64
    }

    fn start(&self, request: Arc<Request>, from: Option<u64>) -> Result<Box<dyn Pieces>, StageError> {
        let bytes_per_row = self.bytes / self.rows_estimate().max(1);
        let at = from.map_or(self.skip, |row| row as usize);
        Ok(Box::new(SheetPieces { sheet: self.sheet.clone(), at, bytes_per_row, request }))
    }
}

struct SheetPieces {
    sheet: Arc<Range<Data>>,
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
    sheet: Arc<Range<Data>>,
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
        match self.sheet.get((self.first + row, column)) {
            None | Some(Data::Empty | Data::Error(_)) => Cell::Missing,
            Some(Data::Int(value)) => Cell::Integer(*value),
            // A workbook has only floating numbers; whole ones are meant as integers.
            Some(Data::Float(value)) if value.fract() == 0.0 && value.abs() < 1e15 => Cell::Integer(*value as i64),
            Some(Data::Float(value)) => Cell::Real(*value),
            Some(Data::Bool(value)) => Cell::Integer(i64::from(*value)),
            Some(Data::String(text) | Data::DateTimeIso(text) | Data::DurationIso(text)) => Cell::Text(text),
            Some(moment @ Data::DateTime(_)) => seconds(moment).map_or(Cell::Missing, Cell::Time),
        }
    }

    fn is_blank(&self, row: usize) -> bool {
        (0..self.width()).all(|column| self.sheet.get((self.first + row, column)).is_none_or(DataType::is_empty))
    }
}
