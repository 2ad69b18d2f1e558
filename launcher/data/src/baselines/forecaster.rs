//! A fitted baseline.

use super::{
    logistic::Logistic,
    ridge::{KernelRidge, Ridge},
};
use enn_common::staged::Staged;
use nalgebra::DMatrix;

#[derive(Debug)]
pub enum Forecaster {
    /// The mean of each cell over valid training rows.
    CellMean(Vec<f64>),
    /// The input column that holds each cell's value one period earlier; the cell's mean where that is missing.
    Persistence {
        columns: Vec<u32>,
        means: Vec<f64>,
    },
    Climatology(Box<Ridge>),
    Ridge(Box<Ridge>),
    KernelRidge(Box<KernelRidge>),
    /// Relative frequencies of the classes, with half a row more of each.
    ClassRates(Vec<f64>),
    Logistic(Box<Logistic>),
}

impl Forecaster {
    pub fn name(&self) -> &'static str {
        match self {
            Self::CellMean(_) => "cell_mean",
            Self::Persistence { .. } => "persistence",
            Self::Climatology(_) => "climatology",
            Self::Ridge(_) => "ridge",
            Self::KernelRidge(_) => "kernel_ridge",
            Self::ClassRates(_) => "class_rates",
            Self::Logistic(_) => "logistic",
        }
    }

    /// Returns forecasts (O, rows) in target units: one column per row, in the order of `rows`.
    pub fn predict(&self, staged: &Staged, rows: &[usize]) -> DMatrix<f64> {
        match self {
            Self::CellMean(means) | Self::ClassRates(means) => {
                DMatrix::from_fn(means.len(), rows.len(), |cell, _| means[cell])
            }
            Self::Persistence { columns, means } => DMatrix::from_fn(means.len(), rows.len(), |cell, index| {
                let column = columns[cell] as usize;
                let valid = staged.x_mask_row(rows[index])[column] != 0;
                if valid { f64::from(staged.x_row(rows[index])[column]) } else { means[cell] }
            }),
            Self::Ridge(ridge) | Self::Climatology(ridge) => ridge.predict(staged, rows),
            Self::KernelRidge(ridge) => ridge.predict(staged, rows),
            Self::Logistic(logistic) => logistic.predict(staged, rows),
        }
    }
}
