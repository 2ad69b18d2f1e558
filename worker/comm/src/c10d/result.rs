//! The C interface with owners and `Result`: each pointer has one owner that frees it, each status becomes a [`ShimFault`].
//!
//! Safe to call: arguments are Rust values, and no pointer leaves this file.

use super::sys;
use crate::{CommError, Reduce};
use std::{
    ffi::{CStr, CString, c_char, c_void},
    ptr::{self, NonNull},
    time::Duration,
};
use tch::Tensor;

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

impl ShimFault {
    pub(super) fn at(self, operation: &'static str, key: &str) -> CommError {
        CommError::Store { operation, key: key.to_owned(), message: self.message }
    }
}

pub(super) fn c_string(what: &'static str, text: &str) -> Result<CString, CommError> {
    CString::new(text).map_err(|_| CommError::Nul { what, text: text.to_owned() })
}

fn millis(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX)
}

fn made<T>(run: impl FnOnce(*mut *mut T) -> i32) -> Result<NonNull<T>, ShimFault> {
    let mut out = ptr::null_mut();
    check(run(&raw mut out))?;
    NonNull::new(out).ok_or_else(|| ShimFault { timed_out: false, message: "libtorch returned nothing".into() })
}

fn number<T: Default>(run: impl FnOnce(*mut T) -> i32) -> Result<T, ShimFault> {
    let mut out = T::default();
    check(run(&raw mut out))?;
    Ok(out)
}

/// Runs a function that gives one value to [`collect`], whose context it is given.
fn collected(run: impl FnOnce(*mut c_void) -> i32) -> Result<Vec<u8>, ShimFault> {
    let mut value = Vec::<u8>::new();
    check(run((&raw mut value).cast()))?;
    Ok(value)
}

/// Collects the bytes of one value. `context` is a `Vec<u8>`.
unsafe extern "C" fn collect(context: *mut c_void, data: *const u8, bytes: usize) {
    // SAFETY: `collected` passes a live `Vec<u8>` that nothing else borrows during the call.
    let value = unsafe { &mut *context.cast::<Vec<u8>>() };
    if bytes > 0 {
        // SAFETY: the shim passes a readable vector of `bytes` bytes; it is not null when `bytes` is above zero.
        value.extend_from_slice(unsafe { std::slice::from_raw_parts(data, bytes) });
    }
}

/// The operations of a connected store, libtorch's TCPStore client.
#[derive(Debug)]
pub struct StoreClient(NonNull<sys::enn_store>);

// SAFETY: c10d's TCPStore guards its connection with a mutex and has no thread-local state.
unsafe impl Send for StoreClient {}

impl StoreClient {
    pub(super) fn connect(host: &CStr, port: u16, prefix: &CStr, timeout: Duration) -> Result<Self, ShimFault> {
        // SAFETY: the strings are NUL-terminated; the shim copies both.
        made(|out| unsafe { sys::enn_store_connect(host.as_ptr(), port, prefix.as_ptr(), millis(timeout), out) })
            .map(Self)
    }

    /// Returns a client on the same connection that puts `prefix` before every key.
    pub(super) fn prefixed(&self, prefix: &CStr) -> Result<Self, ShimFault> {
        // SAFETY: the handle lives during the call, and the shim takes its own reference.
        made(|out| unsafe { sys::enn_store_prefixed(self.0.as_ptr(), prefix.as_ptr(), out) }).map(Self)
    }

    /// Returns a client for forming one group: its waits end when `abort` is triggered, and `timeout` from now.
    pub(super) fn guarded(&self, abort: &RawAbort, timeout: Duration) -> Result<Self, ShimFault> {
        // SAFETY: both handles live during the call, and the shim takes its own references.
        made(|out| unsafe { sys::enn_store_guarded(self.0.as_ptr(), abort.0.as_ptr(), millis(timeout), out) }).map(Self)
    }

    /// Runs an operation on a key, with the store's handle and the key as a string of C, which live during the call.
    fn on_key<T>(
        &self,
        operation: &'static str,
        key: &str,
        run: impl FnOnce(*mut sys::enn_store, *const c_char) -> Result<T, ShimFault>,
    ) -> Result<T, CommError> {
        let name = c_string("key", key)?;
        run(self.0.as_ptr(), name.as_ptr()).map_err(|fault| fault.at(operation, key))
    }

