//! Files of named arrays: .npy, .npz, safetensors. Rows of an array are read in place; the arrays of a zip are unpacked into a scratch
//! file first.

use super::{
    Pieces, Request, Source,
    block::{Block, PieceError},
    clean::{Cell, Digits},
    typed::{self, CellSource, PIECE_ROWS, RowPieces, RowTable},
};
use crate::stage::{
    bound::{self, BoundError},
    error::StageError,
    scratch::Scratch,
};
use enn_common::{
    config::data::SourceFormat,
    fs::{FileError, mmap::ReadMap, regular, space},
    keys, panics,
    staged::{
        StagedError,
        npy::{HEADER_BYTES_MAX, Header, NpyElement},
    },
};
use safetensors::{Dtype, SafeTensors};
use std::{
    fs::File,
    io::{self, Read},
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};
use zip::ZipArchive;

const NPZ: &str = "a zip of NumPy arrays";
const SAFETENSORS: &str = "safetensors";

const ENTRIES_MAX: usize = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ElementKind {
    Npy(NpyElement),
    Bf16,
}

impl ElementKind {
    fn bytes(self) -> usize {
        match self {
            Self::Npy(element) => element.bytes(),
            Self::Bf16 => 2,
        }
    }

    /// Converts the bytes of an element to a cell; integers stay exact.
    fn cell(self, b: &[u8]) -> Cell<'static> {
        fn of<const N: usize>(bytes: &[u8]) -> [u8; N] {
            bytes.first_chunk().copied().unwrap_or([0; N])
        }
        let Self::Npy(element) = self else {
            return Cell::Short(f64::from(half::bf16::from_le_bytes(of(b))), Digits::Brain);
        };
        match element {
            NpyElement::F64 => Cell::Real(f64::from_le_bytes(of(b))),
            NpyElement::F32 => Cell::Short(f64::from(f32::from_le_bytes(of(b))), Digits::Single),
            NpyElement::F16 => Cell::Short(f64::from(half::f16::from_le_bytes(of(b))), Digits::Half),
            NpyElement::I64 => Cell::Integer(i64::from_le_bytes(of(b))),
            NpyElement::I32 => Cell::Integer(i64::from(i32::from_le_bytes(of(b)))),
            NpyElement::I16 => Cell::Integer(i64::from(i16::from_le_bytes(of(b)))),
            NpyElement::I8 => Cell::Integer(i64::from(i8::from_le_bytes(of(b)))),
            NpyElement::U64 => {
                let value = u64::from_le_bytes(of(b));
                i64::try_from(value).map_or(Cell::Wide(value.into()), Cell::Integer)
            }
            NpyElement::U32 => Cell::Integer(i64::from(u32::from_le_bytes(of(b)))),
            NpyElement::U16 => Cell::Integer(i64::from(u16::from_le_bytes(of(b)))),
            NpyElement::U8 => Cell::Integer(i64::from(b[0])),
            NpyElement::Bool => Cell::Truth(b[0] != 0),
        }
    }
}

#[derive(Debug, Clone)]
enum Storage {
    File(Arc<File>),
    Scratch(Arc<Scratch>),
}

#[derive(Debug, Clone)]
pub(crate) struct NamedArray {
    /// Key in an .npz or safetensors file, or stem of an .npy file.
    pub name: String,
    /// Sizes of the axes; the first axis counts rows.
    pub shape: Vec<u64>,
    pub path: PathBuf,
    kind: ElementKind,
    place: Storage,
    at: u64,
}

impl NamedArray {
    /// Whether the array has any elements: without them the stated number of rows is unbounded.
    fn has_cells(&self) -> bool {
        !self.shape.contains(&0)
    }

