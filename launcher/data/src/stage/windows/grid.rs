//! The dense grid of cells, filled in any order in bounded memory.
//!
//! A small grid is held in memory. A large grid is divided into buckets of neighbouring cells: rows are written to one spool file, in
//! runs per bucket, and the buckets are then filled one after the other and written to the grid file in order. Where resume points are
//! kept, the spool file has a name and holds all that another attempt needs, also for a small grid.
//!
//! **Invariant:** which of two rows for one cell is kept depends on their reading order only, for small and large grids.

use crate::stage::{bits::Bits, error::StageError, scratch::Scratch};
use enn_common::{
    config::data::DuplicatePolicy,
    fs::{FileError, mmap},
    staged::unfinished::{CELLS, Kept, ResumePoint},
};
use std::{
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
};

/// Maximum bytes of a grid in memory, and of a bucket of a larger grid.
pub(super) const MEMORY_BYTES_MAX: u64 = 64 * 1024 * 1024;

const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of one row in the spool beside its values: cell, row number and time.
const RECORD_HEAD: usize = 24;

/// Returns the maximum bytes on disk while grids of these numbers of cells and rows are made one after the other.
pub(crate) fn disk_bytes(grids: impl Iterator<Item = (u64, u64)>, channels: usize) -> u64 {
    let mut largest = 0;
    let mut spooled = 0;
    for (cells, rows) in grids {
        largest = largest.max(cells * channels as u64 * 4);
        spooled += rows * (RECORD_HEAD + channels * 4) as u64;
    }
    if largest <= MEMORY_BYTES_MAX { spooled } else { largest + spooled }
}

pub(crate) fn spool(dir: &Path, source: u32) -> PathBuf {
    dir.join(format!("{CELLS}{source}"))
}

pub(crate) fn has(spool: &Path, point: &ResumePoint) -> bool {
    let Kept::Cells { bytes, .. } = point.kept else { return true };
    std::fs::metadata(spool).map_or(0, |found| found.len()) >= bytes
}

pub(crate) fn sync(spool: &Path) -> Result<(), StageError> {
    Ok(File::open(spool).and_then(|file| file.sync_data()).map_err(FileError::of("sync", spool))?)
}

#[derive(Debug)]
pub(crate) struct GridWriter {
    fill: Fill,
    cells: u64,
    bucket: u64,
    /// Whether the grid has a single bucket, filled as rows arrive.
    is_in_memory: bool,
    /// Rows per bucket that are not yet in the spool; empty for a grid in memory without resume points.
    waiting: Vec<Vec<u8>>,
    waiting_bytes: usize,
    /// Runs of the spool: bucket, offset and length.
    runs: Vec<(u64, u64, u64)>,
    kept_runs: usize,
    spool: Scratch,
    grid: Scratch,
}

#[derive(Debug)]
struct Fill {
    values: Vec<f32>,
    channels: usize,
    /// Index of the first cell in `values`.
    first: u64,
    taken: Bits,
    policy: DuplicatePolicy,
    counts: GridCounts,
    /// Time of the first row of each cell in `values`.
    times: Vec<i64>,
}

