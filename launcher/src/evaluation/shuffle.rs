//! Data in which one input is shuffled: how much worse forecasts become says how much the input matters.
//!
//! All staged columns that are made of one source column (every step of its history, sine and cosine, each of its labels) are one input
//! and move together, so that each row gets the whole input of another row. Several shuffles are stacked into one directory, which is
//! predicted at once.

use crate::stage::StageError;
use enn_common::{
    config::data::{FeatureKind, Layout},
    fs::mmap::bytes_of,
    staged::{ArrayName, Split, Staged, StagedMeta, StagedWriter, meta::FeatureMeta},
};
use std::path::{Path, PathBuf};
use twox_hash::XxHash3_64;

/// A staged directory of shuffled copies, one below the other.
#[derive(Debug)]
pub struct Shuffled {
    /// The directory.
    pub dir: PathBuf,
    /// Rows of the original that every copy has.
    pub rows: Vec<usize>,
}

/// The inputs: name, and the staged columns made of it.
pub fn inputs(meta: &StagedMeta, layout: &Layout) -> Vec<(String, Vec<usize>)> {
    let mut all: Vec<(String, Vec<usize>)> = Vec::new();
    for (column, feature) in meta.features.iter().enumerate() {
        let source = source_of(feature, layout);
        match all.iter_mut().find(|(name, _)| name == source) {
            Some((_, columns)) => columns.push(column),
            None => all.push((source.to_owned(), vec![column])),
        }
    }
    all
}

/// What people call the source of a staged column.
fn source_of<'a>(feature: &'a FeatureMeta, layout: &'a Layout) -> &'a str {
    let name = feature.name.as_str();
    match layout {
        Layout::Arrays(_) => name,
        Layout::Windows(_) => {
            let stem = name.split('[').next().unwrap_or_default();
            stem.strip_suffix(".sin").or_else(|| stem.strip_suffix(".cos")).unwrap_or(stem)
        }
        Layout::Rows(rows) => {
            let mut times = rows.features.iter().filter(|own| own.kind == FeatureKind::Time).map(|own| &own.column);
            let is_part = |time: &&String| name.strip_prefix(time.as_str()).is_some_and(|part| part.starts_with('.'));
            match &feature.label {
                Some(label) => &label.column,
                None if rows.features.iter().any(|own| own.column == name) => name,
                None => times.find(is_part).map_or(name, String::as_str),
            }
        }
    }
}

/// Writes below `out` a copy of at most `rows_max` of the `rows` as they are, then for every one of `inputs` `repeats` copies with it
/// shuffled by `seed`.
///
/// # Errors
/// The disk refuses something.
pub fn shuffled(
    (staged, rows): (&Staged, &[usize]),
    inputs: &[(String, Vec<usize>)],
    (repeats, seed): (usize, u64),
    rows_max: usize,
    out: &Path,
) -> Result<Shuffled, StageError> {
    let mut rows: Vec<usize> = permutation(rows.len(), seed).into_iter().map(|place| rows[place]).collect();
    rows.truncate(rows_max.max(1));
    rows.sort_unstable();
    let (width, count) = (staged.features(), rows.len());
    let writer = StagedWriter::create(out)?;
    let (x, mask) = (writer.array(ArrayName::X, &[width as u64])?, writer.array(ArrayName::XMask, &[width as u64])?);
    let copies = 1 + inputs.len() * repeats;
    for copy in 0..copies {
        let (mut values, mut valid) = (Vec::with_capacity(count * width), Vec::with_capacity(count * width));
        for row in &rows {
            values.extend_from_slice(staged.x_row(*row));
            valid.extend_from_slice(staged.x_mask_row(*row));
        }
        if copy > 0 {
            let columns = &inputs[(copy - 1) / repeats].1;
            let order = permutation(count, seed.wrapping_add(copy as u64));
            for (at, from) in order.into_iter().enumerate() {
                for column in columns {
                    values[at * width + column] = staged.x_row(rows[from])[*column];
                    valid[at * width + column] = staged.x_mask_row(rows[from])[*column];
                }
            }
        }
        let first = (copy * count) as u64;
        x.write_rows(first, bytes_of(&values))?;
        mask.write_rows(first, &valid)?;
    }
    let total = (copies * count) as u64;
    let (ids, split) = (writer.array(ArrayName::RowId, &[])?, writer.array(ArrayName::Split, &[])?);
    ids.write_rows(0, bytes_of(&(0..total as i64).collect::<Vec<i64>>()))?;
    split.write_rows(0, &vec![Split::Test as u8; total as usize])?;
    for array in [x, mask, ids, split] {
        array.finish(total)?;
    }
    let mut meta = staged.meta().clone();
    meta.digest =
        blake3::hash(format!("{} shuffled {seed} {repeats} {count}", meta.digest).as_bytes()).to_hex().to_string();
    (meta.rows, meta.split_rows, meta.has_targets, meta.row_names) = (total, [0, 0, total], false, Vec::new());
    Ok(Shuffled { dir: writer.finish(&meta)?, rows })
}

/// 0..n in the order of keyed hashes.
fn permutation(n: usize, seed: u64) -> Vec<usize> {
    let mut keyed: Vec<(u64, usize)> =
        (0..n).map(|row| (XxHash3_64::oneshot_with_seed(seed, &(row as u64).to_le_bytes()), row)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, row)| row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::tests::Bench;
    use enn_common::config::data::{ArraysLayout, Feature, Labels};

    #[test]
    fn what_is_made_of_one_source_column_is_one_input() {
        let csv = "t[1],t[2],n.sin,weather,when,when.x,y\n1,2,3,rain;wind,2020-01-01,1,1\n2,4,5,,2020-05-02,2,2\n3,1,4,wind,2021-01-01,3,3\n";
        let mut bench = Bench::rows("t.csv", csv.as_bytes());
        let labels = FeatureKind::Labels(Labels { separator: ';', empty_is_missing: false });
        let numbers = ["t[1]", "t[2]", "n.sin", "when.x"].map(|name| Feature::new(name, FeatureKind::Number));
        bench.layout().features = numbers.to_vec();
        bench.layout().features.extend([Feature::new("weather", labels), Feature::new("when", FeatureKind::Time)]);
        let (staged, arrays) = bench.stage();
        let found = inputs(&staged.meta, &bench.config.layout);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["t[1]", "t[2]", "n.sin", "when.x", "weather", "when"]);
        assert_eq!(found[4].1, [4, 5]);
        assert_eq!(found[5].1, (6..arrays.features()).collect::<Vec<_>>());
        let layout = Layout::Arrays(ArraysLayout { x: "x".into(), y: "y".into(), row_id: None });
        assert_eq!(inputs(&staged.meta, &layout).len(), arrays.features(), "columns of an array are an input each");
    }

    #[test]
    fn a_shuffled_input_moves_whole() {
        let rows: String = (0..40).map(|row| format!("{row},{},1\n", ["a;b", "", "c", "a;b;c"][row % 4])).collect();
        let mut bench = Bench::rows("t.csv", format!("n,w,y\n{rows}").as_bytes());
        let labels = FeatureKind::Labels(Labels { separator: ';', empty_is_missing: true });
        bench.layout().features = vec![Feature::new("w", labels), Feature::new("n", FeatureKind::Number)];
        let (staged, arrays) = bench.stage();
        let inputs = inputs(&staged.meta, &bench.config.layout);
        let rows: Vec<usize> = (0..40).collect();
        let found = shuffled((&arrays, &rows), &inputs, (2, 7), 1000, &bench.dir.path().join("shuffled")).unwrap();
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
