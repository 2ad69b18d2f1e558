//! The layout of the numbers of a predicted row: its cells, and the quantiles of each.

use super::cell_names;
use enn_common::{
    artifact::chunk::RowStatus,
    config::train::MEDIAN,
    staged::{Histories, StagedMeta},
};
use std::borrow::Cow;

const SERIES_NAMED_MAX: usize = 8;

/// The numbers of one row: all cells for each level, or all cells where no quantiles are predicted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layout {
    pub(super) columns: Vec<String>,
    /// The levels, ascending and including the median; empty without quantiles.
    pub(super) levels: Vec<f64>,
    pub(super) classes: bool,
    /// The names of the series of the cells, in order, each with equally many cells; `None` for a series without training data. Empty where
    /// there are no series.
    series: Vec<Option<String>>,
}

pub(super) struct Rows<'a> {
    pub(super) ids: &'a [i64],
    /// Row names; empty when rows have none.
    pub(super) names: &'a [String],
    /// The predicted numbers, row-major.
    pub(super) values: &'a [f32],
    /// The status of each row, numbers of `RowStatus`.
    pub(super) status: &'a [u8],
}

impl Layout {
    pub(super) fn new(meta: &StagedMeta, levels: &[f64]) -> Self {
        let columns = cell_names(&meta.out_shape, &meta.out_labels);
        Self { columns, levels: levels.to_vec(), classes: meta.has_classes, series: series(meta) }
    }

    /// Returns why each row, or some of its series, has no prediction; `None` for a complete row.
    pub(super) fn failed(&self, rows: &Rows<'_>) -> Vec<Option<Cow<'static, str>>> {
        let each = (rows.values.len() / rows.status.len().max(1)).max(1);
        let why = |(row, status): (usize, &u8)| {
            let status = RowStatus::of(*status)?;
            let reason = status.reason()?;
            let without = if status == RowStatus::NoHistory {
                self.without(&rows.values[row * each..][..each])
            } else {
                Vec::new()
            };
            let names = without[..without.len().min(SERIES_NAMED_MAX)].join(", ");
            Some(match without.len().saturating_sub(SERIES_NAMED_MAX) {
                _ if without.is_empty() => Cow::Borrowed(reason),
                0 => Cow::Owned(format!("no history, and so no numbers, of {names}")),
                more => Cow::Owned(format!("no history, and so no numbers, of {names} and {more} more")),
            })
        };
        rows.status.iter().enumerate().map(why).collect()
    }

    fn without(&self, values: &[f32]) -> Vec<&str> {
        let cells = self.columns.len().max(1);
        let steps = self.columns.len() / self.series.len().max(1);
        let has_number = |series: usize| {
            let own = |cell: usize| cell % cells / steps.max(1) == series;
            values.iter().enumerate().any(|(cell, value)| own(cell) && !value.is_nan())
        };
        let known = self.series.iter().enumerate().filter_map(|(at, name)| Some((at, name.as_deref()?)));
        known.filter(|(at, _)| !has_number(*at)).map(|(_, name)| name).collect()
    }

    pub(super) fn numbers(&self) -> usize {
        self.columns.len() * self.levels.len().max(1)
    }

    pub(super) fn point(&self) -> usize {
        self.levels.iter().position(|level| *level == MEDIAN).unwrap_or(0)
    }

    pub(super) fn points_only(&self) -> Self {
        Self { levels: Vec::new(), ..self.clone() }
    }

    /// Returns the values of rows for the output: only point predictions if `is_point`.
    pub(super) fn selected<'a>(&self, values: &'a [f32], is_point: bool) -> Cow<'a, [f32]> {
        if is_point { self.points(values).into() } else { values.into() }
    }

    pub(super) fn points(&self, values: &[f32]) -> Vec<f32> {
        let cells = self.columns.len();
        let point = self.point() * cells;
        values.chunks(self.numbers().max(1)).flat_map(|row| &row[point..point + cells]).copied().collect()
    }

    /// Returns the names and indices of the columns of quantiles: cell by cell, without the median.
    pub(super) fn quantiles(&self) -> Vec<(String, usize)> {
        let cells = self.columns.len();
        let others = || self.levels.iter().enumerate().filter(|(_, level)| **level != MEDIAN);
        let of_cell = |(cell, name): (usize, &String)| {
            others().map(|(at, level)| (format!("{name}@{level}"), at * cells + cell)).collect::<Vec<_>>()
        };
        self.columns.iter().enumerate().flat_map(of_cell).collect()
    }

    /// Returns the index of the most likely class of each row; `None` without a prediction.
    pub(super) fn labels(&self, rows: &Rows<'_>) -> Vec<Option<usize>> {
        let likeliest = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a)));
        let all = rows.values.chunks(self.columns.len().max(1)).zip(rows.status);
        all.map(|(row, status)| likeliest(row).filter(|_| *status == RowStatus::Predicted as u8)).collect()
    }
}

fn series(meta: &StagedMeta) -> Vec<Option<String>> {
    let names = meta.out_labels.first().filter(|_| Histories::of(meta).is_some());
    let steps = meta.out_shape.get(1).copied().unwrap_or(1);
    let is_seen =
        |at: usize| meta.y_stats.chunks(steps.max(1)).nth(at).is_none_or(|own| own.iter().any(|cell| cell.n > 0));
    let named = |(at, name): (usize, &String)| is_seen(at).then(|| name.clone());
    names.into_iter().flatten().enumerate().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_without_history_are_named() {
        let columns = ["a 0", "a 1", "b 0", "b 1"].map(str::to_owned).to_vec();
        let series = vec![Some("a".to_owned()), Some("b".to_owned())];
        let layout = Layout { columns, levels: vec![0.1, 0.9], classes: false, series };
        let none = f32::NAN;
        let values = [
            [1.0, 2.0, none, none, 1.0, 2.0, none, none],
            [1.0; 8],
            [none; 8],
            [1.0, none, 3.0, none, 1.0, 2.0, 3.0, 4.0],
        ];
        let status =
            [RowStatus::NoHistory, RowStatus::Predicted, RowStatus::NoInput, RowStatus::NoHistory].map(|one| one as u8);
        let rows = Rows { ids: &[0, 1, 2, 3], names: &[], values: values.as_flattened(), status: &status };
        let failed = layout.failed(&rows);
        assert_eq!(failed[0].as_deref(), Some("no history, and so no numbers, of b"));
        assert_eq!((failed[1].as_deref(), failed[2].as_deref()), (None, Some("no input is valid")));
        assert_eq!(failed[3].as_deref(), RowStatus::NoHistory.reason(), "a cell that is blind does not make a series");
        let many = Layout {
            series: (0..10).map(|at| Some(format!("s{at}"))).collect(),
            columns: vec![String::new(); 10],
            ..layout
        };
        let rows = Rows { ids: &[0], names: &[], values: &[none; 10], status: &status[..1] };
        let told = "no history, and so no numbers, of s0, s1, s2, s3, s4, s5, s6, s7 and 2 more";
        assert_eq!(many.failed(&rows)[0].as_deref(), Some(told));
    }
}
