//! Separated text: a header line, then records. The separator (comma, semicolon, tab or pipe), quotes with doubled quotes inside,
//! either line end and a byte order mark are detected.
//!
//! A quote is special only at the beginning of a field. Blank lines are skipped. A record with more or fewer fields than the
//! header is left out, counted, and its line is kept for the report.

mod cut;
mod decode;
mod dialect;
mod quotes;

use super::{Pieces, Request, Source};
use crate::stage::error::StageError;
use cut::CsvPieces;
use dialect::Dialect;
use enn_common::fs::{FileError, regular};
use std::{
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

#[derive(Debug)]
pub(crate) struct CsvSource {
    path: PathBuf,
    dialect: Dialect,
    bytes: u64,
    is_ended: bool,
}

impl CsvSource {
    pub(crate) fn open(path: &Path) -> Result<Self, StageError> {
        let (dialect, bytes) = dialect::read(path)?;
        let mut last = [b'\n'];
        let read = regular::open(path)?.read_exact_at(&mut last, bytes.saturating_sub(1));
        read.map_err(FileError::of("read", path))?;
        Ok(Self { path: path.to_path_buf(), dialect, bytes, is_ended: matches!(last[0], b'\n' | b'\r') })
    }
}

impl Source for CsvSource {
    fn header(&self) -> &[String] {
        &self.dialect.header
    }

    fn rows_estimate(&self) -> u64 {
        (self.bytes.saturating_sub(self.dialect.data_at) as f64 / self.dialect.record_bytes) as u64 + 1
    }

    fn warning(&self) -> Option<String> {
        (!self.is_ended).then(|| {
            format!(
                "{}: its last line has no line end: if the file was cut, the last cell is cut, too\n  hint: end the last line, where the \
                 file is whole",
                self.path.display()
            )
        })
    }

    fn positions(&self, count: u64) -> Vec<Option<u64>> {
        let step = self.bytes.saturating_sub(self.dialect.data_at) / count.max(1);
        let later = (1..count).map(|place| cut::record_after(&self.path, self.dialect.data_at + step * place));
        [None].into_iter().chain(later.filter(Option::is_some)).collect()
    }

    fn start(&self, request: Arc<Request>, from: Option<u64>) -> Result<Box<dyn Pieces>, StageError> {
        Ok(Box::new(CsvPieces::start(&self.path, &self.dialect, request, from)?))
    }
}
