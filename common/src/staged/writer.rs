//! Makes a staged directory: under a hidden name, from any number of threads, renamed when it is whole.
//!
//! **Invariant:** data go through `pwrite`, never through a writable mapping: a full disk is then an error with a path and not a
//! SIGBUS. Whatever happens before `finish` returns, no directory with the final name is touched.

use super::{
    ArrayName, META, Staged, StagedError, StagedMeta, Sums,
    npy::{Header, NpyElement},
    unfinished::{Journal, PROGRESS, ResumePoint, is_for_another},
};
use crate::fs::{
    FileError, atomic,
    owned::{self, LOCK, take},
};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

/// Beginning of the hidden names.
const TEMPORARY: &str = ".staging-";

/// Times another process may win the race for the final name before we give up.
const RENAMES_MAX: u32 = 3;

/// Age from which an unfinished directory is deleted and not resumed.
const LEFT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Numbers the hidden directories of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A staged directory in the making. Dropped without `finish`, it leaves nothing behind, but for one whose journal has a mark.
#[derive(Debug)]
pub struct StagedWriter {
    out: PathBuf,
    dir: PathBuf,
    lock: File,
    journal: Mutex<Option<Journal>>,
    /// Whether rows are there that count.
    is_resumed: bool,
}

impl StagedWriter {
    /// Begins a directory below `out` (made when absent) and removes what killed writers left there.
    pub fn create(out: &Path) -> Result<Self, StagedError> {
        fs::create_dir_all(out).map_err(FileError::of("make the directory", out))?;
        sweep(out);
        let make = || {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let dir = out.join(format!("{TEMPORARY}{}-{number}", std::process::id()));
            // A leftover of an earlier process with our id that `sweep` could not lock is still in use: then this fails.
            fs::create_dir(&dir).map_err(FileError::of("make the directory", &dir))?;
            Ok(dir)
        };
        let (dir, lock) = owned::create(make)?;
        Ok(Self { out: out.to_path_buf(), dir, lock, journal: Mutex::new(None), is_resumed: false })
    }

    /// Goes on with the directory of this digest that was left unfinished, or begins it: with the marks of what is there. While
    /// another process is at it, this is `create`.
    pub fn resume(out: &Path, digest: &str) -> Result<(Self, Vec<ResumePoint>), StagedError> {
        fs::create_dir_all(out).map_err(FileError::of("make the directory", out))?;
        let dir = unfinished(out, digest);
        fs::create_dir_all(&dir).map_err(FileError::of("make the directory", &dir))?;
        let Some(lock) = take(&dir)? else { return Ok((Self::create(out)?, Vec::new())) };
        sweep(out);
        let (journal, marks) = Journal::open(&dir)?;
        let is_resumed = !marks.is_empty();
        tidy(&dir, is_resumed)?;
        Ok((Self { out: out.to_path_buf(), dir, lock, journal: Mutex::new(Some(journal)), is_resumed }, marks))
    }

