//! Arrow record batches, from Parquet files and from IPC files and streams.
//!
//! **Invariant:** only the requested columns are read, unless rows are hashed. Batches are decoded by one thread at a time and cleaned in
//! parallel. The memory of a batch is checked before it is allocated.

use super::{
    DeclaredType, Piece, Pieces, Request, Source,
    block::{Block, ColumnKind, PieceError},
    clean::{Cell, Digits},
    pages,
    typed::{self, CellSource, PIECE_ROWS},
};
use crate::stage::{
    batches::{Batches, FileBatches, ample, next_batch, text_bytes},
    error::StageError,
};
use arrow_array::{Array, ArrayRef, RecordBatch, cast::AsArray, types};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef, TimeUnit};
use enn_common::{
    fs::{FileError, regular},
    panics,
};
use parquet::arrow::{ProjectionMask, arrow_reader::ParquetRecordBatchReaderBuilder};
use std::{
    fs::File,
    io::{BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
};

/// First bytes of an IPC file; a stream has no magic.
const FILE_MAGIC: &[u8; 6] = b"ARROW1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Parquet,
    IpcFile,
    IpcStream,
}

impl Container {
    fn name(self) -> &'static str {
        match self {
            Self::Parquet => "Parquet",
            Self::IpcFile => "an Arrow IPC file",
            Self::IpcStream => "an Arrow IPC stream",
        }
    }
}

#[derive(Debug)]
pub(crate) struct ArrowSource {
    path: PathBuf,
    container: Container,
    schema: SchemaRef,
    header: Vec<String>,
    rows: u64,
    bytes: u64,
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

type AllBatches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

impl ArrowSource {
    pub(crate) fn parquet(path: &Path) -> Result<Self, StageError> {
        let builder = parquet(open(path)?).map_err(|cause| unreadable(path, Container::Parquet, cause))?;
        let rows = u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
        pages::check_rows(path, rows, path.metadata().map_err(FileError::of("measure", path))?.len())?;
        Self::new(path, Container::Parquet, builder.schema().clone(), Some(rows))
    }

    /// Opens an IPC file (Feather version 2) or stream.
    pub(crate) fn ipc(path: &Path) -> Result<Self, StageError> {
        let mut magic = Vec::new();
        open(path)?.take(FILE_MAGIC.len() as u64).read_to_end(&mut magic).map_err(FileError::of("read", path))?;
        let container = if magic == FILE_MAGIC { Container::IpcFile } else { Container::IpcStream };
        let file = open(path)?;
        let schema = match container {
            Container::IpcFile => FileBatches::open(file, None, ample).map(|batches| batches.schema()),
            _ => Batches::open(BufReader::new(file), None, ample).map(|batches| batches.schema()),
        };
        let schema = schema.map_err(|cause| unreadable(path, container, cause))?;
        Self::new(path, container, schema.unwrap_or_else(|| Schema::empty().into()), None)
    }

    fn new(path: &Path, container: Container, schema: SchemaRef, rows: Option<u64>) -> Result<Self, StageError> {
        let bytes = path.metadata().map_err(FileError::of("measure", path))?.len();
        let header: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        // IPC does not state it; four bytes per cell are a sufficient estimate for the disk check.
        let rows = rows.unwrap_or(bytes / (4 * header.len().max(1) as u64));
        Ok(Self { path: path.to_path_buf(), container, schema, header, rows, bytes })
    }

    fn check_pages(&self, columns: &[usize]) -> Result<(), StageError> {
        if self.container != Container::Parquet {
            return Ok(());
        }
        let file = open(&self.path)?;
        let again = file.try_clone().map_err(FileError::of("read", &self.path))?;
        let found = parquet(again).map_err(|cause| unreadable(&self.path, self.container, cause))?;
        let checked = panics::caught("parquet", || pages::check(&self.path, &file, found.metadata(), columns));
        let panicked = |panic: panics::LibraryPanic| unreadable(&self.path, self.container, panic.to_string());
        Ok(checked.map_err(panicked)??)
    }

