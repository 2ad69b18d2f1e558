//! Memory with owners: device memory that is shared with other processes by a descriptor, and host words that devices access.
//!
//! **Invariant:** pages stay as long as any process holds them; the driver counts references.

use super::gpu::{Gpu, LinkError};
use crate::backend::torch::over;
use cudarc::driver::sys as cu;
use std::{
    ffi::c_void,
    mem::zeroed,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};
use tch::Tensor;

/// Handle type for sharing memory by a file descriptor.
const DESCRIPTOR: cu::CUmemAllocationHandleType =
    cu::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
/// Longest wait for the device before memory is unmapped.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Pages of one device's memory, mapped for this process's device.
#[derive(Debug)]
pub struct Memory {
    gpu: Gpu,
    at: cu::CUdeviceptr,
    bytes: usize,
    pages: cu::CUmemGenericAllocationHandle,
    /// Whether this process allocated the memory and may have tensors in it.
    own: bool,
}

// SAFETY: addresses and handles of the driver's, which any thread may use.
unsafe impl Send for Memory {}
// SAFETY: as above; nothing here changes.
unsafe impl Sync for Memory {}

fn location(gpu: Gpu) -> cu::CUmemLocation {
    cu::CUmemLocation { type_: cu::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu.index as i32 }
}

impl Memory {
    /// Allocates at least `bytes` of the device's own memory, rounded up to whole pages and filled with zeros.
    pub fn new(gpu: Gpu, bytes: usize) -> Result<Self, LinkError> {
        // SAFETY: a plain structure of numbers and null pointers, of which zeros are a value.
        let mut asked: cu::CUmemAllocationProp = unsafe { zeroed() };
        asked.type_ = cu::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        asked.requestedHandleTypes = DESCRIPTOR;
        asked.location = location(gpu);
        let least = cu::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        let mut page = 0;
        // SAFETY: both structures live during the call.
        gpu.ask("find the size of a page", || unsafe {
            cu::cuMemGetAllocationGranularity(&raw mut page, &raw const asked, least)
        })?;
        let bytes = bytes.max(1).next_multiple_of(page.max(1));
        let mut pages = 0;
        // SAFETY: as above; the pages are released in `drop`.
        gpu.ask("take memory", || unsafe { cu::cuMemCreate(&raw mut pages, bytes, &raw const asked, 0) })?;
        let memory = Self::map(gpu, bytes, pages, true)?;
        // Not on the default stream: the device's launch latency grows when a third stream is in use.
        let current = gpu.current()?;
        // SAFETY: so many bytes are mapped there, for this device.
        gpu.ask("clear memory", || unsafe { cu::cuMemsetD8Async(memory.at, 0, bytes, current.raw()) })?;
        // Other streams do not wait for the one that clears.
        // SAFETY: waits for what this context has been given.
        gpu.ask("wait for the device", || unsafe { cu::cuCtxSynchronize() })?;
        Ok(memory)
    }

    /// Maps memory of `bytes` bytes that another process shared by `descriptor`.
    ///
    /// # Errors
    /// When the descriptor is no such memory, or this device does not reach it.
    pub fn open(gpu: Gpu, bytes: usize, descriptor: BorrowedFd<'_>) -> Result<Self, LinkError> {
        let mut pages = 0;
        // The driver takes the number in place of a pointer.
        let number = ptr::without_provenance_mut::<c_void>(descriptor.as_raw_fd() as usize);
        // SAFETY: the descriptor is open during the call; the pages are released in `drop`.
        gpu.ask("open another device's memory", || unsafe {
            cu::cuMemImportFromShareableHandle(&raw mut pages, number, DESCRIPTOR)
        })?;
        Self::map(gpu, bytes, pages, false)
    }

    fn map(gpu: Gpu, bytes: usize, pages: cu::CUmemGenericAllocationHandle, own: bool) -> Result<Self, LinkError> {
        // Dropping this releases the pages if a later call fails.
        let mut memory = Self { gpu, at: 0, bytes, pages, own };
        let mut at = 0;
        // SAFETY: `at` is writable.
        gpu.ask("find room for addresses", || unsafe { cu::cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0) })?;
        // SAFETY: the addresses are free, and the pages have so many bytes, or the driver refuses.
        let mapped = gpu.ask("map memory", || unsafe { cu::cuMemMap(at, bytes, 0, pages, 0) });
        if let Err(error) = mapped {
            // SAFETY: reserved above, and nothing is mapped there.
            let _ = gpu.ask("free addresses", || unsafe { cu::cuMemAddressFree(at, bytes) });
            return Err(error);
        }
        memory.at = at;
        let access = cu::CUmemAccessDesc {
            location: location(gpu),
            flags: cu::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: so many bytes are mapped there; the structure lives during the call.
        gpu.ask("let the device see memory", || unsafe { cu::cuMemSetAccess(at, bytes, &raw const access, 1) })?;
        Ok(memory)
    }

