//! The dense grid of cells, filled in any order in bounded memory.
//!
//! A small grid is held. A large one is divided into buckets of neighbouring cells: rows wait in one spool file, in runs per
//! bucket, and the buckets are then filled one after the other and written to the grid file in order.
//!
//! **Invariant:** which of two rows for one cell stays depends on their reading order only, in both ways of filling.

use crate::stage::{bits::Bits, error::StageError, scratch::Scratch};
use enn_common::{config::data::DuplicatePolicy, fs::mmap};
use std::{ops::Range, path::Path};

/// Bytes of a grid that is held, and of a bucket of one that is not.
const HELD_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Bytes of all rows that wait for a place in the spool.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of one row in the spool beside its values: cell and row number.
const RECORD_HEAD: usize = 16;

/// Bytes on disk that a grid may take while it is made.
pub(crate) fn disk_bytes(cells: u64, channels: usize, rows: u64) -> u64 {
    let bytes = cells * channels as u64 * 4;
    if bytes <= HELD_BYTES_MAX { 0 } else { bytes + rows * (RECORD_HEAD + channels * 4) as u64 }
}

/// A grid being filled.
#[derive(Debug)]
pub(crate) struct GridWriter {
    fill: Fill,
    cells: u64,
    /// Cells per bucket.
    bucket: u64,
    waiting: Vec<Vec<u8>>,
    waiting_bytes: usize,
    /// Runs of the spool per bucket: offset and length.
    runs: Vec<Vec<(u64, usize)>>,
    spool: Scratch,
    grid: Scratch,
}

/// The part of the grid in memory.
#[derive(Debug)]
struct Fill {
    values: Vec<f32>,
    channels: usize,
    /// First cell of `values`.
    first: u64,
    taken: Bits,
    policy: DuplicatePolicy,
    occupied: u64,
    repeats: u64,
    first_repeat: Option<(u64, u64)>,
}

/// A filled grid.
#[derive(Debug)]
pub(crate) struct Grid {
    held: Vec<f32>,
    file: Option<Scratch>,
    channels: usize,
    /// Cells with a row.
    pub occupied: u64,
    /// Rows for a cell that had one.
    pub repeats: u64,
    /// The earliest of them: row number and cell.
    pub first_repeat: Option<(u64, u64)>,
}

impl GridWriter {
    /// An empty grid; scratch files are made below `dir`.
    pub(crate) fn new(dir: &Path, cells: u64, channels: usize, policy: DuplicatePolicy) -> Self {
        Self::with_bound(dir, cells, (channels, policy), HELD_BYTES_MAX)
    }

    fn with_bound(dir: &Path, cells: u64, (channels, policy): (usize, DuplicatePolicy), held_bytes: u64) -> Self {
        let bucket = (held_bytes / (channels as u64 * 4)).clamp(1, cells.max(1));
        let buckets = cells.div_ceil(bucket);
        let held = if buckets <= 1 { cells } else { 0 };
        let fill = Fill {
            values: vec![f32::NAN; held as usize * channels],
            channels,
            first: 0,
            taken: Bits::new(cells),
            policy,
            occupied: 0,
            repeats: 0,
            first_repeat: None,
        };
        let waiting = vec![Vec::new(); if buckets <= 1 { 0 } else { buckets as usize }];
        let runs = vec![Vec::new(); waiting.len()];
        Self { fill, cells, bucket, waiting, waiting_bytes: 0, runs, spool: Scratch::new(dir), grid: Scratch::new(dir) }
    }

    /// Puts a row's values into a cell. Called in reading order.
    pub(crate) fn put(&mut self, cell: u64, row: u64, values: &[f32]) -> Result<(), StageError> {
        if self.waiting.is_empty() {
            self.fill.put(cell, row, values);
            return Ok(());
        }
        let waiting = &mut self.waiting[(cell / self.bucket) as usize];
        waiting.extend_from_slice(&cell.to_le_bytes());
        waiting.extend_from_slice(&row.to_le_bytes());
        waiting.extend_from_slice(mmap::bytes_of(values));
        self.waiting_bytes += RECORD_HEAD + values.len() * 4;
        if self.waiting_bytes < WAITING_BYTES_MAX { Ok(()) } else { self.spill() }
    }

