//! A chunk of predictions: what one worker made of consecutive staged rows, as three NumPy files.
//!
//! ```text
//! <out>/chunks/chunk-000000000000-000000000512.npy          (n, *out_shape) f32, the user's units;
//!                                                           (n, levels, *out_shape) where quantiles are predicted
//! <out>/chunks/chunk-000000000000-000000000512.ids.npy      (n) i64, identity of each row
//! <out>/chunks/chunk-000000000000-000000000512.status.npy   (n) u8, what became of each row: `RowStatus`
//! ```
//! The name tells the rows [start, end) of the staged order. The predictions are written last, each file atomically: a chunk is
//! complete iff its predictions are there. Its digest is blake3 over all files' bytes, predictions, ids, status. Nobody waits for the
//! disk: what a power failure took has another digest, and is predicted again.

use crate::{
    fs::{FileError, atomic, mmap::bytes_of},
    staged::{
        StagedError,
        npy::{ALIGN_BYTES, Header, NpyElement},
        reader::NpyMap,
    },
};
use std::path::{Path, PathBuf};

/// Folder of the chunks below the output directory.
pub const FOLDER: &str = "chunks";

/// Why a chunk cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Array(#[from] StagedError),
    #[error("{}: {what} is {found}, expected {expected}", path.display())]
    Shape { path: PathBuf, what: &'static str, found: String, expected: String },
    #[error("{}: digest {found}, expected {expected}; delete the chunk and predict again", path.display())]
    Digest { path: PathBuf, found: String, expected: String },
}

/// Status of a row. Every row of a chunk has one, and its numbers are finite iff it is `Predicted`, but for cells of which training
/// has seen no target: they are NaN in every row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum RowStatus {
    Predicted = 0,
    /// No input of the row is there: whatever the model says has nothing to do with it.
    NoInput = 1,
    /// The answer holds numbers that are not finite.
    NotFinite = 2,
    /// Some series of the row have no history: they have no numbers, the others have.
    NoHistory = 3,
}

impl RowStatus {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Predicted, Self::NoInput, Self::NotFinite, Self::NoHistory];

    /// Why a row has no prediction; `None` for one that has.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Predicted => None,
            Self::NoInput => Some("no input is valid"),
            Self::NotFinite => Some("the prediction is not finite"),
            Self::NoHistory => Some("some series have no history, and no numbers"),
        }
    }

    /// By a row's inputs, NaN where missing, and what was answered: all cells, once for every level. `blind` are the cells that have no
    /// answer in any row.
    pub fn judged(x: &[f32], answer: &[f32], blind: &[bool]) -> Self {
        let is_blind = |cell: usize| !blind.is_empty() && blind[cell % blind.len()];
        if !x.iter().any(|value| value.is_finite()) {
            Self::NoInput
        } else if answer.iter().enumerate().all(|(cell, value)| value.is_finite() || is_blind(cell)) {
            Self::Predicted
        } else {
            Self::NotFinite
        }
    }

    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

#[derive(Debug, Clone, Copy)]
pub struct ChunkRows<'a> {
    /// Predictions, row-major.
    pub values: &'a [f32],
    pub ids: &'a [i64],
    /// The status of each row, as numbers of `RowStatus`.
    pub status: &'a [u8],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenChunk {
    /// File of the predictions; those of ids and status lie beside it.
    pub path: PathBuf,
    /// Digest of the files, hex.
    pub blake3: String,
}

/// Rows [start, end) of the staged order and the shape of their predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkExtent<'a> {
    pub start: u64,
    /// Row behind the last.
    pub end: u64,
    /// Shape of the numbers of one row.
    pub out_shape: &'a [usize],
}

/// File of the predictions of rows [start, end) below the output directory.
pub fn path(out: &Path, start: u64, end: u64) -> PathBuf {
    out.join(FOLDER).join(format!("chunk-{start:012}-{end:012}.npy"))
}

/// File of the ids beside a file of predictions.
pub fn ids_path(predictions: &Path) -> PathBuf {
    predictions.with_extension("ids.npy")
}

/// File of the status beside a file of predictions.
pub fn status_path(predictions: &Path) -> PathBuf {
    predictions.with_extension("status.npy")
}

/// Writes a chunk below `out`.
///
/// # Errors
/// When the numbers are not those of the extent, or the disk refuses them: then the chunk does not exist.
pub fn write(out: &Path, extent: ChunkExtent<'_>, content: ChunkRows<'_>) -> Result<WrittenChunk, ChunkError> {
    let path = path(out, extent.start, extent.end);
    let rows = extent.end.saturating_sub(extent.start);
    let cells: u64 = extent.out_shape.iter().map(|&n| n as u64).product();
    expect(&path, "number of ids", content.ids.len() as u64, rows)?;
    expect(&path, "number of status entries", content.status.len() as u64, rows)?;
    expect(&path, "number of predicted cells", content.values.len() as u64, rows * cells)?;
    let folder = out.join(FOLDER);
    std::fs::create_dir_all(&folder).map_err(FileError::of("make the directory", &folder))?;
    let shape: Vec<u64> = std::iter::once(rows).chain(extent.out_shape.iter().map(|&n| n as u64)).collect();
    let values = array(&path, NpyElement::F32, &shape, bytes_of(content.values))?;
    let names = array(&path, NpyElement::I64, &[rows], bytes_of(content.ids))?;
    let status = array(&path, NpyElement::U8, &[rows], content.status)?;
    atomic::write_unsynced(&ids_path(&path), &names)?;
    atomic::write_unsynced(&status_path(&path), &status)?;
    atomic::write_unsynced(&path, &values)?;
    Ok(WrittenChunk { path, blake3: digest([&values, &names, &status]) })
}