    /// Reads the columns with these ascending indices from row `from` on.
    fn batches(&self, columns: &[usize], from: u64) -> Result<AllBatches, Cause> {
        let file = open(&self.path)?;
        Ok(match self.container {
            Container::Parquet => {
                let builder = parquet(file)?;
                let mask = ProjectionMask::roots(builder.parquet_schema(), columns.iter().copied());
                let builder = builder.with_projection(mask).with_batch_size(PIECE_ROWS);
                let builder = builder.with_offset(usize::try_from(from)?);
                let mut reader = Some(guarded(|| Ok(builder.build()?))?);
                let read = move || next_batch(&mut reader, |reader| guarded(|| reader.next().transpose()));
                Box::new(std::iter::from_fn(read))
            }
            Container::IpcFile => skip_rows(FileBatches::open(file, Some(columns.to_vec()), ample)?, from as usize),
            Container::IpcStream => {
                skip_rows(Batches::open(BufReader::new(file), Some(columns.to_vec()), ample)?.alone(), from as usize)
            }
        })
    }
}

fn guarded<T>(read: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, ArrowError> {
    panics::caught("parquet", read).unwrap_or_else(|panic| Err(ArrowError::ParquetError(panic.to_string())))
}

fn parquet(file: File) -> Result<ParquetRecordBatchReaderBuilder<File>, ArrowError> {
    guarded(|| Ok(ParquetRecordBatchReaderBuilder::try_new(file)?))
}

fn skip_rows(
    batches: impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send + 'static,
    mut rows: usize,
) -> AllBatches {
    Box::new(batches.filter_map(move |batch| match batch {
        Ok(batch) if batch.num_rows() <= rows && rows > 0 => {
            rows -= batch.num_rows();
            None
        }
        Ok(batch) => {
            let skipped = std::mem::take(&mut rows);
            Some(Ok(batch.slice(skipped, batch.num_rows() - skipped)))
        }
        error => Some(error),
    }))
}

fn open(path: &Path) -> Result<File, StageError> {
    let mut file = regular::open(path)?;
    file.seek(SeekFrom::Start(0)).map_err(FileError::of("read", path))?;
    Ok(file)
}

fn unreadable(path: &Path, container: Container, cause: impl Into<Cause>) -> StageError {
    StageError::unreadable(path, container.name(), cause)
}

impl Source for ArrowSource {
    fn header(&self) -> &[String] {
        &self.header
    }

    fn rows_estimate(&self) -> u64 {
        self.rows
    }

    fn declared(&self, column: usize) -> DeclaredType {
        declared(self.schema.field(column).data_type())
    }

    fn positions(&self, count: u64) -> Vec<Option<u64>> {
        let later = if self.container == Container::Parquet { 1..count } else { 1..1 };
        [None].into_iter().chain(later.map(|place| Some(self.rows / count * place))).collect()
    }

    fn start(&self, request: Arc<Request>, from: Option<u64>) -> Result<Box<dyn Pieces>, StageError> {
        let mut columns = request.columns.clone();
        if request.hash_rows {
            columns = (0..self.header.len()).collect();
        }
        columns.sort_unstable();
        columns.dedup();
        for column in &request.columns {
            let field = self.schema.field(*column);
            if !fits_request(field.data_type(), &request, *column) {
                let cause = format!(
                    "column {:?} holds {}, expected numbers, text, times or, for labels, lists of them",
                    field.name(),
                    field.data_type()
                );
                return Err(unreadable(&self.path, self.container, cause));
            }
        }
        let mut place = vec![None; self.header.len()];
        columns.iter().enumerate().for_each(|(index, column)| place[*column] = Some(index));
        let row = from.unwrap_or(0);
        self.check_pages(&columns)?;
        let batches = self.batches(&columns, row).map_err(|cause| unreadable(&self.path, self.container, cause))?;
        Ok(Box::new(ArrowPieces {
            path: self.path.clone(),
            container: self.container,
            batches,
            rest: None,
            place: Arc::new(place),
            row,
            bytes_per_row: self.bytes as f64 / self.rows.max(1) as f64,
            request,
        }))
    }
}

struct ArrowPieces {
    path: PathBuf,
    container: Container,
    batches: AllBatches,
    rest: Option<RecordBatch>,
    /// Index in a batch for each column of the file.
    place: Arc<Vec<Option<usize>>>,
    row: u64,
    bytes_per_row: f64,
    request: Arc<Request>,
}

impl Pieces for ArrowPieces {
    fn next(&mut self) -> Result<Option<Box<dyn Piece>>, StageError> {
        let batch = match self.rest.take() {
            Some(batch) => batch,
            None => match self.batches.next() {
                None => return Ok(None),
                Some(Ok(batch)) => batch,
                Some(Err(cause)) => return Err(unreadable(&self.path, self.container, cause)),
            },
        };
        let rows = batch.num_rows().min(PIECE_ROWS);
        if batch.num_rows() > rows {
            self.rest = Some(batch.slice(rows, batch.num_rows() - rows));
        }
        let bytes = (rows as f64 * self.bytes_per_row) as u64;
        let batch = batch.slice(0, rows);
        // Each cell of a dictionary column may become a copy of its text.
        ample(text_bytes(&batch)).map_err(|cause| unreadable(&self.path, self.container, cause))?;
        let file = (self.path.clone(), self.container);
        let place = self.place.clone();
        let request = self.request.clone();
        let piece = ArrowPiece { file, batch, place, first: self.row, bytes, request };
        self.row += rows as u64;
        Ok(Some(Box::new(piece)))
    }
}

/// Decodes a batch to a block; the request's columns are indices in the batch. `Err(column)` is the index of a column of an unsupported
/// type.
pub(crate) fn decode(batch: RecordBatch, request: Arc<Request>) -> Result<Result<Block, PieceError>, usize> {
    let fits_request = |column: usize| fits_request(batch.column(column).data_type(), &request, column);
    if let Some(column) = request.columns.iter().find(|column| !fits_request(**column)) {
        return Err(*column);
    }
    let place = Arc::new((0..batch.num_columns()).map(Some).collect());
    let file = (PathBuf::from("rows"), Container::IpcStream);
    Ok(Box::new(ArrowPiece { file, batch, place, first: 0, bytes: 0, request }).decode())
}

struct ArrowPiece {
    file: (PathBuf, Container),
    batch: RecordBatch,
    place: Arc<Vec<Option<usize>>>,
    first: u64,
    bytes: u64,
    request: Arc<Request>,
}

impl Piece for ArrowPiece {
    fn decode(self: Box<Self>) -> Result<Block, PieceError> {
        let decode = || {
            let columns: Vec<Option<Column<'_>>> =
                self.place.iter().map(|place| place.and_then(|index| Column::of(self.batch.column(index)))).collect();
            typed::block(&self.request, &BatchCells { piece: &self, columns }, self.bytes)
        };
        let (path, container) = &self.file;
        panics::caught("arrow-array", decode).unwrap_or_else(|panic| Err(unreadable(path, *container, panic).into()))
    }

    fn end(&self) -> u64 {
        self.first + self.batch.num_rows() as u64
    }
}

struct BatchCells<'a> {
    piece: &'a ArrowPiece,
    columns: Vec<Option<Column<'a>>>,
}

impl CellSource for BatchCells<'_> {
    fn rows(&self) -> usize {
        self.piece.batch.num_rows()
    }

