//! Forecasts of the test rows, as training left them in `predictions/test`.
//!
//! ```text
//! <run>/predictions/test/
//!   pred.npy   (n, *out_shape) f32   forecasts in the target's unit
//!   rows.npy   (n)             i64   staged row of each forecast
//! ```

use enn_common::staged::{Staged, StagedError, npy::NpyElement, reader::NpyMap};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Where the forecasts lie in a run directory.
pub const DIR: &str = "predictions/test";

#[derive(Debug)]
pub struct TestPredictions {
    rows: Vec<usize>,
    values: NpyMap,
    outputs: usize,
}

/// Why forecasts cannot be shown.
#[derive(Debug, Error)]
pub enum PredictionsError {
    #[error(transparent)]
    Array(#[from] StagedError),
    #[error("{}: {what} is {found}, expected {expected}", path.display())]
    Mismatch { path: PathBuf, what: &'static str, found: String, expected: String },
}

impl TestPredictions {
    /// Reads the forecasts of `run_dir`, made from `staged`; `None` when there are none.
    ///
    /// # Errors
    /// The arrays are damaged or belong to other data.
    pub fn read(run_dir: &Path, staged: &Staged) -> Result<Option<Self>, PredictionsError> {
        let dir = run_dir.join(DIR);
        let values_path = dir.join("pred.npy");
        let rows_path = dir.join("rows.npy");
        if !(values_path.exists() && rows_path.exists()) {
            return Ok(None);
        }
        let values = open(&values_path, NpyElement::F32, "f32")?;
        let rows = open(&rows_path, NpyElement::I64, "i64")?;
        let numbers: &[i64] = rows.numbers().unwrap_or(&[]);
        let mut shape = vec![numbers.len() as u64];
        shape.extend(staged.meta().out_shape.iter().map(|size| *size as u64));
        let found = &values.header().shape;
        if *found != shape {
            return Err(mismatch(&values_path, "shape", format!("{found:?}"), format!("{shape:?}")));
        }
        let all = staged.rows();
        let row = |number: &i64| usize::try_from(*number).ok().filter(|row| *row < all).ok_or(*number);
        let rows: Vec<usize> = numbers.iter().map(row).collect::<Result<_, _>>().map_err(|found| {
            mismatch(&rows_path, "row", found.to_string(), format!("0 to {}", all.saturating_sub(1)))
        })?;
        Ok(Some(Self { rows, values, outputs: staged.outputs() }))
    }

    /// Staged rows, in the order of the forecasts.
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// Every forecast (O) with its staged row.
    pub fn each(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.rows.iter().enumerate().map(|(index, row)| (*row, self.forecast(index)))
    }

    /// Forecast number `index`, (O).
    pub fn forecast(&self, index: usize) -> &[f32] {
        let all: &[f32] = self.values.numbers().unwrap_or(&[]);
        all.get(index * self.outputs..(index + 1) * self.outputs).unwrap_or(&[])
    }
}

fn mismatch(path: &Path, what: &'static str, found: String, expected: String) -> PredictionsError {
    PredictionsError::Mismatch { path: path.to_owned(), what, found, expected }
}

fn open(path: &Path, element: NpyElement, expected: &str) -> Result<NpyMap, PredictionsError> {
    let array = NpyMap::open(path)?;
    if array.header().element != element {
        let found = array.header().element.descr();
        return Err(mismatch(path, "element type", found.to_owned(), expected.to_owned()));
    }
    Ok(array)
}
