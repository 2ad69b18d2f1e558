//! The C interface with owners and `Result`: each pointer has one owner that frees it, each status becomes a [`ShimFault`].
//!
//! Safe to call: arguments are Rust values, and no pointer leaves this file.

use super::{super::Reduce, sys};
use std::{
    ffi::{CStr, CString, c_void},
    ptr::{self, NonNull},
    time::Duration,
};
use tch::Tensor;

/// An error of libtorch.
#[derive(Debug)]
pub(super) struct ShimFault {
    /// Whether a time limit passed, as far as the shim can tell.
    pub(super) timed_out: bool,
    /// libtorch's message, without its backtrace.
    pub(super) message: String,
}

fn check(status: i32) -> Result<(), ShimFault> {
    if status == sys::ENN_OK {
        return Ok(());
    }
    // SAFETY: the shim keeps a NUL-terminated string per thread, valid until the next call on this thread.
    let text = unsafe { CStr::from_ptr(sys::enn_c10d_error()) };
    let message = text.to_string_lossy().trim().replace('\n', " ");
    Err(ShimFault { timed_out: status == sys::ENN_TIMED_OUT, message })
}

fn millis(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX)
}

fn owned<T>(status: i32, pointer: *mut T) -> Result<NonNull<T>, ShimFault> {
    check(status)?;
    NonNull::new(pointer).ok_or_else(|| ShimFault { timed_out: false, message: "libtorch returned nothing".into() })
}

/// Collects the bytes of one value. `context` is a `Vec<u8>`.
unsafe extern "C" fn collect(context: *mut c_void, data: *const u8, bytes: usize) {
    // SAFETY: `get` and `compare_set` pass a live `Vec<u8>` that nothing else borrows during the call.
    let value = unsafe { &mut *context.cast::<Vec<u8>>() };
    if bytes > 0 {
        // SAFETY: the shim passes a readable vector of `bytes` bytes; it is not null when `bytes` is above zero.
        value.extend_from_slice(unsafe { std::slice::from_raw_parts(data, bytes) });
    }
}

/// A connected store client.
#[derive(Debug)]
pub(super) struct RawStore(NonNull<sys::enn_store>);

// SAFETY: c10d's TCPStore guards its connection with a mutex and has no thread-local state.
unsafe impl Send for RawStore {}

impl RawStore {
    pub(super) fn connect(host: &CStr, port: u16, prefix: &CStr, timeout: Duration) -> Result<Self, ShimFault> {
        let mut out = ptr::null_mut();
        // SAFETY: the strings are NUL-terminated and `out` is writable; the shim copies both.
        let status =
            unsafe { sys::enn_store_connect(host.as_ptr(), port, prefix.as_ptr(), millis(timeout), &raw mut out) };
        owned(status, out).map(Self)
    }

    pub(super) fn set(&self, key: &CStr, value: &[u8]) -> Result<(), ShimFault> {
        // SAFETY: the handle lives as long as self; key and value are readable during the call.
        check(unsafe { sys::enn_store_set(self.0.as_ptr(), key.as_ptr(), value.as_ptr(), value.len()) })
    }

    pub(super) fn get(&self, key: &CStr) -> Result<Vec<u8>, ShimFault> {
        let mut value = Vec::<u8>::new();
        // SAFETY: as in `set`; `collect` expects exactly this context.
        check(unsafe { sys::enn_store_get(self.0.as_ptr(), key.as_ptr(), collect, (&raw mut value).cast()) })?;
        Ok(value)
    }

    pub(super) fn compare_set(&self, key: &CStr, expected: &[u8], wanted: &[u8]) -> Result<Vec<u8>, ShimFault> {
        let mut value = Vec::<u8>::new();
        // SAFETY: as in `get`; both slices are readable during the call.
        check(unsafe {
            sys::enn_store_compare_set(
                self.0.as_ptr(),
                key.as_ptr(),
                expected.as_ptr(),
                expected.len(),
                wanted.as_ptr(),
                wanted.len(),
                collect,
                (&raw mut value).cast(),
            )
        })?;
        Ok(value)
    }

    pub(super) fn append(&self, key: &CStr, value: &[u8]) -> Result<(), ShimFault> {
        // SAFETY: as in `set`.
        check(unsafe { sys::enn_store_append(self.0.as_ptr(), key.as_ptr(), value.as_ptr(), value.len()) })
    }

    pub(super) fn add(&self, key: &CStr, amount: i64) -> Result<i64, ShimFault> {
        let mut sum = 0;
        // SAFETY: as in `set`; `sum` is writable.
        check(unsafe { sys::enn_store_add(self.0.as_ptr(), key.as_ptr(), amount, &raw mut sum) })?;
        Ok(sum)
    }

    pub(super) fn check(&self, key: &CStr) -> Result<bool, ShimFault> {
        let mut present = 0;
        // SAFETY: as in `add`.
        check(unsafe { sys::enn_store_check(self.0.as_ptr(), key.as_ptr(), &raw mut present) })?;
        Ok(present != 0)
    }

