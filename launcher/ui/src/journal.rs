//! events.jsonl: one event per line, appended as it happens, readable after any kill.
//!
//! **Invariant:** a line is written whole or is the last one. The writer cuts a torn end away before it appends, the
//! reader skips what it cannot understand (a torn end, an event of a later version) and says which lines those were.

mod reserve;

use super::error::JournalError;
use enn_common::{
    event::{Event, EventKind},
    fs::{FileError, regular},
};
use reserve::Reserve;
use std::{
    collections::VecDeque,
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Name of the journal in a run directory.
pub const FILE: &str = "events.jsonl";

/// Longest line that is read: a cleaning report of some ten thousand columns fits.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Bytes reserved for the last lines; the line that counts missing ones, and overhead of the file system, have room
/// besides.
const RESERVED_BYTES: usize = reserve::BYTES - (8 << 10);

/// Maximum bytes of lines that wait for room on the disk.
const PENDING_BYTES_MAX: usize = 8 << 20;

#[derive(Debug)]
pub struct JournalWriter {
    file: File,
    path: PathBuf,
    /// Length of the whole lines; the file is cut back to it after a failed write.
    whole_bytes: u64,
    torn: bool,
    /// Lines that could not be written yet, oldest first.
    pending: VecDeque<Vec<u8>>,
    pending_bytes: usize,
    /// Number of events that were dropped because the queue was full, and the time of the first of them.
    lost: u64,
    lost_since: f64,
    /// The newest event that was dropped.
    newest: Vec<u8>,
    reserve: Option<Reserve>,
}

impl JournalWriter {
    /// Opens or makes the journal of `run_dir` and cuts away a torn last line.
    ///
    /// # Errors
    /// The directory is missing or may not be written.
    pub fn open(run_dir: &Path) -> Result<Self, JournalError> {
        let path = run_dir.join(FILE);
        let open = || -> io::Result<(File, u64)> {
            let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
            let whole = whole_bytes(&mut file)?;
            file.set_len(whole)?;
            file.seek(SeekFrom::Start(whole))?;
            Ok((file, whole))
        };
        let (file, whole_bytes) =
            open().map_err(|source| JournalError::Open { path: path.clone(), what: "write", source })?;
        Ok(Self {
            file,
            path,
            whole_bytes,
            torn: false,
            pending: VecDeque::new(),
            pending_bytes: 0,
            lost: 0,
            lost_since: 0.0,
            newest: Vec::new(),
            reserve: Reserve::take(run_dir),
        })
    }

    /// Appends one event as one line, behind those that could not be written before: what a full disk refuses is kept in memory, up to
    /// [`PENDING_BYTES_MAX`], and a gap behind that is recorded as such.
    ///
    /// # Errors
    /// The disk is full or gone, or the directory was removed. The lines before are whole.
    pub fn write(&mut self, event: &Event) -> Result<(), JournalError> {
        self.append(event).map_err(|source| {
            self.torn = true;
            JournalError::Write { path: self.path.clone(), source }
        })
    }

    /// Asks the system to put everything on the disk.
    ///
    /// # Errors
    /// The disk is full or gone.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        self.file.sync_data().map_err(|source| JournalError::Write { path: self.path.clone(), source })
    }

    fn append(&mut self, event: &Event) -> io::Result<()> {
        self.keep(event)?;
        if self.file.metadata()?.nlink() == 0 {
            let what = "it was removed, or its directory, while the run writes to it; nothing more of the run is recorded there";
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        self.flush()
    }

    /// Writes the pending lines, and a line that counts dropped events.
    fn flush(&mut self) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.whole_bytes)?;
            self.file.seek(SeekFrom::Start(self.whole_bytes))?;
            self.torn = false;
        }
        while let Some(line) = self.pending.front() {
            self.file.write_all(line)?;
            self.whole_bytes += line.len() as u64;
            self.pending_bytes -= line.len();
            self.pending.pop_front();
        }
        if self.lost > 0 {
            let gap = self.gap(self.lost, "for too long")?;
            self.file.write_all(&gap)?;
            self.whole_bytes += gap.len() as u64;
            self.lost = 0;
        }
        Ok(())
    }

    /// Makes a line that counts missing events.
    fn gap(&self, count: u64, how_long: &str) -> io::Result<Vec<u8>> {
        let message = format!("the journal lacks {count} events from here on: the disk was full {how_long}");
        line(&Event { time: self.lost_since, what: EventKind::Warned { message } })
    }

    /// Writes the last lines into the reserved space: the oldest pending ones that fit, a line that counts those that
    /// do not, and the newest one, which records the end.
    fn end(&mut self) -> io::Result<()> {
        if self.pending.is_empty() && self.lost == 0 {
            return Ok(());
        }
        if self.flush().is_ok() {
            return Ok(());
        }
        self.torn = true;
        drop(self.reserve.take());
        let last = if self.lost > 0 { Some(std::mem::take(&mut self.newest)) } else { self.pending.pop_back() };
        let last = last.unwrap_or_default();
        let mut room = RESERVED_BYTES.saturating_sub(last.len());
        let fits = |line: &Vec<u8>| {
            let fits = line.len() <= room;
            room = room.saturating_sub(line.len());
            fits
        };
        let kept: Vec<Vec<u8>> = self.pending.iter().cloned().take_while(fits).collect();
        let missing = (self.pending.len() - kept.len()) as u64 + self.lost.saturating_sub(1);
        let first_missing = self.pending.get(kept.len()).and_then(|line| serde_json::from_slice::<Event>(line).ok());
        self.lost_since = first_missing.map_or(self.lost_since, |event| event.time);
        self.pending.clear();
        self.lost = 0;
        self.pending.extend(kept);
        if missing > 0 {
            let gap = self.gap(missing, "to the end")?;
            self.pending.push_back(gap);
        }
        self.pending.push_back(last);
        self.flush()
    }

    /// Adds an event to the pending ones, or counts it as dropped when the queue is full.
    fn keep(&mut self, event: &Event) -> io::Result<()> {
        let line = line(event)?;
        let is_full = !self.pending.is_empty() && self.pending_bytes + line.len() > PENDING_BYTES_MAX;
        if is_full || self.lost > 0 {
            self.lost_since = if self.lost == 0 { event.time } else { self.lost_since };
            self.lost += 1;
            self.newest = line;
        } else {
            self.pending_bytes += line.len();
            self.pending.push_back(line);
        }
        Ok(())
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!("the journal {} lacks its last events: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
impl JournalWriter {
    /// A writer whose every write fails, as on a full disk.
    pub(super) fn read_only(run_dir: &Path) -> Self {
        let mut writer = Self::open(run_dir).unwrap();
        writer.file = File::open(&writer.path).unwrap();
        writer
    }
}

fn line(event: &Event) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    Ok(line)
}

/// Length of `file` up to and with its last newline.
fn whole_bytes(file: &mut File) -> io::Result<u64> {
    const BLOCK_BYTES: u64 = 64 << 10;
    let mut end = file.metadata()?.len();
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(BLOCK_BYTES);
        block.clear();
        file.seek(SeekFrom::Start(start))?;
        file.take(end - start).read_to_end(&mut block)?;
        if let Some(newline) = memchr::memrchr(b'\n', &block) {
            return Ok(start + newline as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Hands every readable event of `run_dir` to `each`, in order, and returns the numbers (from 1) of the lines that
/// could not be understood.
///
/// # Errors
/// The journal is missing or the disk fails.
pub fn read(run_dir: &Path, mut each: impl FnMut(Event)) -> Result<Vec<u64>, JournalError> {
    let path = run_dir.join(FILE);
    let unopened = |error: FileError| JournalError::Open { path: path.clone(), what: "read", source: error.source };
    let file = regular::open(&path).map_err(unopened)?;
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    let mut number = 0;
    let mut unreadable = Vec::new();
    loop {
        match next_line(&mut reader, &mut line) {
            Ok(false) => return Ok(unreadable),
            Ok(true) => number += 1,
            Err(source) => return Err(JournalError::Read { path, line: number, source }),
        }
        match serde_json::from_slice(&line) {
            Ok(event) => each(event),
            Err(_) => unreadable.push(number),
        }
    }
}

/// Hands the first event of `run_dir` to `each`, and those in the last `bytes` of its journal, in order: what a look at a run that is
/// over needs, whatever the length of its journal.
///
/// # Errors
/// The journal is missing or the disk fails.
pub fn read_ends(run_dir: &Path, bytes: u64, mut each: impl FnMut(Event)) -> Result<(), JournalError> {
    let path = run_dir.join(FILE);
    let unopened = |source| JournalError::Open { path: path.clone(), what: "read", source };
    let mut file = File::open(&path).map_err(unopened)?;
    let failed = |source| JournalError::Read { path: path.clone(), line: 0, source };
    let length = file.metadata().map_err(failed)?.len();
    let mut line = Vec::new();
    if length > bytes {
        if next_line(&mut BufReader::new(&file), &mut line).map_err(failed)? {
            serde_json::from_slice(&line).into_iter().for_each(&mut each);
        }
        file.seek(SeekFrom::Start(length - bytes)).map_err(failed)?;
    }
    let mut reader = BufReader::new(&file);
    if length > bytes {
        // The line in which the end begins is cut, or it is the first one.
        reader.skip_until(b'\n').map_err(failed)?;
    }
    while next_line(&mut reader, &mut line).map_err(failed)? {
        serde_json::from_slice(&line).into_iter().for_each(&mut each);
    }
    Ok(())
}

/// Reads one line into `line` without its newline; a line beyond the limit comes back cut. False at the end.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    if reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', line)? == 0 {
        return Ok(false);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() as u64 == LINE_BYTES_MAX {
        reader.skip_until(b'\n')?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn event(time: f64) -> Event {
        Event { time, what: EventKind::Warned { message: format!("at {time}\nsecond line") } }
    }

    fn all(run_dir: &Path) -> (Vec<Event>, Vec<u64>) {
        let mut events = Vec::new();
        let unreadable = read(run_dir, |event| events.push(event)).unwrap();
        (events, unreadable)
    }

    #[test]
    fn a_later_events_line_is_skipped_and_named() {
        let dir = tempfile::tempdir().unwrap();
        JournalWriter::open(dir.path()).unwrap().write(&event(1.0)).unwrap();
        let mut file = OpenOptions::new().append(true).open(dir.path().join(FILE)).unwrap();
        file.write_all(b"{\"time\":2.0,\"event\":\"teleported\",\"to\":\"Mars\"}\n").unwrap();
        JournalWriter::open(dir.path()).unwrap().write(&event(3.0)).unwrap();
        assert_eq!(all(dir.path()), (vec![event(1.0), event(3.0)], vec![2]));
    }

    #[test]
    fn a_journal_that_is_cut_has_all_events_up_to_there_and_names_the_line_that_is_begun() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = JournalWriter::open(dir.path()).unwrap();
        (0..400).for_each(|at| writer.write(&event(f64::from(at))).unwrap());
        drop(writer);
        let path = dir.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        assert!(whole.len() > 20 << 10, "{} bytes", whole.len());
        let ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).step_by(40);
        for cut in (0..whole.len()).step_by(1024).chain(ends) {
            fs::write(&path, &whole[..cut]).unwrap();
            let (events, unreadable) = all(dir.path());
            let lines = whole[..cut].iter().filter(|byte| **byte == b'\n').count();
            // A line of which only its end is missing is whole.
            let begun = cut > 0 && whole[cut - 1] != b'\n' && whole[cut] != b'\n';
            assert_eq!(events.len(), lines + usize::from(cut > 0 && whole[cut] == b'\n'), "cut at {cut}");
            assert_eq!(unreadable, if begun { vec![lines as u64 + 1] } else { vec![] }, "cut at {cut}");
        }
    }

    #[test]
    fn half_a_line_is_removed_before_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = JournalWriter::open(dir.path()).unwrap();
        writer.write(&event(1.0)).unwrap();
        let good = std::mem::replace(&mut writer.file, File::open(dir.path().join(FILE)).unwrap());
        assert!(matches!(writer.write(&event(2.0)), Err(JournalError::Write { .. })));
        writer.file = good;
        writer.file.write_all(b"{\"time\":2.0,\"ev").unwrap();
        writer.write(&event(3.0)).unwrap();
        assert_eq!(all(dir.path()), (vec![event(1.0), event(2.0), event(3.0)], vec![]));
    }

    #[test]
    fn what_a_full_disk_refused_too_long_is_a_gap_that_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = JournalWriter::open(dir.path()).unwrap();
        let good = std::mem::replace(&mut writer.file, File::open(dir.path().join(FILE)).unwrap());
        let long = |time: f64| Event { time, what: EventKind::Warned { message: "x".repeat(PENDING_BYTES_MAX / 4) } };
        (1..=6).for_each(|time| assert!(writer.write(&long(f64::from(time))).is_err()));
        writer.file = good;
        writer.write(&event(7.0)).unwrap();
        let (events, unreadable) = all(dir.path());
        let Some(Event { time, what: EventKind::Warned { message } }) = events.last() else {
            panic!("{}", events.len())
        };
        assert!(unreadable.is_empty() && message.contains("lacks 4 events"), "{message}");
        assert_eq!((events.len(), *time), (4, 4.0));
    }

    #[test]
    fn at_the_end_the_oldest_lines_that_fit_are_kept_with_the_newest_and_a_gap_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = JournalWriter::open(dir.path()).unwrap();
        assert!(dir.path().join(".events.reserve").exists());
        writer.write(&event(1.0)).unwrap();
        writer.file = File::open(dir.path().join(FILE)).unwrap();
        let long = |time: f64| Event { time, what: EventKind::Warned { message: "x".repeat(20_000) } };
        (2..=9).for_each(|time| assert!(writer.write(&long(f64::from(time))).is_err()));
        assert!(writer.write(&event(10.0)).is_err());
        // Room for as much as was kept: the file takes no more.
        assert!(writer.end().is_err());
        let written: Vec<f64> =
            writer.pending.iter().map(|line| serde_json::from_slice::<Event>(line).unwrap().time).collect();
        assert_eq!(written, [2.0, 3.0, 4.0, 10.0], "two that fit, the gap from the third on, the newest");
        assert!(writer.pending.iter().map(Vec::len).sum::<usize>() < reserve::BYTES);
        assert!(String::from_utf8_lossy(&writer.pending[2]).contains("lacks 6 events"));
        assert!(!dir.path().join(".events.reserve").exists());
    }

    #[test]
    fn a_removed_directory_is_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        fs::create_dir(&run).unwrap();
        let mut writer = JournalWriter::open(&run).unwrap();
        writer.write(&event(1.0)).unwrap();
        fs::remove_dir_all(&run).unwrap();
        assert!(writer.write(&event(2.0)).unwrap_err().to_string().contains("removed"));
    }

    #[test]
    fn the_ends_of_a_long_journal_are_read_and_all_of_a_short_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = JournalWriter::open(dir.path()).unwrap();
        (1..=100).for_each(|time| writer.write(&event(f64::from(time))).unwrap());
        let times = |bytes: u64| {
            let mut times = Vec::new();
            read_ends(dir.path(), bytes, |event| times.push(event.time)).unwrap();
            times
        };
        let length = fs::metadata(dir.path().join(FILE)).unwrap().len();
        assert_eq!(times(length).len(), 100);
        assert_eq!(times(length - 1).len(), 100, "the first line is read apart");
        let ends = times(300);
        assert_eq!((ends[0], *ends.last().unwrap()), (1.0, 100.0));
        assert!((4..10).contains(&ends.len()) && ends[1..].is_sorted(), "{ends:?}");
        assert_eq!(times(0), [1.0]);
    }

    #[test]
    fn a_missing_journal_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = read(dir.path(), |_| ()).unwrap_err().to_string();
        assert!(error.contains("events.jsonl") && error.contains("hint"), "{error}");
    }

    proptest! {
        /// Whatever byte the file ends at, the whole lines before it are read and a writer goes on cleanly.
        #[test]
        fn any_torn_end_is_survived(lines in 1usize..6, cut in 0.0f64..1.0) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(FILE);
            let mut writer = JournalWriter::open(dir.path()).unwrap();
            let mut ends = vec![0];
            for line in 0..lines {
                writer.write(&event(line as f64)).unwrap();
                ends.push(fs::metadata(&path).unwrap().len());
            }
            let length = (cut * *ends.last().unwrap() as f64) as u64;
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
            let whole = ends.iter().filter(|end| **end > 0 && **end <= length).count();

            // A last line that lacks only its newline is readable, so one more may come back.
            let (events, _) = all(dir.path());
            prop_assert!(events.len() == whole || events.len() == whole + 1);

            JournalWriter::open(dir.path()).unwrap().write(&event(99.0)).unwrap();
            let (events, unreadable) = all(dir.path());
            prop_assert_eq!(events.len(), whole + 1);
            prop_assert_eq!(events.last(), Some(&event(99.0)));
            prop_assert!(unreadable.is_empty());
        }
    }
}
