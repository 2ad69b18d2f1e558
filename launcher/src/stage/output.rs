//! The arrays being written: rows in at any place, rows and columns out again, then whole.

use super::{bits::Bits, coarse, error::StageError};
use enn_common::{
    fs::{FileError, mmap::bytes_of},
    staged::{
        ArrayName, ArrayWriter, Split, StagedMeta, StagedWriter,
        unfinished::{HASHES, Kept, Mark},
    },
};
use std::{
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

/// Bytes of x that are moved or read at once.
const CHUNK_BYTES: usize = 2 * 1024 * 1024;

/// A staged directory in the making.
#[derive(Debug)]
pub(crate) struct Output {
    writer: StagedWriter,
    x: ArrayWriter,
    x_mask: ArrayWriter,
    targets: Option<(ArrayWriter, ArrayWriter)>,
    row_id: ArrayWriter,
    split: ArrayWriter,
    weight: Option<ArrayWriter>,
    /// Samples.
    pub rows: u64,
    /// Rows of the sources that were read by an attempt before.
    pub resumed_rows: u64,
    /// Input columns F.
    pub features: usize,
    /// Target cells O.
    pub outputs: usize,
    /// Whether a large number of a target became another one.
    pub rounded: AtomicBool,
}

/// Arrays that not every directory has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extras {
    /// Targets and their mask.
    pub targets: bool,
    /// Weights of the samples.
    pub weight: bool,
}

/// Some samples, row-major. Empty `y` where there are no targets; `split` may be empty when it is written later.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// Inputs (n, F), NaN where missing.
    pub x: Vec<f32>,
    /// Targets (n, O), NaN where missing.
    pub y: Vec<f32>,
    /// Identities (n).
    pub ids: Vec<i64>,
    /// Splits (n).
    pub split: Vec<u8>,
    /// Weights (n), where samples have weights.
    pub weight: Vec<f32>,
}

impl Output {
    /// Goes on with the arrays that the marks tell of; forgets both where the arrays are not what the marks say.
    pub(crate) fn resume(
        (writer, marks): (StagedWriter, Vec<Mark>),
        features: usize,
        out_shape: &[usize],
        extras: Extras,
    ) -> Result<(Self, Vec<Mark>), StageError> {
        let mut output = Self::create(writer, features, out_shape, extras)?;
        // A pass that only looks writes no rows.
        let rows = marks.iter().rfind(|mark| !matches!(mark.kept, Kept::Labels { .. }));
        let Some(last) = rows else { return Ok((output, marks)) };
        if output.has(last) {
            output.resumed_rows = last.rows;
            return Ok((output, marks));
        }
        let mut writer = output.writer;
        writer.start_over()?;
        Ok((Self::create(writer, features, out_shape, extras)?, Vec::new()))
    }

    /// Begins the arrays of a directory.
    pub(crate) fn create(
        writer: StagedWriter,
        features: usize,
        out_shape: &[usize],
        extras: Extras,
    ) -> Result<Self, StageError> {
        let width = [features as u64];
        let grid: Vec<u64> = out_shape.iter().map(|size| *size as u64).collect();
        let targets = match extras.targets {
            true => Some((writer.array(ArrayName::Y, &grid)?, writer.array(ArrayName::YMask, &grid)?)),
            false => None,
        };
        Ok(Self {
            x: writer.array(ArrayName::X, &width)?,
            x_mask: writer.array(ArrayName::XMask, &width)?,
            targets,
            row_id: writer.array(ArrayName::RowId, &[])?,
            split: writer.array(ArrayName::Split, &[])?,
            weight: extras.weight.then(|| writer.array(ArrayName::Weight, &[])).transpose()?,
            writer,
            rows: 0,
            resumed_rows: 0,
            features,
            outputs: out_shape.iter().product(),
            rounded: AtomicBool::new(false),
        })
    }

    /// Notes whether an f32 makes other numbers of some that are far from 0, in targets.
    pub(crate) fn look_for_rounding(&self, mut targets: impl Iterator<Item = f64>) {
        if !self.rounded.load(Relaxed) && targets.any(coarse::is_rounded) {
            self.rounded.store(true, Relaxed);
        }
    }

    /// All arrays.
    fn arrays(&self) -> impl Iterator<Item = &ArrayWriter> {
        let targets = self.targets.iter().flat_map(|(y, mask)| [y, mask]);
        [&self.x, &self.x_mask, &self.row_id, &self.split].into_iter().chain(targets).chain(&self.weight)
    }