    /// Returns the number of rows; 0 for a scalar.
    pub(crate) fn rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(0)
    }

    pub(crate) fn width(&self) -> usize {
        self.shape.iter().skip(1).product::<u64>() as usize
    }

    pub(crate) fn is_integer(&self) -> bool {
        !matches!(self.kind, ElementKind::Bf16 | ElementKind::Npy(NpyElement::F16 | NpyElement::F32 | NpyElement::F64))
    }

    pub(crate) fn read(&self, rows: Range<u64>) -> Result<RowBytes, StageError> {
        let row = self.width() * self.kind.bytes();
        let mut bytes = vec![0; (rows.end - rows.start) as usize * row];
        let at = self.at + rows.start * row as u64;
        match &self.place {
            Storage::File(file) => file.read_exact_at(&mut bytes, at).map_err(FileError::of("read", &self.path))?,
            Storage::Scratch(scratch) => scratch.read(at, &mut bytes)?,
        }
        Ok(RowBytes { bytes, kind: self.kind })
    }
}

#[derive(Debug)]
pub(crate) struct RowBytes {
    bytes: Vec<u8>,
    kind: ElementKind,
}

impl RowBytes {
    /// Returns element `index` of the rows, in C order.
    pub(crate) fn cell(&self, index: usize) -> Cell<'static> {
        self.kind.cell(&self.bytes[index * self.kind.bytes()..])
    }

    /// Iterates over all elements, in C order.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Cell<'static>> + '_ {
        self.bytes.chunks_exact(self.kind.bytes()).map(|bytes| self.kind.cell(bytes))
    }
}

/// Opens the arrays of a file. Arrays of a zip are unpacked below `scratch`.
pub(crate) fn open(path: &Path, format: SourceFormat, scratch: &Path) -> Result<Vec<NamedArray>, StageError> {
    match format {
        SourceFormat::Npz => caught("zip", path, NPZ, || npz(path, scratch)),
        SourceFormat::Safetensors => caught("safetensors", path, SAFETENSORS, || safetensors(path)),
        _ => Ok(vec![npy(path)?]),
    }
}

/// Turns a panic of the library that reads the format into an error.
fn caught<T>(
    library: &'static str,
    path: &Path,
    format: &'static str,
    read: impl FnOnce() -> Result<T, StageError>,
) -> Result<T, StageError> {
    panics::caught(library, read).unwrap_or_else(|panic| Err(StageError::unreadable(path, format, panic)))
}

fn npy(path: &Path) -> Result<NamedArray, StageError> {
    let file = regular::open(path)?;
    let mut head = Vec::new();
    (&file).take(HEADER_BYTES_MAX as u64 + 12).read_to_end(&mut head).map_err(FileError::of("read", path))?;
    let header = Header::parse(&head).map_err(|kind| StagedError::Npy { path: path.to_path_buf(), kind })?;
    let bytes = file.metadata().map_err(FileError::of("measure", path))?.len();
    if bytes < header.data_offset as u64 + header.data_bytes() {
        return Err(StageError::unreadable(
            path,
            "a NumPy array",
            format!("it ends early: {bytes} bytes for shape {:?}", header.shape),
        ));
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let at = header.data_offset as u64;
    let kind = ElementKind::Npy(header.element);
    let place = Storage::File(Arc::new(file));
    Ok(NamedArray { name, shape: header.shape, path: path.to_path_buf(), kind, place, at })
}

fn npz(path: &Path, scratch: &Path) -> Result<Vec<NamedArray>, StageError> {
    let file = regular::open(path)?;
    let mut archive =
        ZipArchive::new(io::BufReader::new(file)).map_err(|cause| StageError::unreadable(path, NPZ, cause))?;
    if archive.len() > ENTRIES_MAX {
        return Err(StageError::unreadable(
            path,
            NPZ,
            format!("it has {} entries, at most {ENTRIES_MAX} are read", archive.len()),
        ));
    }
    std::fs::create_dir_all(scratch).map_err(FileError::of("make the directory", scratch))?;
    let mut unpacked = Scratch::new(scratch);
    let mut headers = Vec::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|cause| StageError::unreadable(path, NPZ, cause))?;
        let name = entry.name().map_err(|cause| StageError::unreadable(path, NPZ, cause))?.into_owned();
        let Some(name) = name.strip_suffix(".npy").map(str::to_string) else { continue };
        let start = unpacked.bytes();
        let header = unpack(&mut entry, &mut unpacked, scratch).map_err(|error| match error {
            UnpackError::Cause(cause) => StageError::unreadable(path, NPZ, format!("array {name:?}: {cause}")),
            UnpackError::Stage(error) => error,
        })?;
        headers.push((name, start + header.data_offset as u64, header));
    }
    let place = Storage::Scratch(Arc::new(unpacked));
    let array = |(name, at, header): (String, u64, Header)| NamedArray {
        name,
        shape: header.shape,
        path: path.to_path_buf(),
        kind: ElementKind::Npy(header.element),
        place: place.clone(),
        at,
    };
    Ok(headers.into_iter().map(array).collect())
}