#[derive(Debug)]
pub(crate) struct Grid {
    in_memory: Vec<f32>,
    file: Option<Scratch>,
    channels: usize,
    pub counts: GridCounts,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GridCounts {
    /// Number of cells with a row.
    pub occupied: u64,
    /// Number of rows for a cell that had one already.
    pub repeats: u64,
    /// Row number and cell of the earliest repeated row.
    pub first_repeat: Option<(u64, u64)>,
    /// Number of repeated rows whose time differs from that of the cell's first row.
    pub clashes: u64,
}

impl GridWriter {
    /// Creates a grid with scratch files below `dir`: empty, or as of the last resume point of the spool in `kept`. A grid of more than
    /// `memory_bytes`, usually `MEMORY_BYTES_MAX`, is spooled.
    pub(crate) fn new(
        dir: &Path,
        cells: u64,
        channels: usize,
        policy: DuplicatePolicy,
        kept: Option<(&Path, &[ResumePoint])>,
        memory_bytes: u64,
    ) -> Result<Self, StageError> {
        let bucket = (memory_bytes / (channels as u64 * 4 + 8)).clamp(1, cells.max(1));
        let buckets = cells.div_ceil(bucket);
        let is_in_memory = buckets <= 1;
        let in_memory = if is_in_memory { cells } else { 0 };
        let fill = Fill {
            values: vec![f32::NAN; in_memory as usize * channels],
            channels,
            first: 0,
            taken: Bits::new(cells),
            policy,
            counts: GridCounts::default(),
            times: vec![0; in_memory as usize],
        };
        let mut runs = Vec::new();
        let mut bytes = 0;
        for point in kept.map_or(&[][..], |(_, points)| points) {
            if let Kept::Cells { runs: more, bytes: all } = &point.kept {
                runs.extend(more);
                bytes = *all;
            }
        }
        let spool = match kept {
            Some((path, _)) => Scratch::named(path.to_owned(), bytes)?,
            None => Scratch::new(dir),
        };
        let waiting = vec![Vec::new(); if is_in_memory && kept.is_none() { 0 } else { buckets.max(1) as usize }];
        let kept_runs = runs.len();
        let grid = Scratch::new(dir);
        let mut writer =
            Self { fill, cells, bucket, is_in_memory, waiting, waiting_bytes: 0, runs, kept_runs, spool, grid };
        if is_in_memory {
            writer.refill(0)?;
        }
        Ok(writer)
    }

    /// Puts a row's values into a cell; must be called in reading order.
    pub(crate) fn put(&mut self, cell: u64, row: u64, time: i64, values: &[f32]) -> Result<(), StageError> {
        if self.is_in_memory {
            self.fill.put(cell, row, time, values);
        }
        let Some(waiting) = self.waiting.get_mut((cell / self.bucket) as usize) else { return Ok(()) };
        waiting.extend_from_slice(&cell.to_le_bytes());
        waiting.extend_from_slice(&row.to_le_bytes());
        waiting.extend_from_slice(&time.to_le_bytes());
        waiting.extend_from_slice(mmap::bytes_of(values));
        self.waiting_bytes += RECORD_HEAD + values.len() * 4;
        if self.waiting_bytes < WAITING_BYTES_MAX { Ok(()) } else { self.spill() }
    }

    fn spill(&mut self) -> Result<(), StageError> {
        for (bucket, waiting) in (0..).zip(&mut self.waiting).filter(|(_, waiting)| !waiting.is_empty()) {
            self.runs.push((bucket, self.spool.append(waiting)?, waiting.len() as u64));
            // The memory is freed, too: the next rows may be for other buckets.
            *waiting = Vec::new();
        }
        self.waiting_bytes = 0;
        Ok(())
    }

    pub(crate) fn keep(&mut self) -> Result<Kept, StageError> {
        self.spill()?;
        let runs = self.runs[std::mem::replace(&mut self.kept_runs, self.runs.len())..].to_vec();
        Ok(Kept::Cells { runs, bytes: self.spool.bytes() })
    }