    /// Whether all is there that a mark counts.
    fn has(&self, mark: &Mark) -> bool {
        let hashes = match mark.kept {
            Kept::Rows { hashes, .. } | Kept::Arrays { hashes } => hashes,
            Kept::None | Kept::Labels { .. } | Kept::Keys { .. } | Kept::Cells { .. } => 0,
        };
        let hashed = std::fs::metadata(self.dir().join(HASHES)).map_or(0, |found| found.len());
        self.arrays().all(|array| array.holds(mark.rows)) && hashed >= hashes * 16
    }

    /// Makes durable what was written so far.
    pub(crate) fn sync(&self) -> Result<(), StageError> {
        self.arrays().try_for_each(ArrayWriter::sync)?;
        let path = self.dir().join(HASHES);
        match File::open(&path) {
            Ok(file) => Ok(file.sync_data().map_err(FileError::of("sync", &path))?),
            Err(_) => Ok(()),
        }
    }

    /// What keeps the marks.
    pub(crate) fn writer(&self) -> &StagedWriter {
        &self.writer
    }

    /// Says that rows are changed where they lie from now on.
    pub(crate) fn settle(&self) -> Result<(), StageError> {
        Ok(self.writer.forget()?)
    }

    /// Place for temporary files.
    pub(crate) fn dir(&self) -> &Path {
        self.writer.dir()
    }

    /// Whether there are targets.
    pub(crate) fn has_targets(&self) -> bool {
        self.targets.is_some()
    }

    /// Whether samples have weights.
    pub(crate) fn has_weights(&self) -> bool {
        self.weight.is_some()
    }

    /// Bytes of one sample on disk.
    pub(crate) fn sample_bytes(features: usize, outputs: usize) -> u64 {
        (features as u64 + outputs as u64) * 5 + 13
    }

    /// Writes samples from row `first` on; masks are made of the NaNs.
    pub(crate) fn put(&self, first: u64, samples: &Samples) -> Result<(), StageError> {
        self.put_numbers(first, &samples.x, &samples.y)?;
        self.row_id.write_rows(first, bytes_of(&samples.ids))?;
        if let Some(weight) = &self.weight {
            weight.write_rows(first, bytes_of(&samples.weight))?;
        }
        if samples.split.is_empty() {
            // Decided later; rows may be dropped before, so the array must be there.
            return self.put_split(first, &vec![0; samples.ids.len()]);
        }
        self.put_split(first, &samples.split)
    }

    /// Writes x anew.
    pub(crate) fn put_x(&self, first: u64, x: &[f32]) -> Result<(), StageError> {
        Ok(self.x.write_rows(first, bytes_of(x))?)
    }

    /// Writes inputs and targets anew; masks are made of the NaNs.
    pub(crate) fn put_numbers(&self, first: u64, x: &[f32], y: &[f32]) -> Result<(), StageError> {
        put_masked(&self.x, &self.x_mask, first, x)?;
        self.targets.as_ref().map_or(Ok(()), |(array, mask)| put_masked(array, mask, first, y))
    }

    /// Writes splits.
    pub(crate) fn put_split(&self, first: u64, split: &[u8]) -> Result<(), StageError> {
        Ok(self.split.write_rows(first, split)?)
    }

    /// Gives ranges of samples their splits.
    pub(crate) fn divide(&self, parts: &[(Range<u64>, Split)]) -> Result<(), StageError> {
        for (range, split) in parts {
            for chunk in chunks(range.clone(), CHUNK_BYTES as u64) {
                self.put_split(chunk.start, &vec![*split as u8; (chunk.end - chunk.start) as usize])?;
            }
        }
        Ok(())
    }

    /// Numbers the samples from 0: their row ids are of no use.
    pub(crate) fn number(&self, rows: Range<u64>, first_id: i64) -> Result<(), StageError> {
        for chunk in chunks(rows.clone(), CHUNK_BYTES as u64 / 8) {
            let offset = (chunk.start - rows.start) as i64 + first_id;
            let ids: Vec<i64> = (0..(chunk.end - chunk.start) as i64).map(|index| offset + index).collect();
            self.row_id.write_rows(chunk.start, bytes_of(&ids))?;
        }
        Ok(())
    }