    fn journal(&self) -> MutexGuard<'_, Option<Journal>> {
        // An append is one write: a thread that panicked left the journal as it was, or with an end that is cut off.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_kept(&self) -> bool {
        self.journal().is_some()
    }

    /// Keeps a mark. All it counts must be durable.
    pub fn keep(&self, mark: &ResumePoint) -> Result<(), StagedError> {
        self.journal().as_mut().map_or(Ok(()), |journal| Ok(journal.append(mark)?))
    }

    /// Says that rows are changed where they lie from now on: no mark is true any more.
    pub fn forget(&self) -> Result<(), StagedError> {
        if self.journal().take().is_some() {
            let path = self.dir.join(PROGRESS);
            fs::remove_file(&path).map_err(FileError::of("remove", &path))?;
            sync_dir(&self.dir)?;
        }
        Ok(())
    }

    /// Forgets the marks and the rows that were found: they are not what the marks say.
    pub fn start_over(&mut self) -> Result<(), StagedError> {
        self.is_resumed = false;
        if self.is_kept() {
            self.forget()?;
            *self.journal() = Some(Journal::open(&self.dir)?.0);
        }
        Ok(())
    }

    /// Bytes on disk that the directory has taken already.
    pub fn taken_bytes(&self) -> u64 {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.blocks() * 512).sum()
    }

    /// The hidden directory: a place for temporary files too, which must be gone before `finish`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Begins an array of (rows, *inner); the number of rows is said when it is finished.
    pub fn array(&self, name: ArrayName, inner: &[u64]) -> Result<ArrayWriter, StagedError> {
        ArrayWriter::open(&self.dir.join(name.file()), name.element(), inner, !self.is_resumed)
    }

    /// Writes meta.json, makes everything durable and gives the directory its final name, `meta.digest`. Finds out then whether
    /// somebody else has staged the same meanwhile; a whole directory of that name stays, and ours is dropped.
    pub fn finish(self, meta: &StagedMeta) -> Result<PathBuf, StagedError> {
        Sums::compute(&self.dir)?.write(&self.dir)?;
        let path = self.dir.join(META);
        let text =
            serde_json::to_vec_pretty(meta).map_err(|source| StagedError::Meta { path: path.clone(), source })?;
        atomic::write(&path, &text)?;
        // What was staged must open before it gets its name: a mistake of ours is found here and not by a worker.
        Staged::open(&self.dir)?;
        remove(&self.dir, is_for_another)?;
        sync_dir(&self.dir)?;
        // own path: the digest was computed from the data.
        let target = self.out.join(&meta.digest);
        for _ in 0..RENAMES_MAX {
            match fs::rename(&self.dir, &target) {
                Ok(()) => {
                    // Held until the name is another one: whoever finds the hidden one must not take it for left.
                    let _ = fs::remove_file(target.join(LOCK));
                    sync_dir(&self.out)?;
                    return Ok(target);
                }
                Err(error) if is_taken(&error) => {
                    if Staged::open(&target).is_ok() {
                        return Ok(target);
                    }
                    fs::remove_dir_all(&target).map_err(FileError::of("remove", &target))?;
                }
                Err(error) => return Err(FileError::of("rename to", &target)(error).into()),
            }
        }
        let busy = io::Error::from(io::ErrorKind::ResourceBusy);
        Err(FileError::of("rename to", &target)(busy).into())
    }
}

impl Drop for StagedWriter {
    fn drop(&mut self) {
        // After `finish` the hidden name is gone already; an error here leaves a directory that the next writer sweeps.
        if !self.is_kept() || !has_marks(&self.dir) {
            let _ = fs::remove_dir_all(&self.dir);
        }
        let _ = self.lock.unlock();
    }
}

/// Removes what was left unfinished of this digest: it is not to be gone on with. Best effort, as `sweep`.
pub fn discard(out: &Path, digest: &str) {
    let dir = unfinished(out, digest);
    if dir.is_dir() && matches!(take(&dir), Ok(Some(_))) {
        let _ = fs::remove_dir_all(&dir);
    }
}

/// Where the directory of this digest is made.
fn unfinished(out: &Path, digest: &str) -> PathBuf {
    out.join(format!("{TEMPORARY}{digest}"))
}

/// Removes from an unfinished directory what the next steps make anew: all but the rows that marks tell of.
fn tidy(dir: &Path, has_rows: bool) -> Result<(), StagedError> {
    let rows = |name: &str| is_for_another(name) || ArrayName::ALL.iter().any(|array| array.file() == name);
    remove(dir, |name| name != LOCK && name != PROGRESS && !(has_rows && rows(name)))
}

/// Removes the files whose names `is_gone` picks.
fn remove(dir: &Path, is_gone: impl Fn(&str) -> bool) -> Result<(), StagedError> {
    for entry in fs::read_dir(dir).map_err(FileError::of("list", dir))?.flatten() {
        if is_gone(&entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path()).map_err(FileError::of("remove", &entry.path()))?;
        }
    }
    Ok(())
}

fn has_marks(dir: &Path) -> bool {
    fs::metadata(dir.join(PROGRESS)).is_ok_and(|found| found.len() > 0)
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists)
}

fn sync_dir(dir: &Path) -> Result<(), FileError> {
    File::open(dir).and_then(|file| file.sync_all()).map_err(FileError::of("sync", dir))
}

/// Removes hidden directories whose writer is dead, but not yet those that can be gone on with.
fn sweep(out: &Path) {
    let changed = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let entries = fs::read_dir(out).into_iter().flatten().flatten();
    let latest = entries.map(|entry| changed(&entry.path())).max().unwrap_or(SystemTime::UNIX_EPOCH);
    owned::sweep(out, TEMPORARY, |dir| {
        has_marks(dir) && latest.duration_since(changed(&dir.join(PROGRESS))).unwrap_or_default() < LEFT_MAX
    });
}

/// One `.npy` file in the making. Threads write disjoint rows at once; the header comes last.
#[derive(Debug)]
pub struct ArrayWriter {
    file: File,
    path: PathBuf,
    element: NpyElement,
    inner: Vec<u64>,
    row_bytes: u64,
    data_offset: u64,
}

