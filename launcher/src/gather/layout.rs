//! Where the numbers of a predicted row are: its cells, and the quantiles of each.

use super::cell_names;
use enn_common::{artifact::chunk::RowStatus, config::train::MEDIAN, staged::StagedMeta};
use std::borrow::Cow;

/// The numbers of one row: for each level all cells, or all cells where no quantiles are predicted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layout {
    /// Names of the cells.
    pub(super) columns: Vec<String>,
    /// Levels, rising, the median among them; empty without quantiles.
    pub(super) levels: Vec<f64>,
    /// Whether the cells are classes.
    pub(super) classes: bool,
}

/// Rows of a chunk.
pub(super) struct Rows<'a> {
    /// Identities.
    pub(super) ids: &'a [i64],
    /// Names; empty when rows have none.
    pub(super) names: &'a [String],
    /// Numbers, row-major.
    pub(super) values: &'a [f32],
    /// What became of each row, numbers of `RowStatus`.
    pub(super) status: &'a [u8],
}

impl Layout {
    pub(super) fn new(meta: &StagedMeta, levels: &[f64]) -> Self {
        let columns = cell_names(&meta.out_shape, &meta.out_labels);
        Self { columns, levels: levels.to_vec(), classes: meta.has_classes }
    }

    /// Numbers of a row.
    pub(super) fn numbers(&self) -> usize {
        self.columns.len() * self.levels.len().max(1)
    }

    /// Place of the predictions among the levels.
    pub(super) fn point(&self) -> usize {
        self.levels.iter().position(|level| *level == MEDIAN).unwrap_or(0)
    }

    /// The same with the points alone.
    pub(super) fn pointed(&self) -> Self {
        Self { levels: Vec::new(), ..self.clone() }
    }

    /// The numbers of rows as they are told: the points alone where `is_point` asks for no more.
    pub(super) fn told<'a>(&self, values: &'a [f32], is_point: bool) -> Cow<'a, [f32]> {
        if is_point { self.points(values).into() } else { values.into() }
    }

    /// The points of rows.
    pub(super) fn points(&self, values: &[f32]) -> Vec<f32> {
        let cells = self.columns.len();
        let point = self.point() * cells;
        values.chunks(self.numbers().max(1)).flat_map(|row| &row[point..point + cells]).copied().collect()
    }

    /// Names and places of the columns of quantiles: cell after cell, without the median.
    pub(super) fn quantiles(&self) -> Vec<(String, usize)> {
        let cells = self.columns.len();
        let others = || self.levels.iter().enumerate().filter(|(_, level)| **level != MEDIAN);
        let of_cell = |(cell, name): (usize, &String)| {
            others().map(|(at, level)| (format!("{name}@{level}"), at * cells + cell)).collect::<Vec<_>>()
        };
        self.columns.iter().enumerate().flat_map(of_cell).collect()
    }

    /// Index of the likeliest class of each row; `None` for one without prediction.
    pub(super) fn labels(&self, rows: &Rows<'_>) -> Vec<Option<usize>> {
        let likeliest = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a)));
        let all = rows.values.chunks(self.columns.len().max(1)).zip(rows.status);
        all.map(|(row, status)| likeliest(row).filter(|_| *status == RowStatus::Predicted as u8)).collect()
    }
}
