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
mod pass;
mod sheet;
mod typed;

pub(crate) use pass::{DeclaredType, Piece, Pieces, Request, Source};

use super::{bound, error::StageError};
use clean::MissingTokens;
use enn_common::config::data::{DataConfig, SourceFormat};
use std::path::Path;

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
    open_as(path, config.format, config.sheet.as_deref(), scratch)
}

/// Opens a file of this format, or of that of its extension.
pub(crate) fn open_as(
    path: &Path,
    format: Option<SourceFormat>,
    sheet: Option<&str>,
    scratch: &Path,
) -> Result<Box<dyn Source>, StageError> {
    if !path.is_file() {
        return Err(StageError::MissingFile { path: path.to_path_buf() });
    }
    let format = format_of(path, format)?;
    let source: Box<dyn Source> = match format {
        SourceFormat::Csv => Box::new(csv::CsvSource::open(path)?),
        SourceFormat::Parquet => Box::new(arrow::ArrowSource::parquet(path)?),
        SourceFormat::Arrow => Box::new(arrow::ArrowSource::ipc(path)?),
        SourceFormat::Xlsx => Box::new(sheet::SheetSource::open(path, sheet)?),
        SourceFormat::Npy | SourceFormat::Npz | SourceFormat::Safetensors => {
            Box::new(array::ArraySource::open(path, format, scratch)?)
        }
    };
    bound::columns(path, source.header().len() as u64)?;
    Ok(source)
}
