//! Data in which one input is shuffled: how much worse forecasts become says how much the input matters.
//!
//! All staged columns that are made of one source column (every step of its history, sine and cosine) are one input and move
//! together, so that each row gets the whole input of another row. Several shuffles are stacked into one directory, which is
//! predicted at once.

use crate::stage::StageError;
use enn_common::{
    fs::mmap::bytes_of,
    staged::{ArrayName, Split, Staged, StagedMeta, StagedWriter},
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
pub fn inputs(meta: &StagedMeta) -> Vec<(String, Vec<usize>)> {
    let mut all: Vec<(String, Vec<usize>)> = Vec::new();
    for (column, feature) in meta.features.iter().enumerate() {
        let stem = feature.name.split('[').next().unwrap_or_default();
        let stem = stem.strip_suffix(".sin").or_else(|| stem.strip_suffix(".cos")).unwrap_or(stem);
        match all.iter_mut().find(|(name, _)| name == stem) {
            Some((_, columns)) => columns.push(column),
            None => all.push((stem.to_owned(), vec![column])),
        }
    }
    all
}

/// Writes below `out` a copy of at most `rows_max` rows as they are, then for every one of `inputs` `repeats` copies with it
/// shuffled by `seed`.
///
/// # Errors
/// The disk refuses something.
pub fn shuffled(
    staged: &Staged,
    inputs: &[(String, Vec<usize>)],
    (repeats, seed): (usize, u64),
    rows_max: usize,
    out: &Path,
) -> Result<Shuffled, StageError> {
    let mut rows = permutation(staged.rows(), seed);
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
