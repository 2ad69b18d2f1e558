//! Artifacts with an owner.

use crate::backend::torch::{ShimError, check, handle};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, c_char, c_void},
    fs::File,
    io::Write,
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    path::Path,
    ptr,
};
use tch::{Device, Tensor};
use torch_sys::C_tensor;

// `shim/artifact.cpp`.
unsafe extern "C" {
    fn enn_artifact_archives() -> i32;
    fn enn_artifact_archive(path: *const c_char, out: *mut *mut c_void) -> i32;
    fn enn_artifact_package(path: *const c_char, device: i32, out: *mut *mut c_void) -> i32;
    fn enn_artifact_free(artifact: *mut c_void);
    fn enn_artifact_about(path: *const c_char, out: *mut *const c_char) -> i32;
    fn enn_artifact_run(
        artifact: *mut c_void,
        inputs: *const *const C_tensor,
        count: usize,
        outs: *mut *mut C_tensor,
        room: usize,
        made: *mut usize,
    ) -> i32;
    fn enn_artifact_stand_in(path: *const c_char) -> i32;
}

/// Most outputs of an artifact.
const OUTPUTS_MAX: usize = 64;
/// An empty shared library named libtorch.so, which satisfies the dependency of compiled packages.
const STAND_IN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libtorch.so"));

/// A loaded artifact, which the shim owns.
#[derive(Debug)]
pub struct Artifact(*mut c_void);

impl Artifact {
    /// Loads a PT2 archive, which runs on the CPU.
    pub fn archive(path: &Path) -> Result<Self, ShimError> {
        let path = nul(path)?;
        // SAFETY: the path is NUL-terminated.
        handle(|out| unsafe { enn_artifact_archive(path.as_ptr(), out) }).map(Self)
    }

    /// Loads a package of AOTInductor onto the device it was compiled for.
    ///
    /// # Errors
    /// Errors of libtorch, or of loading the library that stands in for libtorch.so.
    pub fn package(path: &Path, device: Device) -> Result<Self, ShimError> {
        stand_in()?;
        let path = nul(path)?;
        let index = if let Device::Cuda(index) = device { i32::try_from(index).unwrap_or(-1) } else { -1 };
        // SAFETY: the path is NUL-terminated.
        handle(|out| unsafe { enn_artifact_package(path.as_ptr(), index, out) }).map(Self)
    }

    /// Runs the artifact on all of its inputs and returns its outputs, which are contiguous.
    pub fn run(&mut self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, ShimError> {
        let inputs: Vec<*const C_tensor> = inputs.iter().map(|tensor| tensor.as_ptr()).collect();
        let mut outs = [ptr::null_mut(); OUTPUTS_MAX];
        let mut made = 0;
        // SAFETY: the artifact and the inputs live, and both lists have the lengths given.
        check(unsafe {
            enn_artifact_run(self.0, inputs.as_ptr(), inputs.len(), outs.as_mut_ptr(), OUTPUTS_MAX, &raw mut made)
        })?;
        // SAFETY: the shim has made these tensors and given them up.
        Ok(outs[..made].iter().map(|out| unsafe { Tensor::from_ptr(*out) }).collect())
    }
}

impl Drop for Artifact {
    fn drop(&mut self) {
        // SAFETY: the only owner frees once.
        unsafe { enn_artifact_free(self.0) }
    }
}

/// Returns whether the libtorch of this build runs PT2 archives.
pub fn runs_archives() -> bool {
    // SAFETY: it returns a constant.
    unsafe { enn_artifact_archives() != 0 }
}

/// Returns the metadata of an AOTInductor package without loading its code.
pub fn about(path: &Path) -> Result<BTreeMap<String, String>, ShimError> {
    let path = nul(path)?;
    let mut text = ptr::null();
    // SAFETY: the path is NUL-terminated and `text` is writable.
    check(unsafe { enn_artifact_about(path.as_ptr(), &raw mut text) })?;
    // SAFETY: the shim's NUL-terminated text is valid until its next call on this thread.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    Ok(text.lines().filter_map(|line| line.split_once('\t')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
}

fn nul(path: &Path) -> Result<CString, ShimError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| ShimError { message: format!("{} holds a zero byte", path.display()) })
}

/// Loads the empty library that stands in for libtorch.so.
fn stand_in() -> Result<(), ShimError> {
    let failed =
        |message: String| ShimError { message: format!("the library that stands in for libtorch.so: {message}") };
    let memory = memfd_create("libtorch.so", MFdFlags::MFD_CLOEXEC).map_err(|error| failed(error.to_string()))?;
    let mut file = File::from(memory);
    file.write_all(STAND_IN).map_err(|error| failed(error.to_string()))?;
    let path =
        CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|error| failed(error.to_string()))?;
    // SAFETY: the path is NUL-terminated, and the file behind it is open during the call.
    check(unsafe { enn_artifact_stand_in(path.as_ptr()) }).map_err(|error| failed(error.message))
}