    fn width(&self) -> usize {
        self.columns.len()
    }

    fn cell(&self, row: usize, column: usize) -> Cell<'_> {
        match &self.columns[column] {
            Some(column) => column.cell(row),
            // A column that cannot be compared makes every row unique, so that no row is wrongly taken for a repetition.
            None => Cell::Integer((self.piece.first + row as u64) as i64),
        }
    }
}

enum Column<'a> {
    Null,
    Typed(&'a dyn Array, Box<dyn Fn(usize) -> Cell<'a> + 'a>),
    /// Labels of each row; `None` where the list is null.
    Lists(Vec<Option<Vec<String>>>),
}

impl<'a> Column<'a> {
    fn cell(&self, row: usize) -> Cell<'_> {
        match self {
            Self::Lists(lists) => lists[row].as_deref().map_or(Cell::Missing, Cell::List),
            plain => plain.plain(row),
        }
    }

    /// Returns a cell of a column that does not hold lists.
    fn plain(&self, row: usize) -> Cell<'a> {
        match self {
            Self::Null | Self::Lists(_) => Cell::Missing,
            Self::Typed(array, _) if array.is_null(row) => Cell::Missing,
            Self::Typed(_, get) => get(row),
        }
    }

    /// Returns `None` for an unsupported type.
    fn of(array: &'a ArrayRef) -> Option<Self> {
        use types as t;
        let array: &dyn Array = array.as_ref();
        macro_rules! short {
            ($kind:ty, $digits:expr) => {{
                let values = array.as_primitive::<$kind>().values();
                Box::new(move |row| Cell::Short(f64::from(values[row]), $digits))
            }};
        }
        macro_rules! integer {
            ($kind:ty) => {{
                let values = array.as_primitive::<$kind>().values();
                Box::new(move |row| Cell::Integer(i64::from(values[row])))
            }};
        }
        let get: Box<dyn Fn(usize) -> Cell<'a> + 'a> = match array.data_type() {
            DataType::Null => return Some(Self::Null),
            kind if is_list(kind) => return Some(Self::Lists(lists(array)?)),
            DataType::Boolean => {
                let values = array.as_boolean();
                Box::new(move |row| Cell::Truth(values.value(row)))
            }
            DataType::Int8 => integer!(t::Int8Type),
            DataType::Int16 => integer!(t::Int16Type),
            DataType::Int32 => integer!(t::Int32Type),
            DataType::Int64 => integer!(t::Int64Type),
            DataType::UInt8 => integer!(t::UInt8Type),
            DataType::UInt16 => integer!(t::UInt16Type),
            DataType::UInt32 => integer!(t::UInt32Type),
            DataType::UInt64 => {
                let values = array.as_primitive::<t::UInt64Type>().values();
                Box::new(move |row| whole(values[row].into()))
            }
            DataType::Float16 => short!(t::Float16Type, Digits::Half),
            DataType::Float32 => short!(t::Float32Type, Digits::Single),
            DataType::Float64 => reals(array),
            DataType::Decimal128(_, 0) => {
                let values = array.as_primitive::<t::Decimal128Type>().values();
                Box::new(move |row| whole(values[row]))
            }
            DataType::Decimal128(_, scale) => {
                let values = array.as_primitive::<t::Decimal128Type>().values();
                let unit = 10f64.powi(i32::from(*scale));
                Box::new(move |row| Cell::Real(values[row] as f64 / unit))
            }
            DataType::Utf8 => {
                let values = array.as_string::<i32>();
                Box::new(move |row| Cell::Text(values.value(row)))
            }
            DataType::LargeUtf8 => {
                let values = array.as_string::<i64>();
                Box::new(move |row| Cell::Text(values.value(row)))
            }
            DataType::Utf8View => {
                let values = array.as_string_view();
                Box::new(move |row| Cell::Text(values.value(row)))
            }
            // Without values there are no keys either.
            DataType::Dictionary(_, _) if array.as_any_dictionary().values().is_empty() => return Some(Self::Null),
            DataType::Dictionary(_, _) => {
                let dictionary = array.as_any_dictionary();
                let keys = dictionary.normalized_keys();
                let values = Self::of(dictionary.values())?;
                Box::new(move |row| values.plain(keys[row]))
            }
            DataType::Date32 | DataType::Date64 | DataType::Timestamp(_, _) => moments(array)?,
            _ => return None,
        };
        Some(Self::Typed(array, get))
    }
}