enum UnpackError {
    Cause(String),
    Stage(StageError),
}

/// Unpacks an array: exactly the bytes of its shape, if the disk has room for them.
fn unpack(entry: &mut impl Read, to: &mut Scratch, scratch: &Path) -> Result<Header, UnpackError> {
    let cause = |cause: io::Error| UnpackError::Cause(cause.to_string());
    let stage = |error: StageError| UnpackError::Stage(error);
    let mut head = Vec::new();
    entry.by_ref().take(HEADER_BYTES_MAX as u64 + 12).read_to_end(&mut head).map_err(cause)?;
    let header = Header::parse(&head).map_err(|kind| UnpackError::Cause(kind.to_string()))?;
    let needed = header.data_offset as u64 + header.data_bytes();
    space::require(scratch, needed).map_err(|error| stage(error.into()))?;
    head.truncate(usize::try_from(needed).unwrap_or(usize::MAX));
    let left = needed - head.len() as u64;
    to.append(&head).map_err(stage)?;
    let copied = io::copy(&mut entry.by_ref().take(left), to).map_err(cause)?;
    if copied < left {
        let found = format!("it ends early: {} bytes for shape {:?}", head.len() as u64 + copied, header.shape);
        return Err(UnpackError::Cause(found));
    }
    // The checksum is verified at the end of the entry.
    let more = io::copy(&mut entry.by_ref().take(1), &mut io::sink()).map_err(cause)?;
    if more > 0 {
        return Err(UnpackError::Cause(format!("it has more bytes than shape {:?} asks for", header.shape)));
    }
    Ok(header)
}

fn safetensors(path: &Path) -> Result<Vec<NamedArray>, StageError> {
    // The map serves the header only; the data are read later.
    let map = ReadMap::open(path)?;
    let names = keys::names_bytes(map.bytes());
    if names > keys::NAMES_BYTES_MAX {
        let found = format!("a header of {names} bytes");
        let hint = "keep the arrays that are used in a file of their own";
        return Err(BoundError::new(path, found, format!("at most {}", keys::NAMES_BYTES_MAX), hint).into());
    }
    let (length, metadata) =
        SafeTensors::read_metadata(map.bytes()).map_err(|cause| StageError::unreadable(path, SAFETENSORS, cause))?;
    if let Some(name) = keys::twice(map.bytes().get(8..8 + length).unwrap_or_default()) {
        return Err(StageError::unreadable(path, SAFETENSORS, format!("its header has {name:?} twice")));
    }
    let place = Storage::File(Arc::new(regular::open(path)?));
    let mut arrays = Vec::new();
    for name in metadata.offset_keys() {
        let Some(info) = metadata.info(&name) else { continue };
        // Arrays of unsupported types are skipped, as if they did not exist.
        let Some(kind) = kind_of(info.dtype) else { continue };
        let shape = info.shape.iter().map(|size| *size as u64).collect();
        let at = (8 + length + info.data_offsets.0) as u64;
        arrays.push(NamedArray { name, shape, path: path.to_path_buf(), kind, place: place.clone(), at });
    }
    Ok(arrays)
}

fn kind_of(dtype: Dtype) -> Option<ElementKind> {
    Some(ElementKind::Npy(match dtype {
        Dtype::BF16 => return Some(ElementKind::Bf16),
        Dtype::F64 => NpyElement::F64,
        Dtype::F32 => NpyElement::F32,
        Dtype::F16 => NpyElement::F16,
        Dtype::I64 => NpyElement::I64,
        Dtype::I32 => NpyElement::I32,
        Dtype::I16 => NpyElement::I16,
        Dtype::I8 => NpyElement::I8,
        Dtype::U64 => NpyElement::U64,
        Dtype::U32 => NpyElement::U32,
        Dtype::U16 => NpyElement::U16,
        Dtype::U8 => NpyElement::U8,
        Dtype::BOOL => NpyElement::Bool,
        _ => return None,
    }))
}

