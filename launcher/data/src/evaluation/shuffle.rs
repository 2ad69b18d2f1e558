//! Data in which one input is shuffled: permutation importance is the rise of the error.
//!
//! All staged columns that are made of one source column (every step of its history, sine and cosine, each of its labels) are one input
//! and move together, so that each row gets the whole input of another row. Several shuffles are stacked into one directory, which is
//! predicted at once.

use crate::stage::{StageError, hash_order};
use enn_common::{
    fs::mmap::bytes_of,
    staged::{ArrayName, Split, Staged, StagedMeta, StagedWriter},
};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

/// Maximum rows, and maximum input numbers, that are predicted at once.
const ROWS_MAX: usize = 1_000_000;
const VALUES_MAX: usize = 1 << 29;
/// Minimum number of rows that are shuffled among each other: a shuffle of fewer rows changes little, of one row nothing.
const COPY_ROWS_MIN: usize = 256;

/// A staged directory of shuffled copies, stacked along the row axis.
#[derive(Debug)]
pub struct Shuffled {
    pub dir: PathBuf,
    pub rows: Vec<usize>,
}

/// Returns the inputs: the name of each, and the staged columns that are made of it.
pub fn inputs(meta: &StagedMeta) -> Vec<(String, Vec<usize>)> {
    let mut all: Vec<(String, Vec<usize>)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (column, feature) in meta.features.iter().enumerate() {
        let place = *places.entry(feature.source()).or_insert(all.len());
        if place == all.len() {
            all.push((feature.source().to_owned(), Vec::new()));
        }
        all[place].1.push(column);
    }
    all
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShufflePlan {
    /// Rows of a copy.
    pub rows: usize,
    pub inputs: usize,
}

impl ShufflePlan {
    /// Plans `repeats` shuffles of each of `inputs` inputs of `width` staged columns together, over at most `rows` rows. All inputs are
    /// predicted at once if the bounds allow it; otherwise rows are sampled, and then inputs are predicted in several batches.
    pub fn new(inputs: usize, repeats: usize, rows: usize, width: usize) -> Self {
        let most = (VALUES_MAX / width.max(1)).min(ROWS_MAX);
        let rows = rows.min((most / (1 + inputs * repeats)).max(COPY_ROWS_MIN)).max(1);
        Self { rows, inputs: ((most / rows).saturating_sub(1) / repeats.max(1)).clamp(1, inputs.max(1)) }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Shuffle<'a> {
    pub staged: &'a Staged,
    pub rows: &'a [usize],
    /// Maximum number of rows in a copy; of more rows a random sample is taken.
    pub rows_max: usize,
    /// Copies per input, each with another permutation.
    pub repeats: usize,
    pub seed: u64,
}

impl Shuffle<'_> {
    /// Writes below `out` an unchanged copy of the rows, then `repeats` copies for each of `inputs` with that input shuffled. `first` is
    /// the number of inputs in earlier calls.
    ///
    /// # Errors
    /// A failed file operation.
    pub fn write(&self, first: usize, inputs: &[(String, Vec<usize>)], out: &Path) -> Result<Shuffled, StageError> {
        let Self { staged, rows, rows_max, repeats, seed } = *self;
        let mut rows: Vec<usize> =
            hash_order(0..rows.len() as i64, seed).into_iter().map(|place| rows[place]).collect();
        rows.truncate(rows_max.max(1));
        rows.sort_unstable();
        let width = staged.features();
        let count = rows.len();
        let writer = StagedWriter::create(out)?;
        let x = writer.array(ArrayName::X, &[width as u64])?;
        let mask = writer.array(ArrayName::XMask, &[width as u64])?;
        let copies = 1 + inputs.len() * repeats;
        for copy in 0..copies {
            let mut values = Vec::with_capacity(count * width);
            let mut valid = Vec::with_capacity(count * width);
            for row in &rows {
                values.extend_from_slice(staged.x_row(*row));
                valid.extend_from_slice(staged.x_mask_row(*row));
            }
            if copy > 0 {
                let columns = &inputs[(copy - 1) / repeats].1;
                let order = hash_order(0..count as i64, seed.wrapping_add((first * repeats + copy) as u64));
                for (at, from) in order.into_iter().enumerate() {
                    for column in columns {
                        values[at * width + column] = staged.x_row(rows[from])[*column];
                        valid[at * width + column] = staged.x_mask_row(rows[from])[*column];
                    }
                }
            }
            let start = (copy * count) as u64;
            x.write_rows(start, bytes_of(&values))?;
            mask.write_rows(start, &valid)?;
        }
        let total = (copies * count) as u64;
        let ids = writer.array(ArrayName::RowId, &[])?;
        let split = writer.array(ArrayName::Split, &[])?;
        ids.write_rows(0, bytes_of(&(0..total as i64).collect::<Vec<i64>>()))?;
        split.write_rows(0, &vec![Split::Test as u8; total as usize])?;
        for array in [x, mask, ids, split] {
            array.finish(total)?;
        }
        let mut meta = staged.meta().clone();
        meta.digest = blake3::hash(format!("{} shuffled {seed} {repeats} {count} {first}", meta.digest).as_bytes())
            .to_hex()
            .to_string();
        // The copies are rows to predict, without targets and weights.
        meta.rows = total;
        meta.split_rows = [0, 0, total];
        meta.row_names = Vec::new();
        meta.has_targets = false;
        meta.has_weights = false;
        Ok(Shuffled { dir: writer.finish(&meta)?, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::tests::Bench;
    use enn_common::config::data::{Feature, FeatureKind, Labels};

    #[test]
    fn what_is_made_of_one_source_column_is_one_input() {
        let csv = "t[1],t[2],n.sin,weather,when,when.x,y\n1,2,3,rain;wind,2020-01-01,1,1\n2,4,5,,2020-05-02,2,2\n3,1,4,wind,2021-01-01,3,3\n";
        let mut bench = Bench::rows("t.csv", csv.as_bytes());
        let labels = FeatureKind::Labels(Labels { separator: ';', empty_is_missing: false });
        let numbers = ["t[1]", "t[2]", "n.sin", "when.x"].map(|name| Feature::new(name, FeatureKind::Number));
        bench.layout().features = numbers.to_vec();
        bench.layout().features.extend([Feature::new("weather", labels), Feature::new("when", FeatureKind::Time)]);
        let (staged, arrays) = bench.stage();
        let found = inputs(&staged.meta);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["t[1]", "t[2]", "n.sin", "when.x", "weather", "when"]);
        assert_eq!(found[4].1, [4, 5]);
        assert_eq!(found[5].1, (6..arrays.features()).collect::<Vec<_>>());
    }

    #[test]
    fn many_inputs_are_predicted_in_batches_and_have_rows_to_shuffle() {
        assert_eq!(ShufflePlan::new(10, 5, 2_000, 10), ShufflePlan { rows: 2_000, inputs: 10 });
        assert_eq!(ShufflePlan::new(10, 5, 1 << 30, 10), ShufflePlan { rows: 1_000_000 / 51, inputs: 10 });
        for (inputs, width) in [(20_000, 20_000), (600_000, 600_000), (3, 2_000_000)] {
            let plan = ShufflePlan::new(inputs, 5, 100_000, width);
            assert!(plan.rows >= 50 && plan.inputs >= 1, "{plan:?}");
            assert!(plan.rows * (1 + plan.inputs * 5) <= ROWS_MAX.max(6 * plan.rows), "{plan:?}");
        }
        assert_eq!(ShufflePlan::new(20_000, 5, 100_000, 20_000).rows, COPY_ROWS_MIN);
    }

    #[test]
    fn a_shuffled_input_moves_whole() {
        let rows: String = (0..40).map(|row| format!("{row},{},1,2\n", ["a;b", "", "c", "a;b;c"][row % 4])).collect();
        let mut bench = Bench::rows("t.csv", format!("n,w,y,weight\n{rows}").as_bytes());
        bench.config.weight = Some("weight".into());
        let labels = FeatureKind::Labels(Labels { separator: ';', empty_is_missing: true });
        bench.layout().features = vec![Feature::new("w", labels), Feature::new("n", FeatureKind::Number)];
        let (staged, arrays) = bench.stage();
        let inputs = inputs(&staged.meta);
        let rows: Vec<usize> = (0..40).collect();
        let shuffle = Shuffle { staged: &arrays, rows: &rows, rows_max: 1000, repeats: 2, seed: 7 };
        let found = shuffle.write(0, &inputs, &bench.dir.path().join("shuffled")).unwrap();
        let copies = Staged::open(&found.dir).unwrap();
        assert_eq!(copies.rows(), 40 * (1 + 2 * 2));
        let of = |staged: &Staged, row: usize| {
            let cells = staged.x_row(row).iter().zip(staged.x_mask_row(row));
            cells.map(|(cell, valid)| (*valid != 0).then_some(*cell)).collect::<Vec<_>>()
        };
        let labels = |row: Vec<Option<f32>>| row[..3].to_vec();
        let sorted = |mut rows: Vec<Vec<Option<f32>>>| {
            rows.sort_by(|a, b| a.partial_cmp(b).unwrap());
            rows
        };
        let whole: Vec<Vec<Option<f32>>> = (0..40).map(|row| labels(of(&arrays, row))).collect();
        for copy in [1, 2] {
            let moved: Vec<_> = (0..40).map(|row| of(&copies, copy * 40 + row)).collect();
            assert!((0..40).all(|row| moved[row][3] == of(&arrays, row)[3]), "the other input stays");
            let moved: Vec<_> = moved.into_iter().map(labels).collect();
            assert_ne!(moved, whole);
            assert_eq!(sorted(moved), sorted(whole.clone()), "no row has labels of two");
        }
    }
}