    pub(super) fn wait(&self, key: &CStr, timeout: Duration) -> Result<(), ShimFault> {
        // SAFETY: as in `set`.
        check(unsafe { sys::enn_store_wait(self.0.as_ptr(), key.as_ptr(), millis(timeout)) })
    }

    pub(super) fn delete(&self, key: &CStr) -> Result<bool, ShimFault> {
        let mut deleted = 0;
        // SAFETY: as in `add`.
        check(unsafe { sys::enn_store_delete(self.0.as_ptr(), key.as_ptr(), &raw mut deleted) })?;
        Ok(deleted != 0)
    }

    /// Returns a client on the same connection that puts `prefix` before every key.
    pub(super) fn prefixed(&self, prefix: &CStr) -> Result<Self, ShimFault> {
        let mut out = ptr::null_mut();
        // SAFETY: the handle lives during the call, and the shim takes its own reference; `out` is writable.
        let status = unsafe { sys::enn_store_prefixed(self.0.as_ptr(), prefix.as_ptr(), &raw mut out) };
        owned(status, out).map(Self)
    }

    /// Returns a client for forming one group: its waits end when `abort` is triggered, and `timeout` from now.
    pub(super) fn guarded(&self, abort: &RawAbort, timeout: Duration) -> Result<Self, ShimFault> {
        let mut out = ptr::null_mut();
        // SAFETY: both handles live during the call, and the shim takes its own references; `out` is writable.
        let status =
            unsafe { sys::enn_store_guarded(self.0.as_ptr(), abort.0.as_ptr(), millis(timeout), &raw mut out) };
        owned(status, out).map(Self)
    }

    pub(super) fn num_keys(&self) -> Result<i64, ShimFault> {
        let mut keys = 0;
        // SAFETY: as in `add`.
        check(unsafe { sys::enn_store_num_keys(self.0.as_ptr(), &raw mut keys) })?;
        Ok(keys)
    }
}

impl Drop for RawStore {
    fn drop(&mut self) {
        // SAFETY: the only owner frees once.
        unsafe { sys::enn_store_free(self.0.as_ptr()) }
    }
}

/// Aborts a group from any thread.
#[derive(Debug)]
pub(crate) struct RawAbort(NonNull<sys::enn_cut>);

// SAFETY: the shim's functions on it may be called from any thread at any time; it is freed by its only owner.
unsafe impl Send for RawAbort {}
// SAFETY: as above.
unsafe impl Sync for RawAbort {}

impl Default for RawAbort {
    fn default() -> Self {
        // SAFETY: takes nothing, and never returns null: running out of memory ends the process.
        Self(unsafe { NonNull::new_unchecked(sys::enn_cut_new()) })
    }
}

impl RawAbort {
    /// Aborts the group. An error of libtorch is only logged.
    pub(crate) fn abort(&self) {
        // SAFETY: the handle lives as long as self.
        if let Err(fault) = check(unsafe { sys::enn_cut_now(self.0.as_ptr()) }) {
            tracing::warn!(message = fault.message, "aborting a process group failed");
        }
    }

    pub(crate) fn is_aborted(&self) -> bool {
        // SAFETY: the handle lives as long as self.
        unsafe { sys::enn_cut_is(self.0.as_ptr()) != 0 }
    }
}

impl Drop for RawAbort {
    fn drop(&mut self) {
        // SAFETY: the only owner frees once; groups hold references of their own.
        unsafe { sys::enn_cut_free(self.0.as_ptr()) }
    }
}

/// Parameters of a group to be formed.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawForm<'a> {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) abort: &'a RawAbort,
    /// Longest time of forming.
    pub(super) form: Duration,
    /// Longest time of one collective.
    pub(super) timeout: Duration,
}

/// A formed process group.
#[derive(Debug)]
pub(super) struct RawGroup(NonNull<sys::enn_group>);

// SAFETY: c10d's backends may be used from any one thread at a time; `RawGroup` is not `Sync`.
unsafe impl Send for RawGroup {}

impl RawGroup {
    pub(super) fn gloo(store: &RawStore, form: RawForm<'_>, bind: &CString, threads: i32) -> Result<Self, ShimFault> {
        let RawForm { rank, size, abort, form, timeout } = form;
        let mut out = ptr::null_mut();
        // SAFETY: store and cut outlive the call, and the shim takes its own references to them; `out` is writable.
        let status = unsafe {
            sys::enn_gloo_new(
                store.0.as_ptr(),
                abort.0.as_ptr(),
                rank.cast_signed(),
                size.cast_signed(),
                bind.as_ptr(),
                threads,
                millis(form),
                millis(timeout),
                &raw mut out,
            )
        };
        owned(status, out).map(Self)
    }

    #[cfg(feature = "cuda")]
    pub(super) fn nccl(store: &RawStore, form: RawForm<'_>, device: i32) -> Result<Self, ShimFault> {
        let RawForm { rank, size, abort, form, timeout } = form;
        let mut out = ptr::null_mut();
        // SAFETY: as in `gloo`.
        let status = unsafe {
            sys::enn_nccl_new(
                store.0.as_ptr(),
                abort.0.as_ptr(),
                rank.cast_signed(),
                size.cast_signed(),
                device,
                millis(form),
                millis(timeout),
                &raw mut out,
            )
        };
        owned(status, out).map(Self)
    }

