//! Predictions in memory, as a directory of arrays holds them.

use super::{
    GatherError,
    npy::{IDS, LEVELS, PREDICTIONS, QUANTILES, STATUS},
};
use enn_common::{
    artifact::chunk::RowStatus,
    staged::{StagedError, npy::Element, reader::NpyMap},
};
use std::path::Path;

/// What was predicted of N rows, in the order of the source and in the target's unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrays {
    /// Shape of one row's prediction: the output grid.
    pub out_shape: Vec<usize>,
    /// (N, *out_shape), NaN where there is no prediction.
    pub values: Vec<f32>,
    /// Identities (N).
    pub row_ids: Vec<i64>,
    /// What became of each row (N).
    pub status: Vec<RowStatus>,
    /// Levels (L) of predicted quantiles, rising; empty where none are.
    pub levels: Vec<f64>,
    /// (N, L, *out_shape).
    pub quantiles: Vec<f32>,
}

impl Arrays {
    /// Reads the directory that a prediction wrote.
    ///
    /// # Errors
    /// It is not whole.
    pub fn read(dir: &Path) -> Result<Self, GatherError> {
        let points = NpyMap::open(&dir.join(PREDICTIONS))?;
        let shape = points.header().shape.clone();
        let count = points.header().count();
        let rows = shape.first().copied().unwrap_or(0);
        let status = NpyMap::open_as(&dir.join(STATUS), Element::U8, rows)?;
        let mut found = Self {
            out_shape: shape.iter().skip(1).map(|size| *size as usize).collect(),
            values: points.numbers().unwrap_or_default().to_vec(),
            row_ids: numbers(dir, IDS, Element::I64, rows)?.numbers().unwrap_or_default().to_vec(),
            status: status.data().iter().filter_map(|number| RowStatus::of(*number)).collect(),
            levels: Vec::new(),
            quantiles: Vec::new(),
        };
        if dir.join(LEVELS).exists() {
            found.levels = NpyMap::open(&dir.join(LEVELS))?.numbers().unwrap_or_default().to_vec();
            let quantiles = numbers(dir, QUANTILES, Element::F32, count * found.levels.len() as u64)?;
            found.quantiles = quantiles.numbers().unwrap_or_default().to_vec();
        }
        Ok(found)
    }

    /// The prediction of a row, its cells row-major.
    pub fn row(&self, row: usize) -> &[f32] {
        let cells = self.out_shape.iter().product::<usize>();
        &self.values[row * cells..(row + 1) * cells]
    }
}

fn numbers(dir: &Path, name: &str, element: Element, count: u64) -> Result<NpyMap, StagedError> {
    NpyMap::open_as(&dir.join(name), element, count)
}