    /// Returns a descriptor with which another process of this host can [`Memory::open`] the memory.
    pub fn share(&self) -> Result<OwnedFd, LinkError> {
        let mut number: i32 = -1;
        // SAFETY: for this type of handle the driver writes an `int`.
        self.gpu.ask("share memory", || unsafe {
            cu::cuMemExportToShareableHandle((&raw mut number).cast(), self.pages, DESCRIPTOR, 0)
        })?;
        // SAFETY: the driver just made this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    /// Address of the first byte for this device.
    pub fn at(&self) -> u64 {
        self.at
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns a tensor shaped like `like` over the memory from byte `start` on. The tensor keeps the memory alive.
    pub fn tensor(self: &Arc<Self>, start: usize, like: &Tensor) -> Result<Tensor, LinkError> {
        let status = |status: String| LinkError { what: "lay a tensor over memory", status };
        let bytes = like.numel() * like.kind().elt_size_in_bytes();
        if start + bytes > self.bytes || !like.is_contiguous() {
            return Err(status(format!("{bytes} bytes from {start} on, or with gaps, where {} are", self.bytes)));
        }
        let at = self.at + start as u64;
        // SAFETY: so many bytes are mapped there for the tensor's device until the owner is let go of.
        unsafe { over(at as *mut c_void, like, Arc::clone(self)) }.map_err(|error| status(error.message))
    }

    fn give_back(&self) {
        if self.at != 0 {
            // SAFETY: mapped in `map`, and nobody else knows the addresses any more.
            let unmapped = self.gpu.ask("unmap memory", || unsafe { cu::cuMemUnmap(self.at, self.bytes) });
            // SAFETY: as above.
            let freed = self.gpu.ask("free addresses", || unsafe { cu::cuMemAddressFree(self.at, self.bytes) });
            if let Err(error) = unmapped.and(freed) {
                tracing::warn!(%error, "device memory could not be released");
            }
        }
        // SAFETY: held since it was made or opened, and released here only.
        let _ = self.gpu.ask("release memory", || unsafe { cu::cuMemRelease(self.pages) });
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.own || self.at == 0 {
            return self.give_back();
        }
        // Unmapping does not wait for the device, so this thread waits. A device that hangs keeps its memory.
        let gpu = self.gpu;
        let (sender, receiver) = mpsc::channel();
        let waits = thread::Builder::new().name("enn-memory".to_owned()).spawn(move || {
            // SAFETY: waits for the context that `ask` makes current.
            let idle = gpu.ask("wait for the device", || unsafe { cu::cuCtxSynchronize() });
            let _nobody_waits_any_more = sender.send(idle.is_ok());
        });
        match waits.map(|_thread| receiver.recv_timeout(IDLE_WAIT_MAX)) {
            Ok(Ok(_)) => self.give_back(),
            _ => tracing::warn!(bytes = self.bytes, "a device does not become idle; its memory is not released"),
        }
    }
}

/// Words of host memory that devices and the host read and write.
#[derive(Debug)]
pub struct Words {
    gpu: Gpu,
    host: *mut c_void,
    at: cu::CUdeviceptr,
}

// SAFETY: addresses; the words behind them are touched by the driver only.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Registers `bytes` bytes from `host` on for access by the device.
    ///
    /// # Safety
    /// The bytes stay mapped until this is dropped, and all accesses are atomic.
    pub unsafe fn new(gpu: Gpu, host: *mut u8, bytes: usize) -> Result<Self, LinkError> {
        let host = host.cast::<c_void>();
        let how = cu::CU_MEMHOSTREGISTER_PORTABLE | cu::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: mapped, as the caller says.
        gpu.ask("lock memory of the host", || unsafe { cu::cuMemHostRegister_v2(host, bytes, how) })?;
        let mut words = Self { gpu, host, at: 0 };
        // SAFETY: registered above.
        gpu.ask("find memory of the host", || unsafe { cu::cuMemHostGetDevicePointer_v2(&raw mut words.at, host, 0) })?;
        Ok(words)
    }

    /// Address of the word at byte `at` for the device.
    pub fn word(&self, at: usize) -> u64 {
        self.at + at as u64
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: registered in `new`; whoever holds this has waited for the device.
        let _ = self.gpu.ask("unlock memory of the host", || unsafe { cu::cuMemHostUnregister(self.host) });
    }
}