    pub(super) fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<RawWork, ShimFault> {
        let code = match reduce {
            Reduce::Sum => 0,
            Reduce::Min => 1,
            Reduce::Max => 2,
        };
        let mut out = ptr::null_mut();
        // SAFETY: group and tensor live during the call; c10d takes its own reference to the tensor's storage.
        let status = unsafe { sys::enn_group_all_reduce(self.0.as_ptr(), tensor.as_ptr(), code, &raw mut out) };
        owned(status, out).map(RawWork)
    }

    pub(super) fn broadcast(&self, tensor: &Tensor, root: i32) -> Result<RawWork, ShimFault> {
        let mut out = ptr::null_mut();
        // SAFETY: as in `all_reduce`.
        let status = unsafe { sys::enn_group_broadcast(self.0.as_ptr(), tensor.as_ptr(), root, &raw mut out) };
        owned(status, out).map(RawWork)
    }

    /// Begins the collective on `whole`; `own` is this rank's part of it.
    pub(super) fn all_gather(&self, whole: &Tensor, own: &Tensor) -> Result<RawWork, ShimFault> {
        let mut out = ptr::null_mut();
        // SAFETY: as in `all_reduce`, for both tensors.
        let status = unsafe { sys::enn_group_all_gather(self.0.as_ptr(), whole.as_ptr(), own.as_ptr(), &raw mut out) };
        owned(status, out).map(RawWork)
    }

    /// Begins the collective on `whole`; `own` is this rank's part of it.
    #[cfg(feature = "cuda")]
    pub(super) fn reduce_scatter(&self, whole: &Tensor, own: &Tensor) -> Result<RawWork, ShimFault> {
        let mut out = ptr::null_mut();
        // SAFETY: as in `all_reduce`, for both tensors.
        let status =
            unsafe { sys::enn_group_reduce_scatter(self.0.as_ptr(), whole.as_ptr(), own.as_ptr(), &raw mut out) };
        owned(status, out).map(RawWork)
    }

    pub(super) fn barrier(&self, timeout: Duration) -> Result<RawWork, ShimFault> {
        let mut out = ptr::null_mut();
        // SAFETY: as in `all_reduce`.
        let status = unsafe { sys::enn_group_barrier(self.0.as_ptr(), millis(timeout), &raw mut out) };
        owned(status, out).map(RawWork)
    }

    pub(super) fn end(self, abort: bool, timeout: Duration) -> Result<(), ShimFault> {
        let group = std::mem::ManuallyDrop::new(self);
        // SAFETY: `enn_group_end` frees the handle whatever it returns, and `ManuallyDrop` keeps us from doing so again.
        check(unsafe { sys::enn_group_end(group.0.as_ptr(), i32::from(abort), millis(timeout)) })
    }
}

/// Time a group that is dropped without `end` may take before it is left to a thread of its own.
const DROP_TIMEOUT: Duration = Duration::from_secs(1);

impl Drop for RawGroup {
    fn drop(&mut self) {
        // SAFETY: the only owner ends the group once; the status has nobody to go to.
        let _status = unsafe { sys::enn_group_end(self.0.as_ptr(), 1, millis(DROP_TIMEOUT)) };
    }
}

/// A collective that was begun.
#[derive(Debug)]
pub(super) struct RawWork(NonNull<sys::enn_work>);

// SAFETY: a c10d Work is guarded by its own mutex and may be waited for from any thread.
unsafe impl Send for RawWork {}

impl RawWork {
    /// Waits for the collective. Returns its result and the time spent waiting for the other ranks.
    pub(super) fn wait(&self, timeout: Duration) -> (Result<(), ShimFault>, Duration) {
        let mut waited = 0;
        // SAFETY: the handle lives as long as self; `waited` is writable.
        let ended = check(unsafe { sys::enn_work_wait(self.0.as_ptr(), millis(timeout), &raw mut waited) });
        (ended, Duration::from_nanos(waited.max(0).cast_unsigned()))
    }

    pub(super) fn order(&self, timeout: Duration) -> Result<(), ShimFault> {
        // SAFETY: as in `wait`.
        check(unsafe { sys::enn_work_order(self.0.as_ptr(), millis(timeout)) })
    }

    pub(super) fn is_done(&self) -> Result<bool, ShimFault> {
        let mut done = 0;
        // SAFETY: as in `wait`; `done` is writable.
        check(unsafe { sys::enn_work_is_done(self.0.as_ptr(), &raw mut done) })?;
        Ok(done != 0)
    }
}

impl Drop for RawWork {
    fn drop(&mut self) {
        // SAFETY: the only owner frees once; c10d keeps what is in flight by references of its own.
        unsafe { sys::enn_work_free(self.0.as_ptr()) }
    }
}
