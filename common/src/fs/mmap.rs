//! Mapped files: read-only slices, shared parts of memory files, and shared pages of atomics.
//!
//! **Invariant:** the only `unsafe` of this crate. A mapped file that is being read must not be truncated by anyone: our
//! formats never change a finished file in place, they replace it under a new name.

use super::{FileError, regular};
use memmap2::{Mmap, MmapMut, MmapOptions, MmapRaw};
use std::{
    fs::File,
    io,
    path::Path,
    sync::atomic::{AtomicU32, AtomicU64},
};

mod sealed {
    pub trait Sealed {}
}

/// Numbers for which every bit pattern is a value, so that mapped bytes may be looked at as a slice of them.
pub trait Plain: Copy + sealed::Sealed + 'static {}

macro_rules! plain {
    ($($name:ty)*) => { $(impl sealed::Sealed for $name {} impl Plain for $name {})* };
}
plain!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

/// A file mapped for reading. Cheap to share; pages come from the page cache.
#[derive(Debug)]
pub struct ReadMap {
    map: Mmap,
}

impl ReadMap {
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let file = regular::open(path)?;
        // SAFETY: the map is read-only and private to this value; finished files are never changed in place (see above).
        let map = unsafe { Mmap::map(&file) }.map_err(FileError::of("map", path))?;
        Ok(Self { map })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// `count` numbers from byte `offset` on; `None` when they do not fit or the offset is not aligned.
    pub fn numbers<T: Plain>(&self, offset: usize, count: usize) -> Option<&[T]> {
        numbers(&self.map, offset, count)
    }
}

/// Memory shared between processes (a memfd or a file), read and written through atomics only.
#[derive(Debug)]
pub struct SharedMap {
    map: MmapRaw,
}

impl SharedMap {
    /// Maps the whole file for reading and writing, shared. Its length must be at least `bytes_min`.
    pub fn of(file: &File, bytes_min: usize) -> io::Result<Self> {
        let map = MmapRaw::map_raw(file)?;
        if map.len() < bytes_min {
            let found = map.len();
            let text = format!("the shared page holds {found} bytes, expected at least {bytes_min}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        Ok(Self { map })
    }

    /// The 64-bit word at byte `offset`; `None` when it does not fit or the offset is not a multiple of 8.
    pub fn word64(&self, offset: usize) -> Option<&AtomicU64> {
        let end = offset.checked_add(8)?;
        if end > self.map.len() || !offset.is_multiple_of(8) {
            return None;
        }
        // SAFETY: the word lies in the map, which starts at a page and lives as long as `self`; all access is atomic.
        Some(unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(offset).cast()) })
    }

    /// The 32-bit word at byte `offset`; `None` when it does not fit or the offset is not a multiple of 4.
    pub fn word32(&self, offset: usize) -> Option<&AtomicU32> {
        let end = offset.checked_add(4)?;
        if end > self.map.len() || !offset.is_multiple_of(4) {
            return None;
        }
        // SAFETY: as in `word64`.
        Some(unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(offset).cast()) })
    }
}

/// Part of a memory file that two processes share; what is in it belongs to one of them at a time.
#[derive(Debug)]
pub struct SharedPart {
    map: MmapMut,
}

impl SharedPart {
    /// Maps `bytes` of the file from `at` on, a multiple of a page. With `touch` all pages are there when it returns.
    pub fn of(file: &File, at: u64, bytes: usize, touch: bool) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let wanted = u64::try_from(bytes).ok().and_then(|bytes| at.checked_add(bytes));
        if wanted.is_none_or(|end| end > length) {
            let text = format!("the shared memory has {length} bytes, expected {bytes} more behind the first {at}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        let mut options = MmapOptions::new();
        options.offset(at).len(bytes);
        if touch {
            options.populate();
        }
        // SAFETY: the file is as long as the part and is sealed against getting shorter, and whoever the part does not belong
        // to leaves it alone; a peer that does not keep to that makes wrong bytes, which the checksums or the reader find.
        Ok(Self { map: unsafe { options.map_mut(file)? } })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

/// Looks at part of `bytes` as numbers in the machine's own byte order.
pub fn numbers<T: Plain>(bytes: &[u8], offset: usize, count: usize) -> Option<&[T]> {
    check::<T>(bytes, offset, count)?;
    let start = bytes[offset..].as_ptr().cast::<T>();
    // SAFETY: `check` proved that the range lies in `bytes` and is aligned; `T` is plain; the lifetime is that of `bytes`.
    Some(unsafe { std::slice::from_raw_parts(start, count) })
}

pub fn bytes_of<T: Plain>(numbers: &[T]) -> &[u8] {
    // SAFETY: plain numbers have no padding and any alignment is enough for bytes; the length is the slice's own size.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), std::mem::size_of_val(numbers)) }
}

/// Whether `count` aligned numbers fit behind `offset`.
fn check<T>(bytes: &[u8], offset: usize, count: usize) -> Option<()> {
    let end = count.checked_mul(size_of::<T>())?.checked_add(offset)?;
    let aligned = bytes.as_ptr().addr().checked_add(offset)?.is_multiple_of(align_of::<T>());
    (end <= bytes.len() && aligned).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn numbers_come_back_and_bounds_hold() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, [&[0; 64], bytes_of(&[1.5f32, -2.0])].concat()).unwrap();
        let map = ReadMap::open(&path).unwrap();
        assert_eq!(map.numbers::<f32>(64, 2).unwrap(), [1.5, -2.0]);
        assert!(map.numbers::<f32>(64, 3).is_none(), "too many");
        assert!(map.numbers::<f32>(65, 1).is_none(), "not aligned");
        assert!(map.numbers::<f32>(64, usize::MAX).is_none());
        assert_eq!(map.bytes().len(), 72);
        assert_eq!(bytes_of(&[1.5f32, -2.0]), &map.bytes()[64..]);
    }

    #[test]
    fn shared_words_are_seen_by_a_second_map() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let one = SharedMap::of(&file, 4096).unwrap();
        let other = SharedMap::of(&file, 4096).unwrap();
        one.word64(16).unwrap().store(7, Ordering::Relaxed);
        one.word32(8).unwrap().store(1, Ordering::Relaxed);
        assert_eq!(other.word64(16).unwrap().load(Ordering::Relaxed), 7);
        assert_eq!(other.word32(8).unwrap().load(Ordering::Relaxed), 1);
        assert!(one.word64(4096).is_none() && one.word64(4).is_none());
        assert!(SharedMap::of(&file, 4097).is_err());
    }

    #[test]
    fn a_part_is_seen_by_a_second_map_and_lies_in_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * 4096).unwrap();
        let mut one = SharedPart::of(&file, 4096, 5000, true).unwrap();
        one.bytes_mut()[4999] = 7;
        assert_eq!(SharedPart::of(&file, 8192, 4096, false).unwrap().bytes()[903], 7);
        assert!(SharedPart::of(&file, 8192, 4097, false).is_err());
        assert!(SharedPart::of(&file, u64::MAX, 1, false).is_err());
    }

    #[test]
    fn an_empty_file_maps() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        std::fs::write(&path, b"").unwrap();
        assert_eq!(ReadMap::open(&path).unwrap().bytes(), b"");
    }
}
