//! A CSV file that is written row by row, the error of its noise, and the configuration beside it.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// Reasons for which there is no table.
#[derive(Debug, thiserror::Error)]
pub(super) enum SynthError {
    /// A file or directory cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// An argument has an invalid value.
    #[error("found {found}, expected {expected}")]
    Argument {
        /// Flag and value.
        found: String,
        /// Valid values.
        expected: &'static str,
    },
}

/// A table that is being written.
pub(super) struct Table {
    path: PathBuf,
    out: BufWriter<File>,
}

/// Errors of the noiseless truth over the present cells: no prediction is better, except by chance.
#[derive(Debug, Default)]
pub(super) struct Floor {
    absolute: f64,
    squared: f64,
    n: u64,
    missing: u64,
}

impl Table {
    /// Creates `dir/name` with its header.
    pub(super) fn create(dir: &Path, name: &str, header: &[String]) -> Result<Self, SynthError> {
        let path = dir.join(name);
        let wrong = |source| SynthError::Write { path: path.clone(), source };
        fs::create_dir_all(dir).map_err(wrong)?;
        let out = BufWriter::new(File::create(&path).map_err(wrong)?);
        let mut table = Self { path: path.clone(), out };
        table.row(header)?;
        Ok(table)
    }

    /// Writes a row of cells.
    pub(super) fn row(&mut self, cells: &[String]) -> Result<(), SynthError> {
        let written = writeln!(self.out, "{}", cells.join(","));
        written.map_err(|source| SynthError::Write { path: self.path.clone(), source })
    }

    /// Flushes the file; returns its path.
    pub(super) fn finish(mut self) -> Result<PathBuf, SynthError> {
        self.out.flush().map_err(|source| SynthError::Write { path: self.path.clone(), source })?;
        Ok(self.path)
    }
}

/// Writes the configuration `dir/name`.
pub(super) fn configuration(dir: &Path, name: &str, text: &str) -> Result<PathBuf, SynthError> {
    let path = dir.join(name);
    fs::write(&path, text).map_err(|source| SynthError::Write { path: path.clone(), source })?;
    Ok(path)
}

impl Floor {
    /// Adds the noise of a cell.
    pub(super) fn add(&mut self, noise: f64) {
        self.absolute += noise.abs();
        self.squared += noise * noise;
        self.n += 1;
    }

    /// Counts a missing cell.
    pub(super) fn miss(&mut self) {
        self.missing += 1;
    }

    /// Returns a sentence for people.
    pub(super) fn text(&self) -> String {
        let n = self.n.max(1) as f64;
        let mae = self.absolute / n;
        let rmse = (self.squared / n).sqrt();
        format!("the truth itself has MAE {mae:.4}, RMSE {rmse:.4} here ({} cells, {} missing)", self.n, self.missing)
    }
}
