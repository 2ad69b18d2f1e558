//! Sources: foreign files behind one streaming trait of column blocks. A table of formats; nothing else knows one.
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
use block::{Block, PieceError, Want};
use clean::MissingTokens;
use enn_common::config::data::{DataConfig, SourceFormat};
use std::{path::Path, sync::Arc};

/// An open file.
pub(crate) trait Source: Send + Sync {
    /// Column names, in file order.
    fn header(&self) -> &[String];

    /// About how many rows there are: exact where the format says so. For the disk check only.
    fn rows_estimate(&self) -> u64;

    /// What people should know of the file, if there is anything.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Begins a pass over all rows, or over those from a place on that a piece ended at.
    fn start(&self, request: Arc<Request>, from: Option<u64>) -> Result<Box<dyn Pieces>, StageError>;
}

/// A pass over a file. `next` is called in order, one call at a time, and does as little as possible.
pub(crate) trait Pieces: Send {
    /// The next piece; `None` at the end.
    fn next(&mut self) -> Result<Option<Box<dyn Piece>>, StageError>;
}

/// A run of rows, not decoded yet.
pub(crate) trait Piece: Send {
    /// Decodes and cleans.
    fn decode(self: Box<Self>) -> Result<Block, PieceError>;

    /// The place the next piece begins at, as the source counts.
    fn end(&self) -> u64;
}

/// What a pass shall deliver.
#[derive(Debug)]
pub(crate) struct Request {
    /// File index, for the blocks.
    pub file: usize,
    /// Wanted columns.
    pub wants: Vec<Want>,
    /// For each wanted column its index in this file's header.
    pub columns: Vec<usize>,
    /// Texts that mean "missing".
    pub missing: MissingTokens,
    /// Whether every block carries a hash per row over all columns of the file.
    pub hash_rows: bool,
}

/// Whether a text means "missing" where these tokens do.
pub(crate) fn means_missing(tokens: &[String], text: &str) -> bool {
    MissingTokens::new(tokens).contains(text.trim())
}

/// The format of a file, from the configuration or its extension.
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

/// Whether the name of a file says that it is a table of data.
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
