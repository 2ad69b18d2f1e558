//! Series of a window that have no history: what the model says of them is an answer to nothing.

use super::StagedMeta;
use crate::artifact::chunk::RowStatus;

/// The inputs that are the history of each series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histories {
    columns: Vec<Vec<usize>>,
    /// Cells of a series, and of all.
    steps: usize,
    cells: usize,
}

impl Histories {
    /// Histories of windows; `None` where samples have no series.
    pub fn of(meta: &StagedMeta) -> Option<Self> {
        meta.persistence.as_ref()?;
        let [series, steps] = meta.out_shape[..] else { return None };
        let names = meta.out_labels.first()?;
        let mut columns = vec![Vec::new(); series];
        for (column, feature) in meta.features.iter().enumerate() {
            if let Some(own) = series_of(&feature.name, names).and_then(|at| columns.get_mut(at)) {
                own.push(column);
            }
        }
        (series > 0 && steps > 0).then_some(Self { columns, steps, cells: series * steps })
    }

    /// Inputs of the history of each series.
    pub fn columns(&self) -> &[Vec<usize>] {
        &self.columns
    }

    /// Whether each series of a row lacks its history, by which of the row's inputs are valid.
    fn lacking(&self, is_valid: impl Fn(usize) -> bool) -> Vec<bool> {
        self.columns.iter().map(|columns| !columns.iter().any(|column| is_valid(*column))).collect()
    }

    /// Takes the numbers of series without history out of a row's: all cells, once for every level. Whether there are such.
    pub fn blank(&self, is_valid: impl Fn(usize) -> bool, values: &mut [f32]) -> bool {
        let lacking = self.lacking(is_valid);
        let is_out = |cell: usize| lacking[cell % self.cells / self.steps];
        values.iter_mut().enumerate().filter(|(cell, _)| is_out(*cell)).for_each(|(_, value)| *value = f32::NAN);
        lacking.contains(&true)
    }

    /// Blanks values as [`Self::blank`] does, and says so in the status of a row that is predicted.
    pub fn hold(&self, is_valid: impl Fn(usize) -> bool, values: &mut [f32], status: &mut u8) {
        if self.blank(is_valid, values) && *status == RowStatus::Predicted as u8 {
            *status = RowStatus::NoHistory as u8;
        }
    }

    /// Returns the status of a row by its inputs `x`, NaN where missing, and its answer, in which series without history lose their
    /// numbers. `blind` are the cells that have no answer in any row.
    pub fn judged(&self, x: &[f32], answer: &mut [f32], blind: &[bool]) -> RowStatus {
        let is_valid = |column: usize| x.get(column).is_some_and(|value| value.is_finite());
        let lacking = self.lacking(is_valid);
        let is_blind = |cell: usize| blind.get(cell) == Some(&true);
        let without: Vec<bool> = (0..self.cells).map(|cell| lacking[cell / self.steps] || is_blind(cell)).collect();
        self.blank(is_valid, answer);
        match RowStatus::judged(x, answer, &without) {
            RowStatus::Predicted if lacking.contains(&true) => RowStatus::NoHistory,
            status => status,
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
        let mut values = [1.0f32; 8];
        let mut status = RowStatus::Predicted as u8;
        histories.hold(|column| [1, 0, 0, 1][column] != 0, &mut values, &mut status);
        assert_eq!(RowStatus::of(status), Some(RowStatus::NoHistory));
        let missing: Vec<usize> = (0..8).filter(|cell| values[*cell].is_nan()).collect();
        assert_eq!(missing, [2, 3, 6, 7]);
        let mut whole = [1.0f32; 4];
        let mut fine = RowStatus::Predicted as u8;
        histories.hold(|column| column > 0, &mut whole, &mut fine);
        assert_eq!((whole, fine), ([1.0; 4], RowStatus::Predicted as u8));
    }

    #[test]
    fn a_row_is_judged_by_the_series_that_have_a_history() {
        let histories = Histories { columns: vec![vec![0], vec![1]], steps: 1, cells: 2 };
        let judged = |x: [f32; 3], mut answer: [f32; 2], blind: &[bool]| {
            let status = histories.judged(&x, &mut answer, blind);
            (status, answer.map(|value| value.to_bits()))
        };
        let none = f32::NAN;
        let bits = f32::to_bits;
        // The last input is of the calendar.
        assert_eq!(judged([1.0, none, 5.0], [3.0, 4.0], &[]), (RowStatus::NoHistory, [bits(3.0), bits(none)]));
        // An artifact has taken the number out itself.
        assert_eq!(judged([1.0, none, 5.0], [3.0, none], &[]).0, RowStatus::NoHistory);
        assert_eq!(judged([1.0, none, 5.0], [f32::INFINITY, 4.0], &[]).0, RowStatus::NotFinite);
        assert_eq!(judged([1.0, 2.0, 5.0], [3.0, none], &[]).0, RowStatus::NotFinite);
        assert_eq!(judged([1.0, 2.0, 5.0], [3.0, none], &[false, true]).0, RowStatus::Predicted);
        assert_eq!(judged([none; 3], [3.0, 4.0], &[]).0, RowStatus::NoInput);
    }
}
