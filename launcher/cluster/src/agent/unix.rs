//! The control page's mapping and clock: all of the agent that the type system cannot check.

use enn_common::{
    fs::mmap::SharedPart,
    wire::control::{ControlPage, PAGE_BYTES},
};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, ProtFlags, mmap, munmap},
    },
    unistd::ftruncate,
};
use std::{
    ffi::c_void,
    fs::File,
    io,
    num::NonZeroUsize,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    ptr::NonNull,
    sync::atomic::AtomicU64,
};

/// A control page shared with one worker.
#[derive(Debug)]
pub(super) struct Page {
    fd: OwnedFd,
    at: NonNull<c_void>,
}

impl Page {
    /// A fresh page with its magic written.
    pub(super) fn create() -> io::Result<Self> {
        let fd = memfd_create("enn-control", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        ftruncate(&fd, PAGE_BYTES as i64)?;
        // The worker may add memory behind the page, but what is mapped here stays there.
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))?;
        let length = NonZeroUsize::new(PAGE_BYTES).ok_or(Errno::EINVAL)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a descriptor with PAGE_BYTES bytes that is
        // sealed against getting shorter; it is unmapped in Drop only.
        let at = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &fd, 0)? };
        let page = Self { fd, at };
        ControlPage::create(page.words()).map_err(io::Error::other)?;
        Ok(page)
    }

    pub(super) fn fields(&self) -> Option<ControlPage<'_>> {
        ControlPage::open(self.words()).ok()
    }

    /// Descriptor for the worker.
    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The worker may write again where it left what has this ticket.
    pub(super) fn give_back(&self, ticket: u64) {
        self.fields().iter().for_each(|page| page.give_back(ticket));
    }

    /// Memory that the worker added behind the page. It stays as long as what is returned, also when the worker is gone.
    pub(super) fn part(&self, at: u64, bytes: usize) -> io::Result<SharedPart> {
        let behind = at >= PAGE_BYTES as u64 && at.is_multiple_of(PAGE_BYTES as u64);
        if !behind {
            let text =
                format!("memory was left at byte {at}, expected a multiple of {PAGE_BYTES} behind the control page");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        SharedPart::of(&File::from(self.fd.try_clone()?), at, bytes, false)
    }

    fn words(&self) -> &[AtomicU64] {
        let words = PAGE_BYTES / size_of::<AtomicU64>();
        // SAFETY: the mapping is PAGE_BYTES long, page-aligned and lives as long as self; AtomicU64 allows the changes
        // that the other process makes, and every bit pattern is a u64.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast::<AtomicU64>(), words) }
    }
}

// SAFETY: the mapping is not bound to a thread, and all access to it is atomic.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped in `create` with this length; the slices borrowed from self are gone.
        let _mapped = unsafe { munmap(self.at, PAGE_BYTES) };
    }
}

/// CLOCK_MONOTONIC in nanoseconds, the clock of the pages' heartbeats.
pub(super) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec of ours to be written; the call fails for no clock that Linux has always had.
    let _always_there = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_shared_and_has_its_magic() {
        let page = Page::create().unwrap();
        let path = format!("/proc/self/fd/{}", page.fd());
        page.fields().unwrap().set_stop();
        let bytes = std::fs::read(path).unwrap();
        assert_eq!((bytes.len(), &bytes[..8], bytes[8]), (PAGE_BYTES, b"ENNctl01".as_slice(), 1));
    }

    #[test]
    fn memory_behind_the_page_can_be_added_but_not_taken_away() {
        let page = Page::create().unwrap();
        let worker = File::options().read(true).write(true).open(format!("/proc/self/fd/{}", page.fd())).unwrap();
        worker.set_len(3 * PAGE_BYTES as u64).unwrap();
        SharedPart::of(&worker, PAGE_BYTES as u64, 100, true).unwrap().bytes_mut()[99] = 5;
        let part = page.part(PAGE_BYTES as u64, 2 * PAGE_BYTES).unwrap();
        assert_eq!(part.bytes()[99], 5);
        assert!(worker.set_len(PAGE_BYTES as u64).is_err());
        for (at, bytes) in [(0, 1), (PAGE_BYTES as u64 + 1, 1), (PAGE_BYTES as u64, 2 * PAGE_BYTES + 1)] {
            assert!(page.part(at, bytes).is_err(), "{at} {bytes}");
        }
    }
}
