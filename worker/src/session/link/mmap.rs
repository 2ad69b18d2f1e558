//! The control page of this worker, mapped from the descriptor that the launcher passed on.

use enn_common::wire::control::{ControlError, ControlPage, PAGE_BYTES};
use memmap2::{MmapOptions, MmapRaw};
use std::{
    fs::{File, OpenOptions},
    io,
    sync::atomic::AtomicU64,
};

/// Maps the page behind descriptor `fd` until the process ends.
pub(crate) fn control_page(fd: i32) -> io::Result<Result<ControlPage<'static>, ControlError>> {
    // A second open of the same memory: the inherited descriptor stays the launcher's business.
    let file = memory(fd)?;
    let map: MmapRaw = MmapOptions::new().len(PAGE_BYTES).map_raw(&file)?;
    // Leaked on purpose: the page is used until the process ends, also by the thread that notices the launcher's death.
    let map: &'static MmapRaw = Box::leak(Box::new(map));
    let words = PAGE_BYTES / size_of::<AtomicU64>();
    // SAFETY: the mapping is page-aligned, PAGE_BYTES long, lives for ever, and is only touched through atomics on both sides.
    let words = unsafe { std::slice::from_raw_parts(map.as_ptr().cast::<AtomicU64>(), words) };
    Ok(ControlPage::open(words))
}

/// The memory behind the page, which may be made longer.
pub(crate) fn memory(fd: i32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{fd}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::wire::control::Phase;
    use std::os::fd::AsRawFd;

    #[test]
    fn both_sides_see_each_other() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE_BYTES as u64).unwrap();
        assert!(control_page(file.as_raw_fd()).unwrap().is_err(), "a page without magic is refused");
        let shared = enn_common::fs::mmap::SharedMap::of(&file, PAGE_BYTES).unwrap();
        shared.word64(0).unwrap().store(enn_common::wire::control::MAGIC, std::sync::atomic::Ordering::Release);
        let page = control_page(file.as_raw_fd()).unwrap().unwrap();
        page.set_phase(Phase::Save, 7);
        page.set_step(9, 8);
        assert_eq!(shared.word64(16).unwrap().load(std::sync::atomic::Ordering::Relaxed), 9);
        assert_eq!(shared.word32(12).unwrap().load(std::sync::atomic::Ordering::Relaxed), Phase::Save as u32);
        shared.word32(8).unwrap().store(1, std::sync::atomic::Ordering::Relaxed);
        assert!(page.stop());
    }

    #[test]
    fn a_closed_descriptor_is_an_error() {
        assert!(control_page(9999).is_err());
    }
}
