//! Another split of staged data: the arrays are shared, only the split and what is derived from the training samples differ.
//!
//! **Invariant:** statistics, missing flags and categories are those of the new training samples alone, as if the source had been
//! staged with this split; the source is not read.

use super::{Staged, error::StageError, output::row_chunks, stats};
use enn_common::{
    fs::{FileError, mmap::bytes_of},
    staged::{
        self, ArrayName, META, Split, StagedMeta, StagedWriter,
        meta::{FeatureMeta, IndexMeta, LabelMeta, SourceMeta, Stats},
    },
};
use std::{fs, path::Path};

/// New index of each category; `None` if no training sample has it.
type Map = Vec<Option<f32>>;

/// Stages the data in `base` beside it with `split` as their split, or finds them already staged.
///
/// # Errors
/// `base` is incomplete, `split` has another length or no training samples, or a file operation fails.
pub fn redivide(base: &Path, split: &[u8]) -> Result<Staged, StageError> {
    let base = staged::Staged::open(base)?;
    if split.len() != base.rows() || !split.contains(&(Split::Train as u8)) {
        return Err(StageError::NoTraining { samples: split.len() as u64 });
    }
    let out = base.dir().parent().unwrap_or(base.dir());
    let digest = digest(&base, split);
    let dir = out.join(&digest);
    if let Ok(found) = staged::Staged::open(&dir) {
        return Ok(Staged { meta: found.meta().clone(), dir, reused: true, resumed_rows: 0 });
    }
    let maps = maps(&base, split);
    let meta = meta(&base, split, &maps, digest);
    let writer = StagedWriter::create(out)?;
    let mut own = vec![ArrayName::Split.file(), META];
    if maps.iter().any(Option::is_some) {
        own.push(ArrayName::X.file());
        write_x(&base, &maps, &writer)?;
    }
    share(base.dir(), writer.dir(), &own)?;
    let array = writer.array(ArrayName::Split, &[])?;
    array.write_rows(0, split)?;
    array.finish(meta.rows)?;
    let dir = writer.finish(&meta)?;
    Ok(Staged { dir, meta, reused: false, resumed_rows: 0 })
}

fn digest(base: &staged::Staged, split: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(base.meta().digest.as_bytes()).update(b"redivided").update(split);
    hasher.finalize().to_hex().to_string()
}

/// Returns the new indices for every category input with a category that has no training sample. A label without training samples
/// becomes 0; declared categories do not change.
fn maps(base: &staged::Staged, split: &[u8]) -> Vec<Option<Map>> {
    let of = |(column, feature): (usize, &FeatureMeta)| {
        if feature.label.is_some() {
            let nowhere = vec![Some(0.0); 2];
            return (!seen(base, split, column, 2)[1]).then_some(nowhere);
        }
        if feature.index.is_some() {
            return None;
        }
        let seen = seen(base, split, column, feature.categories.len());
        let mut next = 0.0;
        let index = |seen: &bool| {
            seen.then(|| {
                next += 1.0;
                next - 1.0
            })
        };
        seen.contains(&false).then(|| seen.iter().map(index).collect())
    };
    base.meta().features.iter().enumerate().map(of).collect()
}

/// Returns for the first `count` codes of a column whether a training sample has them.
fn seen(base: &staged::Staged, split: &[u8], column: usize, count: usize) -> Vec<bool> {
    let mut seen = vec![false; count];
    for (row, _) in split.iter().enumerate().filter(|(_, code)| **code == Split::Train as u8) {
        let code = base.x_row(row)[column];
        // NaN, a missing category, becomes 0 as a number; its mask says it.
        if base.x_mask_row(row)[column] != 0 && (code as usize) < seen.len() {
            seen[code as usize] = true;
        }
    }
    seen
}

/// Writes the inputs with new category indices; categories without a training sample become the unknown id.
fn write_x(base: &staged::Staged, maps: &[Option<Map>], writer: &StagedWriter) -> Result<(), StageError> {
    let width = base.features();
    let array = writer.array(ArrayName::X, &[width as u64])?;
    for rows in row_chunks(base.meta().rows, width, base.outputs()) {
        let mut x = base.x()[rows.start as usize * width..rows.end as usize * width].to_vec();
        for (column, map) in maps.iter().enumerate() {
            let Some(map) = map else { continue };
            let unknown = map.iter().flatten().count() as f32;
            for code in x.iter_mut().skip(column).step_by(width).filter(|code| !code.is_nan()) {
                *code = map.get(*code as usize).copied().flatten().unwrap_or(unknown);
            }
        }
        array.write_rows(rows.start, bytes_of(&x))?;
    }
    Ok(array.finish(base.meta().rows)?)
}

