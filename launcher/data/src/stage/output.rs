//! Arrays of a staged directory while they are written: rows are written at any index, rows and columns can be removed again.

use super::{bits::Bits, error::StageError, f32_precision};
use enn_common::{
    fs::{FileError, mmap::bytes_of},
    staged::{
        ArrayName, ArrayWriter, Split, StagedMeta, StagedWriter,
        unfinished::{HASHES, Kept, ResumePoint},
    },
};
use std::{
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

const CHUNK_BYTES: usize = 2 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Output {
    writer: StagedWriter,
    x: ArrayWriter,
    x_mask: ArrayWriter,
    targets: Option<(ArrayWriter, ArrayWriter)>,
    row_id: ArrayWriter,
    split: ArrayWriter,
    weight: Option<ArrayWriter>,
    pub rows: u64,
    pub resumed_rows: u64,
    /// Number of input columns, F.
    pub features: usize,
    /// Number of target cells, O.
    pub outputs: usize,
    /// Whether rounding to f32 changed a large number of a target.
    pub rounded: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Extras {
    pub targets: bool,
    pub weight: bool,
}

/// A batch of n samples, row-major. `y` is empty without targets; `split` is empty when it is written later.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// Inputs, shape (n, F), NaN where missing.
    pub x: Vec<f32>,
    /// Targets, shape (n, O), NaN where missing.
    pub y: Vec<f32>,
    /// Row ids, shape (n).
    pub ids: Vec<i64>,
    /// Codes of splits, shape (n).
    pub split: Vec<u8>,
    /// Weights, shape (n), or empty without weights.
    pub weight: Vec<f32>,
}

#[derive(Debug)]
pub(crate) struct PlacedSamples {
    pub first: u64,
    pub samples: Samples,
}

impl Output {
    /// Resumes with the arrays that `points` count. If the arrays are incomplete, starts over without points.
    pub(crate) fn resume(
        writer: StagedWriter,
        points: Vec<ResumePoint>,
        features: usize,
        out_shape: &[usize],
        extras: Extras,
    ) -> Result<(Self, Vec<ResumePoint>), StageError> {
        let mut output = Self::create(writer, features, out_shape, extras)?;
        // A scan for labels writes no rows.
        let rows = points.iter().rfind(|point| !matches!(point.kept, Kept::Labels { .. }));
        let Some(last) = rows else { return Ok((output, points)) };
        if output.has(last) {
            output.resumed_rows = last.rows;
            return Ok((output, points));
        }
        let mut writer = output.writer;
        writer.start_over()?;
        Ok((Self::create(writer, features, out_shape, extras)?, Vec::new()))
    }

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

    /// Records in `rounded` whether f32 changes a large number among `targets`.
    pub(crate) fn look_for_rounding(&self, mut targets: impl Iterator<Item = f64>) {
        if !self.rounded.load(Relaxed) && targets.any(f32_precision::is_rounded) {
            self.rounded.store(true, Relaxed);
        }
    }

    fn arrays(&self) -> impl Iterator<Item = &ArrayWriter> {
        let targets = self.targets.iter().flat_map(|(y, mask)| [y, mask]);
        [&self.x, &self.x_mask, &self.row_id, &self.split].into_iter().chain(targets).chain(&self.weight)
    }

    fn has(&self, point: &ResumePoint) -> bool {
        let hashes = match point.kept {
            Kept::Rows { hashes, .. } | Kept::Arrays { hashes } => hashes,
            Kept::None | Kept::Labels { .. } | Kept::Keys { .. } | Kept::Cells { .. } => 0,
        };
        let hashed = std::fs::metadata(self.dir().join(HASHES)).map_or(0, |found| found.len());
        self.arrays().all(|array| array.holds(point.rows)) && hashed >= hashes * 16
    }

    pub(crate) fn sync(&self) -> Result<(), StageError> {
        self.arrays().try_for_each(ArrayWriter::sync)?;
        let path = self.dir().join(HASHES);
        match File::open(&path) {
            Ok(file) => Ok(file.sync_data().map_err(FileError::of("sync", &path))?),
            Err(_) => Ok(()),
        }
    }

    pub(crate) fn writer(&self) -> &StagedWriter {
        &self.writer
    }

    /// Removes the resume points, because rows will be changed in place.
    pub(crate) fn invalidate_resume(&self) -> Result<(), StageError> {
        Ok(self.writer.forget()?)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.writer.dir()
    }

    pub(crate) fn has_targets(&self) -> bool {
        self.targets.is_some()
    }

    pub(crate) fn has_weights(&self) -> bool {
        self.weight.is_some()
    }

    pub(crate) fn sample_bytes(features: usize, outputs: usize) -> u64 {
        (features as u64 + outputs as u64) * 5 + 13
    }

    /// Writes samples from row `first` on; masks are 0 where values are NaN.
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

    pub(crate) fn put_x(&self, first: u64, x: &[f32]) -> Result<(), StageError> {
        Ok(self.x.write_rows(first, bytes_of(x))?)
    }

    /// Rewrites inputs and targets; masks are 0 where values are NaN.
    pub(crate) fn put_numbers(&self, first: u64, x: &[f32], y: &[f32]) -> Result<(), StageError> {
        put_masked(&self.x, &self.x_mask, first, x)?;
        self.targets.as_ref().map_or(Ok(()), |(array, mask)| put_masked(array, mask, first, y))
    }

    pub(crate) fn put_split(&self, first: u64, split: &[u8]) -> Result<(), StageError> {
        Ok(self.split.write_rows(first, split)?)
    }

    pub(crate) fn divide(&self, parts: &[(Range<u64>, Split)]) -> Result<(), StageError> {
        for (range, split) in parts {
            for chunk in chunks(range.clone(), CHUNK_BYTES as u64) {
                self.put_split(chunk.start, &vec![*split as u8; (chunk.end - chunk.start) as usize])?;
            }
        }
        Ok(())
    }

    pub(crate) fn number(&self, rows: Range<u64>, first_id: i64) -> Result<(), StageError> {
        for chunk in chunks(rows.clone(), CHUNK_BYTES as u64 / 8) {
            let offset = (chunk.start - rows.start) as i64 + first_id;
            let ids: Vec<i64> = (0..(chunk.end - chunk.start) as i64).map(|index| offset + index).collect();
            self.row_id.write_rows(chunk.start, bytes_of(&ids))?;
        }
        Ok(())
    }

    pub(crate) fn chunks(&self) -> impl Iterator<Item = Range<u64>> + Send + use<> {
        row_chunks(self.rows, self.features, self.outputs)
    }

    /// Reads inputs of shape (n, F).
    pub(crate) fn read_x(&self, rows: Range<u64>) -> Result<Vec<f32>, StageError> {
        read_numbers(&self.x, rows, self.features)
    }

    /// Reads targets of shape (n, O); empty when there are none.
    pub(crate) fn read_y(&self, rows: Range<u64>) -> Result<Vec<f32>, StageError> {
        self.targets.as_ref().map_or(Ok(Vec::new()), |(y, _)| read_numbers(y, rows, self.outputs))
    }

    pub(crate) fn read_split(&self, rows: Range<u64>) -> Result<Vec<u8>, StageError> {
        let mut split = vec![0; (rows.end - rows.start) as usize];
        self.split.read_rows(rows.start, &mut split)?;
        Ok(split)
    }

    /// Whether any training sample has a weight above 0; true without weights.
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

    /// Removes rows; later rows move up.
    pub(crate) fn drop_rows(&mut self, dropped: &Bits) -> Result<(), StageError> {
        let count = dropped.count();
        if count == 0 {
            return Ok(());
        }
        self.invalidate_resume()?;
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

    /// Removes the input columns where `keep` is false; later columns move up.
    pub(crate) fn keep_columns(&mut self, keep: &[bool]) -> Result<(), StageError> {
        self.invalidate_resume()?;
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

    /// Replaces targets that are class indices by one-hot rows of `classes` cells, all NaN where the target is missing. `class_of` maps
    /// a written index to its class.
    pub(crate) fn widen_targets(
        &mut self,
        classes: usize,
        class_of: &dyn Fn(usize) -> Option<usize>,
    ) -> Result<(), StageError> {
        self.invalidate_resume()?;
        let Some((y, mask)) = &mut self.targets else { return Ok(()) };
        let parts: Vec<Range<u64>> = chunks(0..self.rows, (CHUNK_BYTES / (4 * classes.max(1))) as u64).collect();
        // Backwards, because the wider rows overwrite later rows, which are read first.
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

    /// Makes the arrays durable in parallel and renames the directory to its digest.
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

/// Iterates over ranges of rows whose larger array takes at most `CHUNK_BYTES`.
pub(crate) fn row_chunks(
    rows: u64,
    features: usize,
    outputs: usize,
) -> impl Iterator<Item = Range<u64>> + Send + use<> {
    chunks(0..rows, (CHUNK_BYTES / (4 * features.max(outputs)).max(1)) as u64)
}

/// Iterates over ranges of at most `size` rows (at least one) that cover `rows`.
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
