//! Sources: files of all formats behind one streaming trait of column blocks. Only this module knows the formats.
//!
//! ```text
//! open(path) → Source ──start(request)──► Pieces ──next() in order──► Piece ──decode() in parallel──► Block
//! ```
//! **Invariant:** a source holds a bounded part of its file in memory, and decodes the same blocks for any number of threads.

pub(crate) mod array;
pub(crate) mod arrow;
pub(crate) mod block;
pub(crate) mod clean;
mod csv;
mod pages;
mod sheet;
mod typed;

use super::{bound, error::StageError};
use block::{Block, ColumnSpec, PieceError};
use clean::MissingTokens;
use enn_common::config::data::{DataConfig, SourceFormat};
use std::{path::Path, sync::Arc};

pub(crate) trait Source: Send + Sync {
    /// Returns the column names in file order.
    fn header(&self) -> &[String];

    /// Estimates the number of rows for the disk check; exact where the format states it.
    fn rows_estimate(&self) -> u64;

    fn warning(&self) -> Option<String> {
        None
    }

    /// Starts a pass over all rows, or over the rows from `from` on, which is a [`Piece::end`].
    fn start(&self, request: Arc<Request>, from: Option<u64>) -> Result<Box<dyn Pieces>, StageError>;
}

/// A pass over a file. `next` is called in order, one call at a time, and does as little as possible.
pub(crate) trait Pieces: Send {
    /// Returns the next piece; `None` at the end.
    fn next(&mut self) -> Result<Option<Box<dyn Piece>>, StageError>;
}

pub(crate) trait Piece: Send {
    fn decode(self: Box<Self>) -> Result<Block, PieceError>;

    /// Returns the position of the next piece, in the source's own unit.
    fn end(&self) -> u64;
}

#[derive(Debug)]
pub(crate) struct Request {
    pub file: usize,
    pub specs: Vec<ColumnSpec>,
    /// For each requested column its index in this file's header.
    pub columns: Vec<usize>,
    /// Texts that mean "missing".
    pub missing: MissingTokens,
    /// Whether every block has a hash per row over all columns of the file.
    pub hash_rows: bool,
}

/// Whether a text means "missing" for these tokens.
pub fn means_missing(tokens: &[String], text: &str) -> bool {
    MissingTokens::new(tokens).contains(text.trim())
}

/// Returns the format of a file, from the configuration or its extension.
pub(crate) fn format_of(path: &Path, format: Option<SourceFormat>) -> Result<SourceFormat, StageError> {
    if let Some(format) = format {
        return Ok(format);
    }
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let format = match extension.as_str() {
        "csv" | "tsv" | "txt" => SourceFormat::Csv,
        "parquet" | "pq" => SourceFormat::Parquet,
        "arrow" | "arrows" | "feather" | "ipc" => SourceFormat::Arrow,
        "npy" => SourceFormat::Npy,
        "npz" => SourceFormat::Npz,
        "safetensors" => SourceFormat::Safetensors,
        "xlsx" | "xlsm" | "xls" | "xlsb" | "ods" => SourceFormat::Xlsx,
        _ => return Err(StageError::UnknownFormat { path: path.to_path_buf() }),
    };
    Ok(format)
}

pub fn is_data(path: &Path) -> bool {
    path.extension().is_some() && format_of(path, None).is_ok()
}

/// Opens a file as a table. Zipped arrays are unpacked below `scratch`.
pub(crate) fn open(path: &Path, config: &DataConfig, scratch: &Path) -> Result<Box<dyn Source>, StageError> {
    if !path.is_file() {
        return Err(StageError::MissingFile { path: path.to_path_buf() });
    }
    let format = format_of(path, config.format)?;
    let source: Box<dyn Source> = match format {
        SourceFormat::Csv => Box::new(csv::CsvSource::open(path)?),
        SourceFormat::Parquet => Box::new(arrow::ArrowSource::parquet(path)?),
        SourceFormat::Arrow => Box::new(arrow::ArrowSource::ipc(path)?),
        SourceFormat::Xlsx => Box::new(sheet::SheetSource::open(path, config.sheet.as_deref())?),
        SourceFormat::Npy | SourceFormat::Npz | SourceFormat::Safetensors => {
            Box::new(array::ArraySource::open(path, format, scratch)?)
        }
    };
    bound::columns(path, source.header().len() as u64)?;
    Ok(source)
}
