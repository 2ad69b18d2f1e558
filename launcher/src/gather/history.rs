//! Series of a window that have no history: what the model says of them is an answer to nothing.

use enn_common::{
    artifact::chunk::RowStatus,
    staged::{Staged, StagedMeta},
};

/// The inputs that are the history of each series.
#[derive(Debug)]
pub(super) struct Histories {
    columns: Vec<Vec<usize>>,
    /// Cells of a series, and of all.
    steps: usize,
    cells: usize,
}

impl Histories {
    /// Those of windows; `None` where samples have no series.
    pub(super) fn of(meta: &StagedMeta) -> Option<Self> {
        meta.persistence.as_ref()?;
        let [series, steps] = meta.out_shape[..] else { return None };
        let names = meta.out_labels.first()?;
        let mut columns = vec![Vec::new(); series];
        for (column, feature) in meta.features.iter().enumerate() {
            if let Some(at) = series_of(&feature.name, names) {
                columns[at].push(column);
            }
        }
        Some(Self { columns, steps, cells: series * steps })
    }

    /// Takes the numbers of series without history out of a row's; says in its status that some are.
    pub(super) fn hold(&self, valid: &[u8], values: &mut [f32], status: &mut u8) {
        if *status != RowStatus::Predicted as u8 {
            return;
        }
        for (series, columns) in self.columns.iter().enumerate() {
            if columns.iter().any(|column| valid[*column] != 0) {
                continue;
            }
            *status = RowStatus::NoHistory as u8;
            let own = |cell: usize| cell % self.cells / self.steps == series;
            values.iter_mut().enumerate().filter(|(cell, _)| own(*cell)).for_each(|(_, value)| *value = f32::NAN);
        }
    }

    /// As [`Self::hold`], of rows from `first` on, each of as many numbers.
    pub(super) fn hold_all(&self, staged: &Staged, first: usize, values: &mut [f32], status: &mut [u8]) {
        let each = (values.len() / status.len().max(1)).max(1);
        for (at, (values, status)) in values.chunks_mut(each).zip(status).enumerate() {
            self.hold(staged.x_mask_row(first + at), values, status);
        }
    }
}

/// The series that an input `CHANNEL[SERIES,WINDOW,STEP]` is of.
fn series_of(name: &str, names: &[String]) -> Option<usize> {
    let mut parts = name.strip_suffix(']')?.rsplitn(3, ',');
    parts.next()?;
    parts.next()?;
    let rest = parts.next()?;
    let is_its = |series: &String| rest.strip_suffix(series.as_str()).is_some_and(|channel| channel.ends_with('['));
    // A name may end with another one.
    (0..names.len()).filter(|at| is_its(&names[*at])).max_by_key(|at| names[*at].len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_belong_to_the_series_in_their_names() {
        let names = ["a".to_owned(), "b".to_owned(), "x,[a".to_owned()];
        let of = |name: &str| series_of(name, &names);
        assert_eq!([of("v[a,-1d,07h]"), of("w.sin[b,-2min,00:00]")], [Some(0), Some(1)]);
        assert_eq!([of("v[x,[a,-1d,0s]"), of("weekday.cos"), of("v[c,-1d,0s]")], [Some(2), None, None]);
    }

    #[test]
    fn a_series_without_history_has_no_numbers_and_the_row_says_so() {
        let histories = Histories { columns: vec![vec![0, 2], vec![1]], steps: 2, cells: 4 };
        // Two levels of four cells.
        let (mut values, mut status) = ([1.0f32; 8], RowStatus::Predicted as u8);
        histories.hold(&[1, 0, 0, 1], &mut values, &mut status);
        assert_eq!(RowStatus::of(status), Some(RowStatus::NoHistory));
        let missing: Vec<usize> = (0..8).filter(|cell| values[*cell].is_nan()).collect();
        assert_eq!(missing, [2, 3, 6, 7]);
        let (mut whole, mut fine) = ([1.0f32; 4], RowStatus::Predicted as u8);
        histories.hold(&[0, 1, 1, 0], &mut whole, &mut fine);
        assert_eq!((whole, fine), ([1.0; 4], RowStatus::Predicted as u8));
    }
}