#[derive(Debug)]
pub struct Chunk {
    predictions: NpyMap,
    ids: NpyMap,
    status: NpyMap,
    path: PathBuf,
}

impl Chunk {
    /// Maps the chunk whose predictions are in `path` and checks shapes; with `blake3` also the bytes.
    ///
    /// # Errors
    /// When a file is missing, damaged or of another shape than its partner.
    pub fn open(path: &Path, blake3: Option<&str>) -> Result<Self, ChunkError> {
        let predictions = NpyMap::open(path)?;
        let ids = NpyMap::open(&ids_path(path))?;
        let status = NpyMap::open(&status_path(path))?;
        let rows = predictions.header().shape.first().copied().unwrap_or(0);
        expect(path, "element type", predictions.header().element.descr(), NpyElement::F32.descr())?;
        expect(path, "element type of the ids", ids.header().element.descr(), NpyElement::I64.descr())?;
        expect(path, "number of ids", ids.header().count(), rows)?;
        expect(path, "element type of the status", status.header().element.descr(), NpyElement::U8.descr())?;
        expect(path, "number of status entries", status.header().count(), rows)?;
        if let Some(expected) = blake3 {
            let read = |path: &Path| std::fs::read(path).map_err(FileError::of("read", path));
            let found = digest([&read(path)?, &read(&ids_path(path))?, &read(&status_path(path))?]);
            if found != expected {
                return Err(ChunkError::Digest { path: path.to_owned(), found, expected: expected.to_owned() });
            }
        }
        let strange = status.data().iter().filter(|number| RowStatus::of(**number).is_none()).count();
        expect(path, "number of rows with an unknown status", strange, 0)?;
        Ok(Self { predictions, ids, status, path: path.to_owned() })
    }

    pub fn shape(&self) -> &[u64] {
        &self.predictions.header().shape
    }

    /// Predictions in C order, the user's units.
    ///
    /// # Errors
    /// When the file's data is not aligned, which ours always is.
    pub fn predictions(&self) -> Result<&[f32], ChunkError> {
        self.predictions.numbers().ok_or_else(|| self.misaligned())
    }

    /// Identity of each row.
    ///
    /// # Errors
    /// When the file's data is not aligned, which ours always is.
    pub fn ids(&self) -> Result<&[i64], ChunkError> {
        self.ids.numbers().ok_or_else(|| self.misaligned())
    }

    /// The status of each row, numbers of `RowStatus`.
    pub fn status(&self) -> &[u8] {
        self.status.data()
    }

    fn misaligned(&self) -> ChunkError {
        ChunkError::Shape {
            path: self.path.clone(),
            what: "beginning of the data",
            found: self.predictions.header().data_offset.to_string(),
            expected: format!("a multiple of {ALIGN_BYTES}"),
        }
    }
}

fn array(path: &Path, element: NpyElement, shape: &[u64], data: &[u8]) -> Result<Vec<u8>, ChunkError> {
    // Axes are few, so that the header fits twice the alignment or, with very long shapes, a few times.
    let header = (2..=64).find_map(|blocks| Header::write(element, shape, blocks * ALIGN_BYTES));
    let mut bytes = header.ok_or_else(|| ChunkError::Shape {
        path: path.to_owned(),
        what: "shape",
        found: format!("{shape:?}"),
        expected: "fewer axes".to_owned(),
    })?;
    bytes.extend_from_slice(data);
    Ok(bytes)
}

fn digest(files: [&[u8]; 3]) -> String {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        hasher.update(file);
    }
    hasher.finalize().to_hex().to_string()
}

fn expect<T: PartialEq + std::fmt::Display>(
    path: &Path,
    what: &'static str,
    found: T,
    expected: T,
) -> Result<(), ChunkError> {
    if found == expected {
        return Ok(());
    }
    Err(ChunkError::Shape { path: path.to_owned(), what, found: found.to_string(), expected: expected.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_and_damage_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let extent = ChunkExtent { start: 5, end: 7, out_shape: &[1, 3] };
        let values = [1.0, 2.0, 3.0, 4.0, f32::NAN, 6.0];
        let content = ChunkRows { values: &values, ids: &[-9, 12], status: &[0, RowStatus::NotFinite as u8] };
        let written = write(dir.path(), extent, content).unwrap();
        assert_eq!(written.path, path(dir.path(), 5, 7));
        let chunk = Chunk::open(&written.path, Some(&written.blake3)).unwrap();
        assert_eq!(chunk.shape(), [2, 1, 3]);
        assert_eq!(chunk.predictions().unwrap()[3], 4.0);
        assert_eq!(chunk.ids().unwrap(), [-9, 12]);
        assert_eq!(chunk.status(), [0, 2]);

        let mut bytes = std::fs::read(&written.path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&written.path, &bytes).unwrap();
        assert!(Chunk::open(&written.path, None).is_ok());
        assert!(matches!(Chunk::open(&written.path, Some(&written.blake3)), Err(ChunkError::Digest { .. })));
        bytes.pop();
        std::fs::write(&written.path, &bytes).unwrap();
        assert!(Chunk::open(&written.path, None).is_err());
    }

    #[test]
    fn wrong_numbers_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let extent = ChunkExtent { start: 0, end: 2, out_shape: &[3] };
        let content = ChunkRows { values: &[0.0; 6], ids: &[0, 1], status: &[0; 2] };
        assert!(write(dir.path(), extent, ChunkRows { values: &[0.0; 5], ..content }).is_err());
        assert!(write(dir.path(), extent, ChunkRows { ids: &[0], ..content }).is_err());
        assert!(write(dir.path(), extent, ChunkRows { status: &[0; 3], ..content }).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
