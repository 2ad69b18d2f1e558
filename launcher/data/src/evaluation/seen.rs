//! Earlier use of rows by a run: for training, for validation, or not at all.
//!
//! Two rows are identical if their inputs and targets are equal, and their ids or names where the source has such a column. A row that
//! occurs several times is seen as often as the run had it. Where the source has no ids and many of the run's own rows are equal (a
//! table of categories and small integers), equal cells do not identify a row, and the earlier use is unknown.

use enn_common::{
    fs::mmap::bytes_of,
    staged::{Split, Staged},
};
use std::collections::{HashMap, HashSet};
use twox_hash::XxHash3_64;

/// Maximum percentage of the run's rows that equal another of its rows, up to which equal cells identify a row.
const EQUAL_PERCENT_MAX: f64 = 1.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    Trained,
    /// The run chose its weights by the row.
    Validated,
    Never,
}

impl Seen {
    pub const ALL: [Self; 3] = [Self::Trained, Self::Validated, Self::Never];

    pub fn name(self) -> &'static str {
        match self {
            Self::Trained => "trained on",
            Self::Validated => "validated on",
            Self::Never => "never seen",
        }
    }
}

/// Returns the earlier use of each row of `staged` by the run whose data are `run`; `has_ids` states whether the source has a column of
/// row ids. `None` where it is unknown.
pub fn seen(staged: &Staged, run: &Staged, has_ids: bool) -> Option<Vec<Seen>> {
    let is_numbered = |one: &Staged| one.row_id().iter().copied().eq(0..one.rows() as i64);
    // Rows that were numbered in the order of their file are not identified by their numbers.
    let by_id = has_ids && run.meta().sources.is_empty() && !(is_numbered(staged) && is_numbered(run));
    let by_name = has_ids && !staged.meta().row_names.is_empty() && !run.meta().row_names.is_empty();
    // Staging removed targets that no training row has from the run's other rows, too.
    let is_taught = |cell: &usize| run.meta().y_stats.get(*cell).is_none_or(|stats| stats.n > 0);
    let taught: Vec<usize> = (0..staged.outputs()).filter(is_taught).collect();
    let mut buffer = Vec::new();
    let mut key = |of: &Staged, row: usize| {
        buffer.clear();
        let bits =
            |values: &[f32], valid: &[u8], at: usize| if valid[at] != 0 { values[at].to_bits() } else { u32::MAX };
        buffer.extend((0..of.features()).map(|column| bits(of.x_row(row), of.x_mask_row(row), column)));
        buffer.extend(taught.iter().map(|cell| bits(of.y_row(row), of.y_mask_row(row), *cell)));
        let content = XxHash3_64::oneshot(bytes_of(&buffer));
        match (by_name, by_id) {
            (true, _) => XxHash3_64::oneshot_with_seed(content, of.meta().row_names[row].as_bytes()),
            (false, true) => XxHash3_64::oneshot_with_seed(content, &of.row_id()[row].to_le_bytes()),
            (false, false) => content,
        }
    };
    if !has_ids && !are_distinct((0..run.rows()).map(|row| key(run, row))) {
        return None;
    }
    let mut places: HashMap<u64, Vec<usize>> = HashMap::new();
    // Of several equal rows the first is matched first.
    (0..staged.rows()).rev().for_each(|row| places.entry(key(staged, row)).or_default().push(row));
    let mut found = vec![Seen::Never; staged.rows()];
    for (split, is) in [(Split::Train, Seen::Trained), (Split::Val, Seen::Validated)] {
        for row in run.rows_of(split) {
            if let Some(place) = places.get_mut(&key(run, row)).and_then(Vec::pop) {
                found[place] = is;
            }
        }
    }
    Some(found)
}

/// Whether the share of repeated keys is at most `EQUAL_PERCENT_MAX`.
fn are_distinct(keys: impl ExactSizeIterator<Item = u64>) -> bool {
    let rows = keys.len();
    let distinct: HashSet<u64> = keys.collect();
    (rows - distinct.len()) as f64 <= EQUAL_PERCENT_MAX / 100.0 * rows as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::fixture::Table;
    use enn_common::staged::meta::FeatureMeta;

    fn staged(dir: &std::path::Path, x: &[f32], split: &[u8]) -> Staged {
        let table = Table {
            rows: x.len(),
            features: vec![FeatureMeta { name: "x".into(), ..FeatureMeta::default() }],
            out_shape: vec![1],
            out_labels: vec![vec!["y".to_owned()]],
            x: x.to_vec(),
            y: x.iter().map(|value| 2.0 * value).collect(),
            split: split.to_vec(),
            persistence: None,
        };
        Staged::open(&table.write(dir)).unwrap()
    }

    #[test]
    fn rows_are_seen_wherever_they_are_and_as_often_as_the_run_had_them() {
        let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let run = staged(one.path(), &[1.0, 2.0, f32::NAN, 4.0, 5.0], &[0, 1, 0, 2, 0]);
        let data = staged(two.path(), &[5.0, 9.0, 2.0, 1.0, 1.0, f32::NAN, 4.0], &[2; 7]);
        use Seen::{Never, Trained, Validated};
        // The second 1 and the run's own test row are new to it.
        let expected = [Trained, Never, Validated, Trained, Never, Trained, Never];
        assert_eq!(seen(&data, &run, false).unwrap(), expected);
        assert_eq!(seen(&data, &run, true).unwrap(), expected, "numbers in the order of a file are no ids");
    }

    #[test]
    fn equal_cells_do_not_make_a_row_another_one_where_most_rows_are_equal() {
        let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let cells: Vec<f32> = (0..40).map(|row| (row % 2) as f32).collect();
        let run = staged(one.path(), &cells, &[0; 40]);
        let data = staged(two.path(), &cells[..4], &[2; 4]);
        assert_eq!(seen(&data, &run, false), None);
        assert_eq!(seen(&data, &run, true), Some(vec![Seen::Trained; 4]), "with ids they are rows of their own");
    }
}