    /// Ranges of rows that are read at once.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Range<u64>> + Send + use<> {
        row_chunks(self.rows, self.features, self.outputs)
    }

    /// Reads inputs (n, F).
    pub(crate) fn read_x(&self, rows: Range<u64>) -> Result<Vec<f32>, StageError> {
        read_numbers(&self.x, rows, self.features)
    }

    /// Reads targets (n, O); empty when there are none.
    pub(crate) fn read_y(&self, rows: Range<u64>) -> Result<Vec<f32>, StageError> {
        self.targets.as_ref().map_or(Ok(Vec::new()), |(y, _)| read_numbers(y, rows, self.outputs))
    }

    /// Reads splits (n).
    pub(crate) fn read_split(&self, rows: Range<u64>) -> Result<Vec<u8>, StageError> {
        let mut split = vec![0; (rows.end - rows.start) as usize];
        self.split.read_rows(rows.start, &mut split)?;
        Ok(split)
    }

    /// Whether a sample of training has a weight above 0; true without weights.
    pub(crate) fn any_training_weight(&self) -> Result<bool, StageError> {
        let Some(weight) = &self.weight else { return Ok(true) };
        for rows in chunks(0..self.rows, CHUNK_BYTES as u64 / 4) {
            let split = self.read_split(rows.clone())?;
            let weights = read_numbers(weight, rows, 1)?;
            if weights.iter().zip(split).any(|(weight, split)| *weight > 0.0 && split == Split::Train as u8) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes rows out; those behind move up.
    pub(crate) fn drop_rows(&mut self, dropped: &Bits) -> Result<(), StageError> {
        let count = dropped.count();
        if count == 0 {
            return Ok(());
        }
        self.settle()?;
        for array in self.arrays() {
            let width = array.row_bytes() as usize;
            let mut to = 0;
            for rows in chunks(0..self.rows, (CHUNK_BYTES / width.max(1)) as u64) {
                let mut bytes = vec![0; (rows.end - rows.start) as usize * width];
                array.read_rows(rows.start, &mut bytes)?;
                let mut kept = 0;
                for row in rows.clone().filter(|row| !dropped.get(*row)) {
                    let at = (row - rows.start) as usize * width;
                    bytes.copy_within(at..at + width, kept);
                    kept += width;
                }
                array.write_rows(to, &bytes[..kept])?;
                to += (kept / width.max(1)) as u64;
            }
        }
        self.rows -= count;
        Ok(())
    }

    /// Takes the inputs out that are not in `keep`; those behind move up.
    pub(crate) fn keep_columns(&mut self, keep: &[bool]) -> Result<(), StageError> {
        self.settle()?;
        let columns: Vec<usize> = (0..self.features).filter(|column| keep[*column]).collect();
        for (array, cell) in [(&mut self.x, 4), (&mut self.x_mask, 1)] {
            let wide = self.features * cell;
            let parts: Vec<Range<u64>> = chunks(0..self.rows, (CHUNK_BYTES / wide.max(1)) as u64).collect();
            for rows in parts {
                array.narrow(&[self.features as u64]);
                let mut bytes = vec![0; (rows.end - rows.start) as usize * wide];
                array.read_rows(rows.start, &mut bytes)?;
                let kept: Vec<u8> = bytes
                    .chunks_exact(wide)
                    .flat_map(|row| columns.iter().flat_map(|column| &row[column * cell..(column + 1) * cell]).copied())
                    .collect();
                array.narrow(&[columns.len() as u64]);
                array.write_rows(rows.start, &kept)?;
            }
            array.narrow(&[columns.len() as u64]);
        }
        self.features = columns.len();
        Ok(())
    }

    /// Makes rows of `classes` cells of targets that are the index of a class: 1 in the cell of the class, 0 elsewhere, all NaN
    /// where the target is missing. `class_of` gives a written index its class.
    pub(crate) fn widen_targets(
        &mut self,
        classes: usize,
        class_of: &dyn Fn(usize) -> Option<usize>,
    ) -> Result<(), StageError> {
        self.settle()?;
        let Some((y, mask)) = &mut self.targets else { return Ok(()) };
        let parts: Vec<Range<u64>> = chunks(0..self.rows, (CHUNK_BYTES / (4 * classes.max(1))) as u64).collect();
        // From the last rows on: what is wider comes to lie behind all that is still to be read.
        for rows in parts.into_iter().rev() {
            y.narrow(&[1]);
            let codes = read_numbers(y, rows.clone(), 1)?;
            y.narrow(&[classes as u64]);
            mask.narrow(&[classes as u64]);
            let mut wide = vec![f32::NAN; codes.len() * classes];
            for (row, code) in wide.chunks_exact_mut(classes).zip(codes).filter(|(_, code)| !code.is_nan()) {
                if let Some(class) = class_of(code as usize) {
                    row.fill(0.0);
                    row[class] = 1.0;
                }
            }
            put_masked(y, mask, rows.start, &wide)?;
        }
        self.outputs = classes;
        Ok(())
    }

    /// Makes the arrays durable, all at once, and gives the directory its name.
    pub(crate) fn finish(self, meta: &StagedMeta) -> Result<PathBuf, StageError> {
        let Self { writer, x, x_mask, targets, row_id, split, weight, rows, .. } = self;
        let mut arrays = vec![x, x_mask, row_id, split];
        arrays.extend(weight);
        arrays.extend(targets.into_iter().flat_map(|(y, mask)| [y, mask]));
        thread::scope(|scope| {
            let handles: Vec<_> = arrays.into_iter().map(|array| scope.spawn(move || array.finish(rows))).collect();
            // A panic of a thread is passed on by the scope.
            handles.into_iter().flat_map(thread::ScopedJoinHandle::join).collect::<Result<(), _>>()
        })?;
        Ok(writer.finish(meta)?)
    }
}

fn put_masked(array: &ArrayWriter, mask: &ArrayWriter, first: u64, numbers: &[f32]) -> Result<(), StageError> {
    array.write_rows(first, bytes_of(numbers))?;
    let valid: Vec<u8> = numbers.iter().map(|number| u8::from(!number.is_nan())).collect();
    Ok(mask.write_rows(first, &valid)?)
}

fn read_numbers(array: &ArrayWriter, rows: Range<u64>, width: usize) -> Result<Vec<f32>, StageError> {
    let mut bytes = vec![0; (rows.end - rows.start) as usize * width * 4];
    array.read_rows(rows.start, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|cell| f32::from_le_bytes([cell[0], cell[1], cell[2], cell[3]])).collect())
}