impl ArrayWriter {
    /// Creates the file at `path`. `inner` is the shape of one row.
    pub fn create(path: &Path, element: NpyElement, inner: &[u64]) -> Result<Self, StagedError> {
        Self::open(path, element, inner, true)
    }

    /// Opens the file at `path`, `anew` without the rows it may have.
    fn open(path: &Path, element: NpyElement, inner: &[u64], anew: bool) -> Result<Self, StagedError> {
        let row = inner.iter().try_fold(element.bytes() as u64, |bytes, size| bytes.checked_mul(*size));
        let row_bytes = row.ok_or_else(|| StagedError::shape(path, inner))?;
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(anew)
            .open(path)
            .map_err(FileError::of("create", path))?;
        let data_offset = Header::roomy_offset(element, inner) as u64;
        Ok(Self { file, path: path.to_path_buf(), element, inner: inner.to_vec(), row_bytes, data_offset })
    }

    pub fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Writes whole rows from `first_row` on; `bytes` are little-endian elements in C order.
    pub fn write_rows(&self, first_row: u64, bytes: &[u8]) -> Result<(), StagedError> {
        let at = self.data_offset + first_row * self.row_bytes;
        Ok(self.file.write_all_at(bytes, at).map_err(FileError::of("write", &self.path))?)
    }

    /// Reads rows written before, from `first_row` on, as many as `bytes` holds.
    pub fn read_rows(&self, first_row: u64, bytes: &mut [u8]) -> Result<(), StagedError> {
        let at = self.data_offset + first_row * self.row_bytes;
        Ok(self.file.read_exact_at(bytes, at).map_err(FileError::of("read", &self.path))?)
    }

    /// Whether so many rows are there, written or not.
    pub fn holds(&self, rows: u64) -> bool {
        self.file.metadata().is_ok_and(|found| found.len() >= self.data_offset + rows * self.row_bytes)
    }

    /// Makes the rows written so far durable.
    pub fn sync(&self) -> Result<(), StagedError> {
        Ok(self.file.sync_data().map_err(FileError::of("sync", &self.path))?)
    }

    /// Says that rows have another, smaller shape from now on; the caller rewrites them from the first on.
    pub fn narrow(&mut self, inner: &[u64]) {
        self.inner = inner.to_vec();
        self.row_bytes = inner.iter().product::<u64>() * self.element.bytes() as u64;
    }

