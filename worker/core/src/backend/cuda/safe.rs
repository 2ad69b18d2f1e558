//! Driver calls with `Result`: devices, their contexts, libtorch's streams.
//!
//! **Invariant:** the library is checked to be present before any call, as cudarc panics without it.

use crate::backend::torch::{ShimError, handle};
use cudarc::driver::{result as driver, sys as cu};
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

unsafe extern "C" {
    /// Of `shim/cuda.cpp`.
    fn enn_cuda_current_stream(device: i32, out: *mut *mut c_void) -> i32;
}

/// Whether libcuda, the driver, can be opened.
pub(in crate::backend) fn is_present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: opens a library and looks at nothing in it.
    *PRESENT.get_or_init(|| unsafe { cu::is_culib_present() })
}

/// A device's primary context, which libtorch uses, too. It is retained for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::backend) struct Context(usize);

fn text(error: driver::DriverError) -> String {
    error.error_name().map_or_else(|_| format!("{:?}", error.0), |name| name.to_string_lossy().into_owned())
}

/// Converts a status of the driver; the error is the driver's name for it.
pub(in crate::backend) fn status(result: cu::CUresult) -> Result<(), String> {
    result.result().map_err(text)
}

fn device(index: usize) -> Result<cu::CUdevice, String> {
    driver::device::get(i32::try_from(index).unwrap_or(-1)).map_err(text)
}

/// Returns the primary context of a device. The driver must be present.
pub(in crate::backend) fn primary(index: usize) -> Result<Context, String> {
    driver::init().map_err(text)?;
    let id = device(index)?;
    let mut context = ptr::null_mut();
    // SAFETY: the device exists, `context` is writable.
    status(unsafe { cu::cuDevicePrimaryCtxRetain(&raw mut context, id) })?;
    Ok(Context(context as usize))
}

pub(in crate::backend) fn attribute(index: usize, which: cu::CUdevice_attribute) -> Result<i32, String> {
    let id = device(index)?;
    // SAFETY: the device exists.
    unsafe { driver::device::get_attribute(id, which) }.map_err(text)
}

/// Returns the number of devices that are visible to this process.
pub(in crate::backend) fn count() -> Result<usize, String> {
    let count = driver::device::get_count().map_err(text)?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Returns a peer-to-peer attribute of two devices.
pub(in crate::backend) fn between(from: usize, to: usize, which: cu::CUdevice_P2PAttribute) -> Result<i32, String> {
    let from = device(from)?;
    let to = device(to)?;
    let mut number = 0;
    // SAFETY: both devices exist, `number` is writable.
    status(unsafe { cu::cuDeviceGetP2PAttribute(&raw mut number, which, from, to) })?;
    Ok(number)
}

/// Runs `body` with `context` current, and restores the previous context.
pub(in crate::backend) fn inside<T>(context: Context, body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let mut before = ptr::null_mut();
    // SAFETY: `before` is writable.
    status(unsafe { cu::cuCtxGetCurrent(&raw mut before) })?;
    let wanted = context.0 as cu::CUcontext;
    if before == wanted {
        return body();
    }
    // SAFETY: the context is retained for the life of the process.
    status(unsafe { cu::cuCtxSetCurrent(wanted) })?;
    let done = body();
    // SAFETY: `before` was current on this thread a moment ago.
    status(unsafe { cu::cuCtxSetCurrent(before) })?;
    done
}

#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct CudaStream(usize);

impl CudaStream {
    pub(in crate::backend) fn of(stream: cu::CUstream) -> Self {
        Self(stream as usize)
    }

    pub(in crate::backend) fn raw(self) -> cu::CUstream {
        self.0 as cu::CUstream
    }
}

pub(in crate::backend) fn current_stream(device: usize) -> Result<CudaStream, ShimError> {
    let device = i32::try_from(device).unwrap_or(-1);
    // SAFETY: no pointers but that of the result.
    let stream = handle(|out| unsafe { enn_cuda_current_stream(device, out) })?;
    Ok(CudaStream(stream as usize))
}