    /// Sets `key` to `value` and wakes all waiters.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), CommError> {
        self.on_key("set", key, |store, key| {
            // SAFETY: handle and key live, see `on_key`; the value is readable during the call.
            check(unsafe { sys::enn_store_set(store, key, value.as_ptr(), value.len()) })
        })
    }

    /// Returns the value of `key`; waits until it exists.
    pub fn get(&self, key: &str) -> Result<Vec<u8>, CommError> {
        self.on_key("get", key, |store, key| {
            // SAFETY: as in `set`; `collect` expects exactly this context.
            collected(|value| unsafe { sys::enn_store_get(store, key, collect, value) })
        })
    }

    /// Sets `key` to `wanted` if its value is `expected` (empty: if it is absent). Returns the value afterwards.
    pub fn compare_set(&self, key: &str, expected: &[u8], wanted: &[u8]) -> Result<Vec<u8>, CommError> {
        let [old, new] = [expected, wanted].map(|bytes| (bytes.as_ptr(), bytes.len()));
        self.on_key("compare_set", key, |store, key| {
            // SAFETY: as in `get`; both slices are readable during the call.
            collected(|to| unsafe { sys::enn_store_compare_set(store, key, old.0, old.1, new.0, new.1, collect, to) })
        })
    }

    /// Appends to the value of `key`, which begins empty.
    pub fn append(&self, key: &str, value: &[u8]) -> Result<(), CommError> {
        self.on_key("append", key, |store, key| {
            // SAFETY: as in `set`.
            check(unsafe { sys::enn_store_append(store, key, value.as_ptr(), value.len()) })
        })
    }

    /// Adds to the counter `key`, which begins at 0. Returns the sum.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64, CommError> {
        // SAFETY: as in `set`.
        self.on_key("add", key, |store, key| number(|sum| unsafe { sys::enn_store_add(store, key, amount, sum) }))
    }

    /// Returns whether `key` exists.
    pub fn check(&self, key: &str) -> Result<bool, CommError> {
        // SAFETY: as in `set`.
        self.on_key("check", key, |store, key| number(|there| unsafe { sys::enn_store_check(store, key, there) }))
            .map(|there: i32| there != 0)
    }

    /// Waits until `key` exists, at most `timeout`.
    pub fn wait(&self, key: &str, timeout: Duration) -> Result<(), CommError> {
        // SAFETY: as in `set`.
        self.on_key("wait", key, |store, key| check(unsafe { sys::enn_store_wait(store, key, millis(timeout)) }))
    }

    /// Removes `key`. Returns whether it was there.
    pub fn delete(&self, key: &str) -> Result<bool, CommError> {
        // SAFETY: as in `set`.
        self.on_key("delete", key, |store, key| number(|there| unsafe { sys::enn_store_delete(store, key, there) }))
            .map(|there: i32| there != 0)
    }
}

impl Drop for StoreClient {
    fn drop(&mut self) {
        // SAFETY: the only owner frees once.
        unsafe { sys::enn_store_free(self.0.as_ptr()) }
    }
}

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

#[derive(Debug)]
pub(super) struct RawGroup(NonNull<sys::enn_group>);

// SAFETY: c10d's backends may be used from any one thread at a time; `RawGroup` is not `Sync`.
unsafe impl Send for RawGroup {}

impl RawGroup {
    pub(super) fn gloo(
        store: &StoreClient,
        form: RawForm<'_>,
        bind: &CString,
        threads: i32,
    ) -> Result<Self, ShimFault> {
        let RawForm { rank, size, abort, form, timeout } = form;
        // SAFETY: store and cut outlive the call, and the shim takes its own references to them.
        made(|out| unsafe {
            sys::enn_gloo_new(
                store.0.as_ptr(),
                abort.0.as_ptr(),
                rank.cast_signed(),
                size.cast_signed(),
                bind.as_ptr(),
                threads,
                millis(form),
                millis(timeout),
                out,
            )
        })
        .map(Self)
    }

    #[cfg(feature = "cuda")]
    pub(super) fn nccl(store: &StoreClient, form: RawForm<'_>, device: i32) -> Result<Self, ShimFault> {
        let RawForm { rank, size, abort, form, timeout } = form;
        // SAFETY: as in `gloo`.
        made(|out| unsafe {
            sys::enn_nccl_new(
                store.0.as_ptr(),
                abort.0.as_ptr(),
                rank.cast_signed(),
                size.cast_signed(),
                device,
                millis(form),
                millis(timeout),
                out,
            )
        })
        .map(Self)
    }

    pub(super) fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<RawWork, ShimFault> {
        let code = reduce as i32;
        // SAFETY: group and tensor live during the call; c10d takes its own reference to the tensor's storage.
        made(|out| unsafe { sys::enn_group_all_reduce(self.0.as_ptr(), tensor.as_ptr(), code, out) }).map(RawWork)
    }

    pub(super) fn broadcast(&self, tensor: &Tensor, root: i32) -> Result<RawWork, ShimFault> {
        // SAFETY: as in `all_reduce`.
        made(|out| unsafe { sys::enn_group_broadcast(self.0.as_ptr(), tensor.as_ptr(), root, out) }).map(RawWork)
    }

    /// Begins the collective on `whole`; `own` is this rank's part of it.
    pub(super) fn all_gather(&self, whole: &Tensor, own: &Tensor) -> Result<RawWork, ShimFault> {
        // SAFETY: as in `all_reduce`, for both tensors.
        made(|out| unsafe { sys::enn_group_all_gather(self.0.as_ptr(), whole.as_ptr(), own.as_ptr(), out) })
            .map(RawWork)
    }

    /// Begins the collective on `whole`; `own` is this rank's part of it.
    #[cfg(feature = "cuda")]
    pub(super) fn reduce_scatter(&self, whole: &Tensor, own: &Tensor) -> Result<RawWork, ShimFault> {
        // SAFETY: as in `all_reduce`, for both tensors.
        made(|out| unsafe { sys::enn_group_reduce_scatter(self.0.as_ptr(), whole.as_ptr(), own.as_ptr(), out) })
            .map(RawWork)
    }

    pub(super) fn barrier(&self, timeout: Duration) -> Result<RawWork, ShimFault> {
        // SAFETY: as in `all_reduce`.
        made(|out| unsafe { sys::enn_group_barrier(self.0.as_ptr(), millis(timeout), out) }).map(RawWork)
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
        // SAFETY: as in `wait`.
        Ok(number(|done| unsafe { sys::enn_work_is_done(self.0.as_ptr(), done) })? != 0)
    }
}

impl Drop for RawWork {
    fn drop(&mut self) {
        // SAFETY: the only owner frees once; c10d keeps what is in flight by references of its own.
        unsafe { sys::enn_work_free(self.0.as_ptr()) }
    }
}