    /// Cuts the file to `rows` rows, writes the header and makes the file durable.
    pub fn finish(self, rows: u64) -> Result<(), StagedError> {
        let mut shape = vec![rows];
        shape.extend_from_slice(&self.inner);
        let offset = usize::try_from(self.data_offset).unwrap_or(usize::MAX);
        let header = Header::write(self.element, &shape, offset);
        let header = header.ok_or_else(|| StagedError::shape(&self.path, &shape))?;
        let bytes = self.data_offset + rows * self.row_bytes;
        self.file.set_len(bytes).map_err(FileError::of("extend", &self.path))?;
        self.file.write_all_at(&header, 0).map_err(FileError::of("write", &self.path))?;
        Ok(self.file.sync_all().map_err(FileError::of("sync", &self.path))?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::reader::tests::tiny_meta;
    use super::*;
    use crate::fs::mmap::bytes_of;

    /// A directory of `rows` samples, 2 inputs and a (1, 3) target, its rows written backwards.
    fn write(out: &Path, rows: u64) -> Result<PathBuf, StagedError> {
        let writer = StagedWriter::create(out)?;
        for (name, inner) in [
            (ArrayName::X, vec![2]),
            (ArrayName::XMask, vec![2]),
            (ArrayName::Y, vec![1, 3]),
            (ArrayName::YMask, vec![1, 3]),
            (ArrayName::RowId, vec![]),
            (ArrayName::Split, vec![]),
        ] {
            let array = writer.array(name, &inner)?;
            let count: u64 = inner.iter().product();
            for row in (0..rows).rev() {
                match name.element() {
                    NpyElement::F32 => array.write_rows(row, bytes_of(&vec![row as f32; count as usize]))?,
                    NpyElement::I64 => array.write_rows(row, bytes_of(&[row as i64 + 100]))?,
                    _ => array.write_rows(row, &vec![u8::from(name != ArrayName::Split); count as usize])?,
                }
            }
            array.finish(rows)?;
        }
        writer.finish(&tiny_meta(rows))
    }

    #[test]
    fn what_is_written_opens() {
        let out = tempfile::tempdir().unwrap();
        let dir = write(out.path(), 4).unwrap();
        let staged = Staged::open(&dir).unwrap();
        assert_eq!(staged.x(), [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
        assert_eq!(staged.y_row(2), [2.0; 3]);
        assert_eq!(staged.row_id(), [100, 101, 102, 103]);
        assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 1, "only the final directory");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 8, "six arrays, meta.json and sums.json");
    }

    #[test]
    fn the_same_twice_keeps_the_first_and_a_torn_one_is_replaced() {
        let out = tempfile::tempdir().unwrap();
        let first = write(out.path(), 4).unwrap();
        let made = std::fs::metadata(first.join(META)).unwrap().modified().unwrap();
        assert_eq!(write(out.path(), 4).unwrap(), first);
        assert_eq!(std::fs::metadata(first.join(META)).unwrap().modified().unwrap(), made);
        std::fs::remove_file(first.join(META)).unwrap();
        assert!(matches!(Staged::open(&first), Err(StagedError::NotStaged { .. })));
        assert_eq!(write(out.path(), 4).unwrap(), first);
        Staged::open(&first).unwrap();
    }

    #[test]
    fn an_abandoned_writer_leaves_nothing_and_a_killed_one_is_swept() {
        let out = tempfile::tempdir().unwrap();
        let writer = StagedWriter::create(out.path()).unwrap();
        writer.array(ArrayName::X, &[2]).unwrap().write_rows(0, &[0; 8]).unwrap();
        let living = writer.dir().to_path_buf();
        let dead = out.path().join(format!("{TEMPORARY}1-0"));
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(dead.join(LOCK), b"").unwrap();
        let other = StagedWriter::create(out.path()).unwrap();
        assert!(living.exists() && !dead.exists());
        drop((writer, other));
        assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_has_a_mark_stays_for_the_next_one_and_goes_when_it_is_discarded() {
        let out = tempfile::tempdir().unwrap();
        let names = || std::fs::read_dir(out.path()).unwrap().count();
        let (writer, marks) = StagedWriter::resume(out.path(), "d").unwrap();
        assert!(marks.is_empty());
        drop(writer);
        assert_eq!(names(), 0, "without a mark nothing stays");
        let (writer, _) = StagedWriter::resume(out.path(), "d").unwrap();
        writer.array(ArrayName::X, &[2]).unwrap().write_rows(0, &[7; 16]).unwrap();
        writer.keep(&ResumePoint { rows: 2, ..ResumePoint::default() }).unwrap();
        let (second, none) = StagedWriter::resume(out.path(), "d").unwrap();
        assert!(none.is_empty() && !second.is_kept() && second.dir() != writer.dir(), "one at a time");
        drop((writer, second));
        let (writer, marks) = StagedWriter::resume(out.path(), "d").unwrap();
        assert_eq!(marks.iter().map(|mark| mark.rows).collect::<Vec<_>>(), [2]);
        let array = writer.array(ArrayName::X, &[2]).unwrap();
        let mut row = [0; 8];
        array.read_rows(1, &mut row).unwrap();
        assert!(row == [7; 8] && array.holds(2) && !array.holds(3));
        drop(StagedWriter::create(out.path()).unwrap());
        assert!(writer.dir().exists(), "another writer leaves it alone");
        for leftover in [META, ".meta.json.tmp-1-1"] {
            std::fs::write(writer.dir().join(leftover), "{").unwrap();
        }
        drop(writer);
        let (mut writer, _) = StagedWriter::resume(out.path(), "d").unwrap();
        assert!(
            std::fs::read_dir(writer.dir())
                .unwrap()
                .flatten()
                .all(|found| !found.file_name().to_string_lossy().contains("meta"))
        );
        writer.start_over().unwrap();
        assert!(!writer.array(ArrayName::X, &[2]).unwrap().holds(1));
        writer.keep(&ResumePoint::default()).unwrap();
        drop(writer);
        assert_eq!(names(), 1);
        discard(out.path(), "d");
        assert_eq!(names(), 0);
    }

    #[test]
    fn a_directory_that_contradicts_its_metadata_gets_no_name() {
        let out = tempfile::tempdir().unwrap();
        let writer = StagedWriter::create(out.path()).unwrap();
        writer.array(ArrayName::X, &[2]).unwrap().finish(3).unwrap();
        let error = writer.finish(&tiny_meta(4)).unwrap_err();
        assert!(error.to_string().contains("x.npy: shape is [3, 2], expected [4, 2]"), "{error}");
        assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
    }
}