/// Ranges of rows that are read at once, of so many inputs and target cells.
pub(crate) fn row_chunks(
    rows: u64,
    features: usize,
    outputs: usize,
) -> impl Iterator<Item = Range<u64>> + Send + use<> {
    chunks(0..rows, (CHUNK_BYTES / (4 * features.max(outputs)).max(1)) as u64)
}

/// Ranges of at most `size` rows (at least one) that cover `rows`.
pub(crate) fn chunks(rows: Range<u64>, size: u64) -> impl Iterator<Item = Range<u64>> + Send + use<> {
    let size = size.max(1);
    (0..(rows.end - rows.start).div_ceil(size)).map(move |index| {
        let first = rows.start + index * size;
        first..(first + size).min(rows.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(out: &Path, rows: u64) -> Output {
        let extras = Extras { targets: true, weight: true };
        let mut output = Output::create(StagedWriter::create(out).unwrap(), 3, &[1, 2], extras).unwrap();
        let samples = Samples {
            x: (0..rows * 3).map(|i| if i % 7 == 0 { f32::NAN } else { i as f32 }).collect(),
            y: (0..rows * 2).map(|i| -(i as f32)).collect(),
            ids: (0..rows as i64).collect(),
            split: vec![0; rows as usize],
            weight: (0..rows).map(|row| row as f32).collect(),
        };
        output.put(0, &samples).unwrap();
        output.rows = rows;
        output
    }

    #[test]
    fn rows_and_columns_are_taken_out_of_every_array() {
        let out = tempfile::tempdir().unwrap();
        // More rows than one chunk of the narrowest array.
        let rows = CHUNK_BYTES as u64 + 10;
        let mut output = output(out.path(), rows);
        let mut dropped = Bits::new(rows);
        (0..rows).filter(|row| row % 3 == 1).for_each(|row| {
            dropped.set(row);
        });
        output.drop_rows(&dropped).unwrap();
        assert_eq!(output.rows, rows - (rows + 1) / 3);
        output.keep_columns(&[false, true, true]).unwrap();
        let last = output.rows - 1;
        // The k-th kept row was row 3(k/2) + 2(k mod 2).
        let old = |kept: u64| (kept / 2 * 3 + kept % 2 * 2) as f32;
        for kept in [0, 1, 2, last - 1, last] {
            let x = output.read_x(kept..kept + 1).unwrap();
            let expected = [old(kept) * 3.0 + 1.0, old(kept) * 3.0 + 2.0];
            for (found, expected) in x.iter().zip(expected) {
                assert!(
                    *found == expected || (found.is_nan() && (expected as u64).is_multiple_of(7)),
                    "{kept}: {found} {expected}"
                );
            }
            assert_eq!(output.read_y(kept..kept + 1).unwrap()[1], -(old(kept) * 2.0 + 1.0));
        }
    }

    #[test]
    fn chunks_cover_everything_once() {
        let parts: Vec<_> = chunks(3..10, 3).collect();
        assert_eq!(parts, [3..6, 6..9, 9..10]);
        assert_eq!(chunks(5..5, 3).count(), 0);
    }
}