/// Arrays as a table: an array (N) is a column of its name, an array (N, k) the columns `name[0]` to `name[k-1]`. The first array
/// determines N; arrays with other lengths are ignored.
pub(crate) struct ArraySource {
    table: Arc<ArrayTable>,
    header: Vec<String>,
}

struct ArrayTable {
    arrays: Vec<NamedArray>,
    /// Index of the array and of the element in its row, for each column.
    places: Vec<(usize, usize)>,
    rows: u64,
    bytes: u64,
}

impl ArraySource {
    pub(crate) fn open(path: &Path, format: SourceFormat, scratch: &Path) -> Result<Self, StageError> {
        let mut arrays = open(path, format, scratch)?;
        arrays.retain(NamedArray::has_cells);
        let rows = arrays.first().map_or(0, NamedArray::rows);
        if rows == 0 {
            return Err(StageError::zero_rows(path, "the first array has no rows"));
        }
        let wide = arrays.iter().filter(|array| array.rows() == rows).map(|array| array.width() as u64);
        let columns = wide.fold(0, u64::saturating_add);
        bound::columns(path, columns)?;
        let mut header = Vec::new();
        let mut places = Vec::new();
        for (index, array) in arrays.iter().enumerate().filter(|(_, array)| array.rows() == rows) {
            match array.shape.len() {
                1 => header.push(array.name.clone()),
                _ => header.extend((0..array.width()).map(|element| format!("{}[{element}]", array.name))),
            }
            places.extend((0..array.width()).map(|element| (index, element)));
        }
        let bytes = path.metadata().map_err(FileError::of("measure", path))?.len();
        Ok(Self { table: Arc::new(ArrayTable { arrays, places, rows, bytes }), header })
    }
}

impl Source for ArraySource {
    fn header(&self) -> &[String] {
        &self.header
    }

    fn rows_estimate(&self) -> u64 {
        self.table.rows
    }

    fn start(&self, request: Arc<Request>, from: Option<u64>) -> Result<Box<dyn Pieces>, StageError> {
        let width = self.table.arrays.iter().map(NamedArray::width).max().unwrap_or(1).max(1);
        let step = (PIECE_ROWS * 64 / width).clamp(1, PIECE_ROWS) as u64;
        let rows = from.unwrap_or(0)..self.table.rows;
        Ok(Box::new(RowPieces { table: self.table.clone(), rows, step, request }))
    }
}

impl RowTable for ArrayTable {
    fn decode(&self, rows: Range<u64>, request: &Request) -> Result<Block, PieceError> {
        let mut parts: Vec<Option<RowBytes>> = self.arrays.iter().map(|_| None).collect();
        let wanted: Vec<usize> = match request.hash_rows {
            true => (0..self.places.len()).collect(),
            false => request.columns.clone(),
        };
        for column in wanted {
            let array = self.places[column].0;
            if parts[array].is_none() {
                parts[array] = Some(self.arrays[array].read(rows.clone())?);
            }
        }
        let count = rows.end - rows.start;
        let cells = ArrayCells { table: self, rows: count as usize, parts };
        typed::block(request, &cells, self.bytes * count / self.rows)
    }
}

struct ArrayCells<'a> {
    table: &'a ArrayTable,
    rows: usize,
    parts: Vec<Option<RowBytes>>,
}

impl CellSource for ArrayCells<'_> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn width(&self) -> usize {
        self.table.places.len()
    }

    fn cell(&self, row: usize, column: usize) -> Cell<'_> {
        let (array, element) = self.table.places[column];
        let width = self.table.arrays[array].width();
        self.parts[array].as_ref().map_or(Cell::Missing, |part| part.cell(row * width + element))
    }
}