fn reals<'a>(array: &'a dyn Array) -> Box<dyn Fn(usize) -> Cell<'a> + 'a> {
    let values = array.as_primitive::<types::Float64Type>().values();
    Box::new(move |row| Cell::Real(values[row]))
}

/// Converts an integer of any size to a cell.
fn whole(value: i128) -> Cell<'static> {
    i64::try_from(value).map_or(Cell::Wide(value), Cell::Integer)
}

/// Returns the labels of each row as texts, without nulls; `None` for lists of an unsupported type.
fn lists(array: &dyn Array) -> Option<Vec<Option<Vec<String>>>> {
    let of = |list: ArrayRef| {
        let labels = Column::of(&list)?;
        let text = |row| Some(labels.plain(row)).filter(|label| *label != Cell::Missing).map(|label| label.text());
        Some((0..list.len()).filter_map(text).collect())
    };
    let each = |row: usize| match array.data_type() {
        _ if array.is_null(row) => Some(None),
        DataType::List(_) => of(array.as_list::<i32>().value(row)).map(Some),
        _ => of(array.as_list::<i64>().value(row)).map(Some),
    };
    (0..array.len()).map(each).collect()
}

fn is_list(kind: &DataType) -> bool {
    let (DataType::List(of) | DataType::LargeList(of)) = kind else { return false };
    is_read(of.data_type())
}

