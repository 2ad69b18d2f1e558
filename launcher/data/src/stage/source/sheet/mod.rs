//! Workbooks: xlsx, xls, xlsb and ods, detected by content. A sheet is read as a whole, so its size and the unpacked size of its file
//! are bounded; the first nonempty row is the header.

mod compound;
mod grid;
mod ods;
mod package;

use super::{
    Pieces, Request, Source,
    block::{Block, PieceError},
    clean::Cell,
    typed::{self, CellSource, PIECE_ROWS, RowPieces, RowTable},
};
use crate::stage::{bound::BoundError, error::StageError, timestamp};
use calamine::{Data, DataRef, Reader, Xls, Xlsb, Xlsx, open_workbook};
use compound::CompoundError;
use enn_common::{
    fs::{FileError, regular},
    panics,
};
use grid::{CELLS_MAX, GridFull, SheetGrid, TEXT_BYTES_MAX};
use ods::OdsError;
use package::WorkbookKind;
use std::{
    error::Error,
    io::{BufReader, Read, Seek},
    ops::Range,
    path::Path,
    sync::Arc,
};
use zip::ZipArchive;

#[derive(Debug)]
pub(crate) struct SheetSource {
    table: Arc<SheetTable>,
    header: Vec<String>,
}

#[derive(Debug)]
struct SheetTable {
    grid: SheetGrid,
    bytes_per_row: u64,
}

impl SheetSource {
    /// Opens a sheet, the first when none is named. A panic of calamine on a damaged file becomes an error.
    pub(crate) fn open(path: &Path, name: Option<&str>) -> Result<Self, StageError> {
        let book = Book { path, wanted: name };
        panics::caught("calamine", || book.read()).unwrap_or_else(|panic| Err(book.unreadable(panic)))
    }

    fn of(path: &Path, name: &str, sheet: SheetGrid) -> Result<Self, StageError> {
        let bytes = path.metadata().map_err(FileError::of("measure", path))?.len();
        let grid = sheet.sorted();
        // The grid begins with the first nonempty row.
        let header: Vec<String> = (0..grid.width())
            .map(|column| grid.get(0, column).map_or_else(String::new, |cell| text(cell).trim().to_string()))
            .collect();
        if grid.height() <= 1 {
            return Err(StageError::zero_rows(path, format!("sheet {name:?} holds no row below a header")));
        }
        let bytes_per_row = bytes / (grid.height() as u64 - 1);
        Ok(Self { table: Arc::new(SheetTable { grid, bytes_per_row }), header })
    }
}

#[derive(Debug, Clone, Copy)]
struct Book<'a> {
    path: &'a Path,
    wanted: Option<&'a str>,
}

