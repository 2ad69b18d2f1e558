//! The segment: sealed anonymous memory that rank 0 makes and the other ranks of the same user map.
//!
//! **Invariant:** words are only touched through atomics. Areas are plain memory: the protocol in `exchange` says who may
//! write which part when, and nobody reads a part while somebody may write it.

use super::layout::{BYTES_AT, MAGIC, MAGIC_AT, NONCE_AT};
use enn_common::fs::mmap::{Plain, bytes_of};
use memmap2::{MmapOptions, MmapRaw};
use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl, posix_fallocate},
    sys::memfd::{MFdFlags, memfd_create},
    unistd::geteuid,
};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    slice,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

/// A mapped segment of shared memory.
#[derive(Debug)]
pub(crate) struct SharedSegment {
    map: MmapRaw,
}

/// Identification of a segment: process and descriptor that hold it open, and two words of nonce; zeros for none.
pub(crate) type Holder = [i64; 4];

/// Returns 128 random bits.
pub(crate) fn nonce() -> io::Result<[u64; 2]> {
    let mut bytes = [0u8; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let bits = u128::from_le_bytes(bytes);
    Ok([bits as u64, (bits >> 64) as u64])
}

/// Returns the seals that fix the length: access beyond the end of a shortened segment would kill the readers.
fn seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

impl SharedSegment {
    /// Makes a segment of `bytes` bytes, including the header. Others can open it as long as the returned file is open.
    pub(crate) fn create(bytes: usize) -> io::Result<(Self, File, Holder)> {
        let nonce = nonce()?;
        let file = File::from(memfd_create("enn-collectives", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
        file.set_len(bytes as u64)?;
        // Taken now: a machine out of memory is an error here and not a signal in the middle of a step.
        posix_fallocate(&file, 0, i64::try_from(bytes).map_err(io::Error::other)?)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals()))?;
        let segment = Self::map(&file, bytes)?;
        for (at, word) in NONCE_AT.into_iter().zip(nonce) {
            segment.word64(at).store(word, Ordering::Relaxed);
        }
        segment.word64(BYTES_AT).store(bytes as u64, Ordering::Relaxed);
        segment.word64(MAGIC_AT).store(MAGIC, Ordering::Release);
        let [a, b] = nonce.map(u64::cast_signed);
        let holder = [i64::from(std::process::id()), i64::from(file.as_raw_fd()), a, b];
        Ok((segment, file, holder))
    }

    /// Maps the segment of `expected` bytes that `holder` names.
    pub(crate) fn open(expected: usize, holder: Holder) -> io::Result<Self> {
        let [pid, fd, a, b] = holder;
        if holder == Holder::default() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no segment was made"));
        }
        let nonce = [a, b].map(i64::cast_unsigned);
        let file = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}"))?;
        let meta = file.metadata()?;
        if meta.uid() != geteuid().as_raw() || meta.len() != expected as u64 {
            let text = format!("{} bytes of user {} where {expected} of ours were expected", meta.len(), meta.uid());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        if !SealFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GET_SEALS)?).contains(seals()) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the segment's length is not sealed"));
        }
        let segment = Self::map(&file, expected)?;
        let same = segment.word64(MAGIC_AT).load(Ordering::Acquire) == MAGIC
            && segment.word64(BYTES_AT).load(Ordering::Relaxed) == expected as u64
            && NONCE_AT.into_iter().zip(nonce).all(|(at, word)| segment.word64(at).load(Ordering::Relaxed) == word);
        if same { Ok(segment) } else { Err(io::Error::new(io::ErrorKind::InvalidData, "it is another segment")) }
    }

    fn map(file: &File, bytes: usize) -> io::Result<Self> {
        Ok(Self { map: MmapOptions::new().len(bytes).populate().map_raw(file)? })
    }

    /// Returns the 32-bit word at byte `at`.
    pub(crate) fn word32(&self, at: usize) -> &AtomicU32 {
        let at = self.inside(at, 4, 4);
        // SAFETY: `inside` checked place and alignment; the map lives as long as `self`, and all access is atomic.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }

    /// Returns the 64-bit word at byte `at`.
    pub(super) fn word64(&self, at: usize) -> &AtomicU64 {
        let at = self.inside(at, 8, 8);
        // SAFETY: as in `word32`.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }

    /// Returns the address of byte `at` in this process.
    pub(crate) fn address(&self, at: usize) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(at)
    }

    /// Copies numbers into an area that no other rank reads or writes now.
    pub(super) fn put<T: Plain>(&self, at: usize, numbers: &[T]) {
        let bytes = bytes_of(numbers);
        let at = self.inside(at, bytes.len(), align_of::<T>());
        // SAFETY: the range lies in the map, which no Rust slice owns; the protocol keeps every other rank away from it.
        unsafe { self.map.as_mut_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Borrows `count` numbers of an area that no rank writes meanwhile.
    pub(super) fn view<T: Plain>(&self, at: usize, count: usize) -> &[T] {
        let at = self.inside(at, count * size_of::<T>(), align_of::<T>());
        // SAFETY: the range lies in the map and is aligned, any bits are a number, and the protocol keeps writers away.
        unsafe { slice::from_raw_parts(self.map.as_ptr().add(at).cast(), count) }
    }

    /// Returns `at` after checking that `bytes` aligned bytes lie there. Positions are computed from the layout, so a violation is a bug.
    fn inside(&self, at: usize, bytes: usize, align: usize) -> usize {
        assert!(
            at.is_multiple_of(align) && at + bytes <= self.map.len(),
            "{bytes} bytes at {at} of a segment of {}",
            self.map.len()
        );
        at
    }
}

// SAFETY: the map is memory that lives as long as the value; words are atomic, and areas follow the protocol above.
unsafe impl Send for SharedSegment {}
// SAFETY: as above.
unsafe impl Sync for SharedSegment {}

#[cfg(test)]
mod tests {
    use super::{super::layout::SegmentLayout, *};

    #[test]
    fn a_segment_is_found_by_its_nonce_only() {
        let layout = SegmentLayout::of(2);
        let (segment, file, holder) = SharedSegment::create(layout.bytes()).unwrap();
        let other = SharedSegment::open(layout.bytes(), holder).unwrap();
        segment.put(layout.area(1, 1), &[1.5f32, -2.0]);
        assert_eq!(other.view::<f32>(layout.area(1, 1), 2), [1.5, -2.0]);
        let refused = |bytes, holder| SharedSegment::open(bytes, holder).unwrap_err().to_string();
        let [pid, fd, a, b] = holder;
        assert!(refused(layout.bytes(), [pid, fd, a, b ^ 1]).contains("another segment"));
        assert!(refused(SegmentLayout::of(3).bytes(), holder).contains("bytes"));
        assert!(refused(layout.bytes(), Holder::default()).contains("no segment was made"));
        assert!(SharedSegment::open(layout.bytes(), [pid, 9999, a, b]).is_err());
        assert!(file.set_len(1).is_err(), "its length is sealed");
    }
}
