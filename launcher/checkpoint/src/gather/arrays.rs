//! Predictions in memory, read from a directory of arrays.

use super::{
    GatherError,
    npy::{IDS, LEVELS, PREDICTIONS, QUANTILES, STATUS},
};
use enn_common::{
    artifact::chunk::RowStatus,
    staged::{npy::NpyElement, reader::NpyMap},
};
use std::path::Path;

/// Predictions of N rows, in the order of the source and in the target's unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrays {
    /// The shape of one row's prediction, which is the output grid.
    pub out_shape: Vec<usize>,
    /// Predictions (N, *out_shape), NaN where there is none.
    pub values: Vec<f32>,
    pub row_ids: Vec<i64>,
    /// The status of each row (N).
    pub status: Vec<RowStatus>,
    /// Levels (L) of the predicted quantiles, ascending; empty without quantiles.
    pub levels: Vec<f64>,
    /// Quantiles (N, L, *out_shape).
    pub quantiles: Vec<f32>,
}

impl Arrays {
    /// Reads the directory that a prediction wrote.
    ///
    /// # Errors
    /// The directory is incomplete.
    pub fn read(dir: &Path) -> Result<Self, GatherError> {
        let points = NpyMap::open(&dir.join(PREDICTIONS))?;
        let shape = points.header().shape.clone();
        let count = points.header().count();
        let rows = shape.first().copied().unwrap_or(0);
        let status = NpyMap::open_as(&dir.join(STATUS), NpyElement::U8, rows)?;
        let mut found = Self {
            out_shape: shape.iter().skip(1).map(|size| *size as usize).collect(),
            values: points.numbers().unwrap_or_default().to_vec(),
            row_ids: NpyMap::open_as(&dir.join(IDS), NpyElement::I64, rows)?.numbers().unwrap_or_default().to_vec(),
            status: status.data().iter().filter_map(|number| RowStatus::of(*number)).collect(),
            levels: Vec::new(),
            quantiles: Vec::new(),
        };
        if dir.join(LEVELS).exists() {
            found.levels = NpyMap::open(&dir.join(LEVELS))?.numbers().unwrap_or_default().to_vec();
            let quantiles = NpyMap::open_as(&dir.join(QUANTILES), NpyElement::F32, count * found.levels.len() as u64)?;
            found.quantiles = quantiles.numbers().unwrap_or_default().to_vec();
        }
        Ok(found)
    }

    /// Returns the prediction of a row, its cells row-major.
    pub fn row(&self, row: usize) -> &[f32] {
        let cells = self.out_shape.iter().product::<usize>();
        &self.values[row * cells..(row + 1) * cells]
    }
}