impl Book<'_> {
    fn unreadable(&self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> StageError {
        StageError::unreadable(self.path, "a workbook", cause)
    }

    fn too_large(&self, sheet: &str, full: GridFull) -> StageError {
        let path = self.path.to_path_buf();
        match full {
            GridFull::Cells(cells) => {
                StageError::SheetTooLarge { path, sheet: sheet.to_owned(), cells, cells_max: CELLS_MAX }
            }
            GridFull::Text(bytes) => {
                let found = format!("sheet {sheet:?} with {bytes} bytes of text or more");
                BoundError::new(self.path, found, format!("at most {TEXT_BYTES_MAX}"), package::HINT).into()
            }
        }
    }

    fn choose(&self, found: Vec<String>) -> Result<String, StageError> {
        let chosen = found.iter().find(|sheet| self.wanted.is_none_or(|wanted| wanted == *sheet)).cloned();
        chosen.ok_or_else(|| StageError::NoSheet {
            path: self.path.to_path_buf(),
            sheet: self.wanted.unwrap_or_default().to_owned(),
            found,
        })
    }

    fn read(&self) -> Result<SheetSource, StageError> {
        let mut file = regular::open(self.path)?;
        let mut magic = Vec::new();
        (&mut file)
            .take(compound::MAGIC.len() as u64)
            .read_to_end(&mut magic)
            .map_err(FileError::of("read", self.path))?;
        if magic == compound::MAGIC {
            return self.compound();
        }
        file.rewind().map_err(FileError::of("read", self.path))?;
        let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|cause| self.unreadable(cause))?;
        let (name, grid) = match WorkbookKind::of(&archive) {
            WorkbookKind::Ods => self.ods(&mut archive)?,
            WorkbookKind::Xlsx => {
                package::check(self.path, &mut archive, WorkbookKind::Xlsx)?;
                self.xlsx()?
            }
            WorkbookKind::Xlsb => {
                package::check(self.path, &mut archive, WorkbookKind::Xlsb)?;
                self.xlsb()?
            }
        };
        SheetSource::of(self.path, &name, grid)
    }

    fn ods(&self, archive: &mut package::Archive) -> Result<(String, SheetGrid), StageError> {
        let found = ods::read(self.path, archive, self.wanted).map_err(|error| match error {
            OdsError::Bound(error) => error.into(),
            OdsError::Full(full, sheet) => self.too_large(&sheet, full),
            error => self.unreadable(error),
        })?;
        match found.sheet {
            Some(sheet) => Ok(sheet),
            None => Err(self.choose(found.sheets).err().unwrap_or_else(|| self.unreadable("it has no sheet"))),
        }
    }

    fn xlsx(&self) -> Result<(String, SheetGrid), StageError> {
        let mut book: Xlsx<_> =
            open_workbook(self.path).map_err(|cause: calamine::XlsxError| self.unreadable(cause))?;
        let name = self.choose(book.sheet_names())?;
        let mut cells = book.worksheet_cells_reader(&name).map_err(|cause| self.unreadable(cause))?;
        self.filled(name, std::iter::from_fn(|| cells.next_cell().transpose()))
    }

    fn xlsb(&self) -> Result<(String, SheetGrid), StageError> {
        let mut book: Xlsb<_> =
            open_workbook(self.path).map_err(|cause: calamine::XlsbError| self.unreadable(cause))?;
        let name = self.choose(book.sheet_names())?;
        let mut cells = book.worksheet_cells_reader(&name).map_err(|cause| self.unreadable(cause))?;
        self.filled(name, std::iter::from_fn(|| cells.next_cell().transpose()))
    }

    fn filled<'c, E: Error + Send + Sync + 'static>(
        &self,
        name: String,
        cells: impl Iterator<Item = Result<calamine::Cell<DataRef<'c>>, E>>,
    ) -> Result<(String, SheetGrid), StageError> {
        let mut grid = SheetGrid::default();
        for cell in cells {
            let cell = cell.map_err(|cause| self.unreadable(cause))?;
            let (row, column) = cell.get_position();
            let pushed = grid.push(row, column, cell.get_value().clone().into());
            pushed.map_err(|full| self.too_large(&name, full))?;
        }
        Ok((name, grid))
    }

    fn compound(&self) -> Result<SheetSource, StageError> {
        let bytes = regular::read(self.path, compound::BYTES_MAX)?;
        compound::check(self.path, &bytes).map_err(|error| match error {
            CompoundError::Damaged(why) => self.unreadable(why),
            CompoundError::Bound(error) => error.into(),
        })?;
        drop(bytes);
        let mut book: Xls<_> = open_workbook(self.path).map_err(|cause: calamine::XlsError| self.unreadable(cause))?;
        let name = self.choose(book.sheet_names())?;
        let mut grid = SheetGrid::default();
        for (row, column, value) in book.worksheet_range(&name).map_err(|cause| self.unreadable(cause))?.used_cells() {
            let pushed = grid.push(row as u32, column as u32, value.clone());
            pushed.map_err(|full| self.too_large(&name, full))?;
        }
        SheetSource::of(self.path, &name, grid)
    }
}

fn text(cell: &Data) -> String {
    match cell {
        Data::String(text) | Data::DateTimeIso(text) | Data::DurationIso(text) => text.clone(),
        Data::DateTime(_) => seconds(cell).map_or_else(String::new, timestamp::text),
        other => other.to_string(),
    }
}

/// Converts a date cell to Unix seconds: workbooks have no time zone, so the date is UTC.
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
        self.table.grid.height() as u64 - 1
    }

    fn positions(&self, count: u64) -> Vec<Option<u64>> {
        let step = self.rows_estimate() / count.max(1);
        [None].into_iter().chain((1..count).map(|place| Some(1 + step * place))).collect()
    }

    fn start(&self, request: Arc<Request>, from: Option<u64>) -> Result<Box<dyn Pieces>, StageError> {
        let rows = from.unwrap_or(1)..self.table.grid.height() as u64;
        Ok(Box::new(RowPieces { table: self.table.clone(), rows, step: PIECE_ROWS as u64, request }))
    }
}

impl RowTable for SheetTable {
    fn decode(&self, rows: Range<u64>, request: &Request) -> Result<Block, PieceError> {
        let count = rows.end - rows.start;
        let cells = SheetCells { grid: &self.grid, first: rows.start as usize, rows: count as usize };
        typed::block(request, &cells, self.bytes_per_row * count)
    }
}

struct SheetCells<'a> {
    grid: &'a SheetGrid,
    first: usize,
    rows: usize,
}

impl CellSource for SheetCells<'_> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn width(&self) -> usize {
        self.grid.width()
    }

    fn cell(&self, row: usize, column: usize) -> Cell<'_> {
        match self.grid.get(self.first + row, column) {
            None | Some(Data::Empty | Data::Error(_)) => Cell::Missing,
            Some(Data::Int(value)) => Cell::Integer(*value),
            // A workbook has only floating-point numbers; whole numbers are taken for integers.
            Some(Data::Float(value)) if value.fract() == 0.0 && value.abs() < 1e15 => Cell::Integer(*value as i64),
            Some(Data::Float(value)) => Cell::Real(*value),
            Some(Data::Bool(value)) => Cell::Truth(*value),
            Some(Data::String(text) | Data::DateTimeIso(text) | Data::DurationIso(text)) => Cell::Text(text),
            Some(moment @ Data::DateTime(_)) => seconds(moment).map_or(Cell::Missing, Cell::Time),
        }
    }

    fn is_blank(&self, row: usize) -> bool {
        self.grid.is_blank(self.first + row)
    }
}