fn meta(base: &staged::Staged, split: &[u8], maps: &[Option<Map>], digest: String) -> StagedMeta {
    let old = base.meta();
    let measured = stats::of_staged(base, split);
    let training = measured.split_rows[0];
    let feature = |(column, (map, moments)): (usize, (&Option<Map>, &staged::Moments))| {
        let own = &old.features[column];
        let kept = |index: usize| map.as_ref().is_none_or(|map| map[index].is_some());
        let known = own.categories.iter().enumerate().filter(|(index, _)| kept(*index));
        let has_flag =
            column > 0 && LabelMeta::share_column(old.features[column - 1].label.as_ref(), own.label.as_ref());
        let unseen = || {
            let seen = seen(base, split, column, own.categories.len()).into_iter().zip(0..);
            seen.filter(|(seen, _)| !seen).map(|(_, code)| code).collect()
        };
        FeatureMeta {
            categories: known.map(|(_, name)| name.clone()).collect(),
            has_missing: moments.n() < training && !has_flag,
            index: own.index.as_ref().map(|index| IndexMeta { unseen: unseen(), ..index.clone() }),
            ..own.clone()
        }
    };
    let stats = |(feature, moments): (&FeatureMeta, &staged::Moments)| match feature.is_measured() {
        true => moments.stats(),
        false => Stats { mean: 0.0, std: 1.0, ..moments.stats() },
    };
    StagedMeta {
        digest,
        features: maps.iter().zip(&measured.x).enumerate().map(feature).collect(),
        split_rows: measured.split_rows,
        sources: SourceMeta::count(old.sources.iter().map(|source| (source.name.clone(), source.rows())), split),
        x_stats: old.features.iter().zip(&measured.x).map(stats).collect(),
        y_stats: measured.y.iter().map(staged::Moments::stats).collect(),
        ..old.clone()
    }
}

/// Hard-links the files of `base` except `own` into `dir`; symbolic links where hard links fail.
fn share(base: &Path, dir: &Path, own: &[&str]) -> Result<(), StageError> {
    for entry in fs::read_dir(base).map_err(FileError::of("read", base))? {
        let (from, name) = entry.map(|entry| (entry.path(), entry.file_name())).map_err(FileError::of("read", base))?;
        if own.iter().any(|own| name == *own) {
            continue;
        }
        let to = dir.join(name);
        let linked = fs::hard_link(&from, &to).or_else(|_| std::os::unix::fs::symlink(&from, &to));
        linked.map_err(FileError::of("link to", &from))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::tests::Bench;
    use enn_common::config::data::{Feature, FeatureKind, SplitKind};

    /// 40 rows; category "rare" is in test rows alone, `a` is missing in a training row and in a test row.
    fn table() -> String {
        let mut text = "a,c,y,s\n".to_owned();
        for row in 0..40 {
            let split = ["train", "train", "val", "test"][row % 4];
            let category = if row % 8 == 3 { "rare" } else { ["x", "y", "z"][row % 3] };
            let a = if row == 4 || row == 7 { "NA".to_owned() } else { format!("{}.25", row * 7 % 11) };
            text.push_str(&format!("{a},{category},{},{split}\n", row * row % 17));
        }
        text
    }

    fn bench() -> Bench {
        let mut bench = Bench::rows("t.csv", table().as_bytes());
        bench.layout().features.push(Feature::new("c", FeatureKind::Category));
        bench.config.split.column = Some("s".into());
        bench
    }

    #[test]
    fn it_is_what_staging_with_that_division_makes() {
        let mut divided = bench();
        divided.config.split.kind = SplitKind::Column;
        let (_, expected) = divided.stage();
        let whole = bench();
        let (staged, base) = whole.stage();
        assert_eq!(base.meta().features[1].categories.len(), 4);
        let found = redivide(&staged.dir, expected.split()).unwrap();
        let arrays = staged::Staged::open(&found.dir).unwrap();
        let a = expected.meta();
        let b = arrays.meta();
        assert_eq!((&a.x_stats, &a.y_stats, a.split_rows), (&b.x_stats, &b.y_stats, b.split_rows));
        assert_eq!(a.features.iter().map(|f| f.has_missing).collect::<Vec<_>>(), [true, false]);
        assert_eq!(b.features.iter().map(|f| f.has_missing).collect::<Vec<_>>(), [true, false]);
        assert_eq!(b.features[1].categories.len(), 3, "the rare one is not of the training rows");
        let word = |arrays: &staged::Staged, row: usize| {
            let code = arrays.x_row(row)[1] as usize;
            arrays.meta().features[1].categories.get(code).cloned().unwrap_or_default()
        };
        for row in 0..40 {
            assert_eq!(word(&arrays, row), word(&expected, row), "row {row}");
            assert_eq!(arrays.x_row(row)[0].to_bits(), expected.x_row(row)[0].to_bits());
            assert_eq!((arrays.y_row(row), arrays.x_mask_row(row)), (expected.y_row(row), expected.x_mask_row(row)));
        }
        assert!(redivide(&staged.dir, expected.split()).unwrap().reused);
    }

    #[test]
    fn arrays_that_stay_the_same_are_not_copied() {
        use std::os::unix::fs::MetadataExt;
        let bench = bench();
        let (staged, base) = bench.stage();
        let mut split = vec![Split::Train as u8; base.rows()];
        split[0] = Split::Test as u8;
        let found = redivide(&staged.dir, &split).unwrap();
        for name in [ArrayName::X, ArrayName::Y, ArrayName::RowId] {
            let inode = |dir: &Path| fs::metadata(dir.join(name.file())).unwrap().ino();
            assert_eq!(inode(&found.dir), inode(&staged.dir), "{name:?}");
        }
        let error = redivide(&staged.dir, &[Split::Test as u8; 40]).unwrap_err().to_string();
        assert!(error.contains("no training sample"), "{error}");
    }
}