    /// Writes all waiting rows to the spool.
    fn spill(&mut self) -> Result<(), StageError> {
        for (waiting, runs) in self.waiting.iter_mut().zip(&mut self.runs).filter(|(waiting, _)| !waiting.is_empty()) {
            runs.push((self.spool.append(waiting)?, waiting.len()));
            // The memory goes back too: the next rows may be for other buckets.
            *waiting = Vec::new();
        }
        self.waiting_bytes = 0;
        Ok(())
    }

    /// Fills the rest.
    pub(crate) fn finish(mut self) -> Result<Grid, StageError> {
        if !self.waiting.is_empty() {
            self.spill()?;
        }
        let record = RECORD_HEAD + self.fill.channels * 4;
        for (bucket, runs) in self.runs.iter().enumerate() {
            let first = bucket as u64 * self.bucket;
            let cells = self.bucket.min(self.cells - first) as usize;
            self.fill.first = first;
            self.fill.values.clear();
            self.fill.values.resize(cells * self.fill.channels, f32::NAN);
            let mut values = vec![0.0; self.fill.channels];
            for (at, length) in runs {
                let mut run = vec![0; *length];
                self.spool.read(*at, &mut run)?;
                for bytes in run.chunks_exact(record) {
                    let (head, rest) = bytes.split_at(RECORD_HEAD);
                    let number = |half: &[u8]| half.first_chunk::<8>().map_or(0, |half| u64::from_le_bytes(*half));
                    for (value, bytes) in values.iter_mut().zip(rest.chunks_exact(4)) {
                        *value = bytes.first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes));
                    }
                    self.fill.put(number(head), number(&head[8..]), &values);
                }
            }
            self.grid.append(mmap::bytes_of(&self.fill.values))?;
        }
        let Fill { values, channels, occupied, repeats, first_repeat, .. } = self.fill;
        let (held, file) = if self.runs.is_empty() { (values, None) } else { (Vec::new(), Some(self.grid)) };
        Ok(Grid { held, file, channels, occupied, repeats, first_repeat })
    }
}

impl Fill {
    fn put(&mut self, cell: u64, row: u64, values: &[f32]) {
        let repeats = self.taken.set(cell);
        if repeats {
            self.repeats += 1;
            let found = (row, cell);
            self.first_repeat = Some(self.first_repeat.map_or(found, |first| first.min(found)));
            if self.policy != DuplicatePolicy::Last {
                return;
            }
        } else {
            self.occupied += 1;
        }
        let at = (cell - self.first) as usize * self.channels;
        self.values[at..at + self.channels].copy_from_slice(values);
    }
}

impl Grid {
    /// Values of a run of cells, cell by cell.
    pub(crate) fn read(&self, cells: Range<u64>) -> Result<Vec<f32>, StageError> {
        let at = cells.start as usize * self.channels;
        let count = (cells.end - cells.start) as usize * self.channels;
        let Some(file) = &self.file else { return Ok(self.held[at..at + count].to_vec()) };
        let mut bytes = vec![0; count * 4];
        file.read(at as u64 * 4, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|cell| f32::from_le_bytes([cell[0], cell[1], cell[2], cell[3]])).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_and_spooled_grids_are_equal() {
        for policy in [DuplicatePolicy::First, DuplicatePolicy::Last] {
            let dir = tempfile::tempdir().unwrap();
            let grids = [u64::MAX, 4 * 2 * 10].map(|bound| {
                let mut writer = GridWriter::with_bound(dir.path(), 97, (2, policy), bound);
                for row in 0..150u64 {
                    let cell = row * 41 % 97 % 90;
                    writer.put(cell, row, &[row as f32, -(row as f32)]).unwrap();
                    if row % 60 == 59 && !writer.waiting.is_empty() {
                        writer.spill().unwrap();
                    }
                }
                writer.finish().unwrap()
            });
            assert!(grids[0].file.is_none() && grids[1].file.is_some());
            let facts = |grid: &Grid| (grid.occupied, grid.repeats, grid.first_repeat);
            assert_eq!(facts(&grids[0]), facts(&grids[1]));
            assert_eq!(grids[0].occupied + grids[0].repeats, 150);
            let bits = |grid: &Grid| grid.read(3..97).unwrap().iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
            assert_eq!(bits(&grids[0]), bits(&grids[1]));
            assert!(grids[0].read(96..97).unwrap()[0].is_nan());
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}