    fn refill(&mut self, bucket: u64) -> Result<(), StageError> {
        let record = RECORD_HEAD + self.fill.channels * 4;
        let mut values = vec![0.0; self.fill.channels];
        for (_, at, length) in self.runs.iter().filter(|(own, ..)| *own == bucket) {
            let mut run = vec![0; *length as usize];
            self.spool.read(*at, &mut run)?;
            for bytes in run.chunks_exact(record) {
                let (head, rest) = bytes.split_at(RECORD_HEAD);
                let number = |half: &[u8]| half.first_chunk::<8>().map_or(0, |half| u64::from_le_bytes(*half));
                for (value, bytes) in values.iter_mut().zip(rest.chunks_exact(4)) {
                    *value = bytes.first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes));
                }
                self.fill.put(number(head), number(&head[8..]), number(&head[16..]) as i64, &values);
            }
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<Grid, StageError> {
        if !self.is_in_memory {
            self.spill()?;
            for bucket in 0..self.waiting.len() as u64 {
                let first = bucket * self.bucket;
                let cells = self.bucket.min(self.cells - first) as usize;
                self.fill.first = first;
                self.fill.values.clear();
                self.fill.values.resize(cells * self.fill.channels, f32::NAN);
                self.fill.times.resize(cells, 0);
                self.refill(bucket)?;
                self.grid.append(mmap::bytes_of(&self.fill.values))?;
            }
        }
        let Fill { values, channels, counts, .. } = self.fill;
        let (in_memory, file) = if self.is_in_memory { (values, None) } else { (Vec::new(), Some(self.grid)) };
        Ok(Grid { in_memory, file, channels, counts })
    }
}

impl Fill {
    fn put(&mut self, cell: u64, row: u64, time: i64, values: &[f32]) {
        let repeats = self.taken.set(cell);
        let place = (cell - self.first) as usize;
        if repeats {
            self.counts.repeats += 1;
            self.counts.clashes += u64::from(self.times[place] != time);
            let found = (row, cell);
            self.counts.first_repeat = Some(self.counts.first_repeat.map_or(found, |first| first.min(found)));
            if self.policy != DuplicatePolicy::Last {
                return;
            }
        } else {
            self.counts.occupied += 1;
            self.times[place] = time;
        }
        let at = place * self.channels;
        self.values[at..at + self.channels].copy_from_slice(values);
    }
}

impl Grid {
    pub(crate) fn read(&self, cells: Range<u64>) -> Result<Vec<f32>, StageError> {
        let at = cells.start as usize * self.channels;
        let count = (cells.end - cells.start) as usize * self.channels;
        let Some(file) = &self.file else { return Ok(self.in_memory[at..at + count].to_vec()) };
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
                let mut writer = GridWriter::new(dir.path(), 97, 2, policy, None, bound).unwrap();
                for row in 0..150u64 {
                    let cell = row * 41 % 97 % 90;
                    writer.put(cell, row, (row / 2) as i64, &[row as f32, -(row as f32)]).unwrap();
                    if row % 60 == 59 && !writer.waiting.is_empty() {
                        writer.spill().unwrap();
                    }
                }
                writer.finish().unwrap()
            });
            assert!(grids[0].file.is_none() && grids[1].file.is_some());
            assert_eq!(grids[0].counts, grids[1].counts);
            assert_eq!(grids[0].counts.occupied + grids[0].counts.repeats, 150);
            assert_eq!(grids[0].counts.clashes, grids[0].counts.repeats, "rows of a cell have times of their own");
            let bits = |grid: &Grid| grid.read(3..97).unwrap().iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
            assert_eq!(bits(&grids[0]), bits(&grids[1]));
            assert!(grids[0].read(96..97).unwrap()[0].is_nan());
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_grid_goes_on_from_what_was_kept() {
        for bound in [u64::MAX, 4 * 2 * 10] {
            let dir = tempfile::tempdir().unwrap();
            let path = spool(dir.path(), 0);
            let resumed = |points: &[ResumePoint]| {
                GridWriter::new(dir.path(), 97, 2, DuplicatePolicy::Last, Some((&path, points)), bound).unwrap()
            };
            let put = |writer: &mut GridWriter, rows: Range<u64>| {
                rows.for_each(|row| {
                    writer.put(row * 41 % 97, row, (row / 2) as i64, &[row as f32, -(row as f32)]).unwrap()
                });
            };
            let mut whole = GridWriter::new(dir.path(), 97, 2, DuplicatePolicy::Last, None, bound).unwrap();
            put(&mut whole, 0..150);
            let mut points: Vec<ResumePoint> = Vec::new();
            for (rows, lost) in [(0..50, 50..80), (50..51, 51..51), (51..120, 120..150)] {
                assert!(points.iter().all(|point| has(&path, point)));
                let mut writer = resumed(&points);
                put(&mut writer, rows);
                points.push(ResumePoint { kept: writer.keep().unwrap(), ..ResumePoint::default() });
                put(&mut writer, lost);
                writer.spill().unwrap();
            }
            let mut last = resumed(&points);
            put(&mut last, 120..150);
            sync(&path).unwrap();
            let [whole, last] = [whole, last].map(|writer| writer.finish().unwrap());
            assert_eq!(whole.counts, last.counts);
            let bits = |grid: &Grid| grid.read(0..97).unwrap().iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
            assert_eq!(bits(&whole), bits(&last));
            File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
            assert!(!has(&path, &points[0]));
        }
    }
}
