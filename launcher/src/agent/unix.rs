//! The control page's mapping and clock: all of the agent that the type system cannot check.

use enn_common::wire::control::{ControlPage, PAGE_BYTES};
use nix::{
    errno::Errno,
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, ProtFlags, mmap, munmap},
    },
    unistd::ftruncate,
};
use std::{
    ffi::c_void,
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
        let fd = memfd_create("enn-control", MFdFlags::MFD_CLOEXEC)?;
        ftruncate(&fd, PAGE_BYTES as i64)?;
        let length = NonZeroUsize::new(PAGE_BYTES).ok_or(Errno::EINVAL)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a descriptor with PAGE_BYTES bytes that nobody
        // can shrink but the worker we start; it is unmapped in Drop only.
        let at = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &fd, 0)? };
        let page = Self { fd, at };
        ControlPage::create(page.words()).map_err(io::Error::other)?;
        Ok(page)
    }

    /// The page's fields.
    pub(super) fn fields(&self) -> Option<ControlPage<'_>> {
        ControlPage::open(self.words()).ok()
    }

    /// Descriptor for the worker.
    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn words(&self) -> &[AtomicU64] {
        let words = PAGE_BYTES / size_of::<AtomicU64>();
        // SAFETY: the mapping is PAGE_BYTES long, page-aligned and lives as long as self; AtomicU64 allows the changes
        // that the other process makes, and every bit pattern is a u64.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast::<AtomicU64>(), words) }
    }
}

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
}
