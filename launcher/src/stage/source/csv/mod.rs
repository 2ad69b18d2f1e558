//! Separated text: a header line, then records. The separator (comma, semicolon, tab or pipe), quotes with doubled quotes inside,
//! either line end and a byte order mark are understood without being told.
//!
//! A quote is special only at the beginning of a field. Blank lines are skipped. A record with more or fewer fields than the
//! header is left out, counted, and its line is kept for the report.

mod cut;
mod decode;
mod dialect;

use super::{Pieces, Request, Source};
use crate::stage::error::StageError;
use cut::Cutter;
use dialect::Dialect;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// An open text table.
#[derive(Debug)]
pub(crate) struct CsvSource {
    path: PathBuf,
    dialect: Dialect,
    bytes: u64,
}

impl CsvSource {
    /// Opens the file and reads its header.
    pub(crate) fn open(path: &Path) -> Result<Self, StageError> {
        let (dialect, bytes) = dialect::read(path)?;
        Ok(Self { path: path.to_path_buf(), dialect, bytes })
    }
}

impl Source for CsvSource {
    fn header(&self) -> &[String] {
        &self.dialect.header
    }

    fn rows_estimate(&self) -> u64 {
        (self.bytes.saturating_sub(self.dialect.data_at) as f64 / self.dialect.record_bytes) as u64 + 1
    }

    fn start(&self, request: Arc<Request>, from: Option<u64>) -> Result<Box<dyn Pieces>, StageError> {
        Ok(Box::new(Cutter::start(&self.path, &self.dialect, request, from)?))
    }
}
