//! Makes a staged directory: under a hidden name, from any number of threads, renamed when it is whole.
//!
//! **Invariant:** data go through `pwrite`, never through a writable mapping: a full disk is then an error with a path and not a
//! SIGBUS. Whatever happens before `finish` returns, no directory with the final name is touched.

use super::{
    ArrayName, META, Staged, StagedError, StagedMeta, Sums,
    npy::{Element, Header, NpyError},
};
use crate::fs::{FileError, atomic};
use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Beginning of the hidden names.
const TEMPORARY: &str = ".staging-";

/// Held locked while the writer lives, so that leftovers of dead processes can be told from work in progress.
const LOCK: &str = "lock";

/// Times another process may win the race for the final name before we give up.
const RENAMES_MAX: u32 = 3;

/// Numbers the hidden directories of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A staged directory in the making. Dropped without `finish`, it leaves nothing behind.
#[derive(Debug)]
pub struct StagedWriter {
    out: PathBuf,
    dir: PathBuf,
    lock: File,
}

impl StagedWriter {
    /// Begins a directory below `out` (made when absent) and removes what killed writers left there.
    pub fn create(out: &Path) -> Result<Self, StagedError> {
        fs::create_dir_all(out).map_err(FileError::of("make the directory", out))?;
        sweep(out);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = out.join(format!("{TEMPORARY}{}-{number}", std::process::id()));
        // A leftover of an earlier process with our id that `sweep` could not lock is still in use: then this fails.
        fs::create_dir(&dir).map_err(FileError::of("make the directory", &dir))?;
        let path = dir.join(LOCK);
        let lock = File::create(&path).map_err(FileError::of("create", &path))?;
        lock.lock().map_err(FileError::of("lock", &path))?;
        Ok(Self { out: out.to_path_buf(), dir, lock })
    }

    /// The hidden directory: a place for temporary files too, which must be gone before `finish`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Begins an array of (rows, *inner); the number of rows is said when it is finished.
    pub fn array(&self, name: ArrayName, inner: &[u64]) -> Result<ArrayWriter, StagedError> {
        ArrayWriter::create(&self.dir.join(name.file()), name.element(), inner)
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
        let lock = self.dir.join(LOCK);
        fs::remove_file(&lock).map_err(FileError::of("remove", &lock))?;
        sync_dir(&self.dir)?;
        let target = self.out.join(&meta.digest);
        for _ in 0..RENAMES_MAX {
            match fs::rename(&self.dir, &target) {
                Ok(()) => {
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
        let _ = fs::remove_dir_all(&self.dir);
        let _ = self.lock.unlock();
    }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists)
}

fn sync_dir(dir: &Path) -> Result<(), FileError> {
    File::open(dir).and_then(|file| file.sync_all()).map_err(FileError::of("sync", dir))
}

/// Removes hidden directories whose writer is dead. Best effort: what cannot be read or locked is left alone.
fn sweep(out: &Path) {
    let Ok(entries) = fs::read_dir(out) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            continue;
        }
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if !matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// One `.npy` file in the making. Threads write disjoint rows at once; the header comes last.
#[derive(Debug)]
pub struct ArrayWriter {
    file: File,
    path: PathBuf,
    element: Element,
    inner: Vec<u64>,
    row_bytes: u64,
    data_offset: u64,
}

impl ArrayWriter {
    /// Creates the file at `path`. `inner` is the shape of one row.
    pub fn create(path: &Path, element: Element, inner: &[u64]) -> Result<Self, StagedError> {
        let row = inner.iter().try_fold(element.bytes() as u64, |bytes, size| bytes.checked_mul(*size));
        let row_bytes = row.ok_or_else(|| StagedError::Npy {
            path: path.to_path_buf(),
            kind: NpyError::Shape { found: format!("{inner:?}") },
        })?;
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .map_err(FileError::of("create", path))?;
        let data_offset = Header::roomy_offset(element, inner) as u64;
        Ok(Self { file, path: path.to_path_buf(), element, inner: inner.to_vec(), row_bytes, data_offset })
    }

    /// Bytes of one row.
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
        let header = Header::write(self.element, &shape, offset).ok_or_else(|| StagedError::Npy {
            path: self.path.clone(),
            kind: NpyError::Shape { found: format!("{shape:?}") },
        })?;
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
                    Element::F32 => array.write_rows(row, bytes_of(&vec![row as f32; count as usize]))?,
                    Element::I64 => array.write_rows(row, bytes_of(&[row as i64 + 100]))?,
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
    fn a_directory_that_contradicts_its_metadata_gets_no_name() {
        let out = tempfile::tempdir().unwrap();
        let writer = StagedWriter::create(out.path()).unwrap();
        writer.array(ArrayName::X, &[2]).unwrap().finish(3).unwrap();
        let error = writer.finish(&tiny_meta(4)).unwrap_err();
        assert!(error.to_string().contains("x.npy: shape is [3, 2], expected [4, 2]"), "{error}");
        assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
    }
}