fn declared(kind: &DataType) -> DeclaredType {
    match kind {
        // A dictionary declares categories, whatever its values are.
        DataType::Dictionary(_, values) if is_read(values) => DeclaredType::Text,
        DataType::Boolean => DeclaredType::Truth,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DeclaredType::Text,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(_, _) => DeclaredType::Time,
        DataType::Decimal128(_, 0) => DeclaredType::Integer,
        kind if kind.is_integer() => DeclaredType::Integer,
        kind if is_list(kind) => DeclaredType::List,
        kind if is_read(kind) => DeclaredType::Real,
        _ => DeclaredType::Other,
    }
}

/// Whether a column of this type can be read as all of its requests ask.
fn fits_request(kind: &DataType, request: &Request, column: usize) -> bool {
    let mut specs = request.specs.iter().zip(&request.columns).filter(|(_, own)| **own == column);
    is_read(kind) || (is_list(kind) && specs.all(|(spec, _)| matches!(spec.kind, ColumnKind::Labels(_))))
}

fn moments<'a>(array: &'a dyn Array) -> Option<Box<dyn Fn(usize) -> Cell<'a> + 'a>> {
    use crate::stage::timestamp::{DAY_S, SECOND_US};
    use types as t;
    if let DataType::Date32 = array.data_type() {
        let values = array.as_primitive::<t::Date32Type>().values();
        return Some(Box::new(move |row| Cell::Time(i64::from(values[row]) * DAY_S)));
    }
    let (values, per_second) = match array.data_type() {
        DataType::Date64 => (array.as_primitive::<t::Date64Type>().values(), 1000),
        DataType::Timestamp(TimeUnit::Second, _) => (array.as_primitive::<t::TimestampSecondType>().values(), 1),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            (array.as_primitive::<t::TimestampMillisecondType>().values(), 1000)
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            (array.as_primitive::<t::TimestampMicrosecondType>().values(), 1_000_000)
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            (array.as_primitive::<t::TimestampNanosecondType>().values(), 1_000_000_000)
        }
        _ => return None,
    };
    Some(Box::new(move |row| {
        let seconds = values[row].div_euclid(per_second);
        let rest = values[row].rem_euclid(per_second);
        let micros = (i128::from(rest) * i128::from(SECOND_US) / i128::from(per_second)) as i64;
        if micros == 0 { Cell::Time(seconds) } else { Cell::Moment(seconds.saturating_mul(SECOND_US) + micros) }
    }))
}

fn is_read(kind: &DataType) -> bool {
    match kind {
        DataType::Dictionary(_, values) => is_read(values),
        DataType::Decimal128(_, _) | DataType::Date32 | DataType::Date64 | DataType::Timestamp(_, _) => true,
        DataType::Null | DataType::Boolean | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        kind => kind.is_integer() || kind.is_floating(),
    }
}
