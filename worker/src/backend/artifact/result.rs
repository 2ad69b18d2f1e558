//! Artifacts with an owner.

use super::sys;
use crate::backend::torch::{ShimError, check};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, c_void},
    fs::File,
    io::Write,
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    path::Path,
    ptr,
};
use tch::{Device, Tensor};
use torch_sys::C_tensor;

/// Outputs an artifact may have.
const OUTPUTS_MAX: usize = 64;
/// A library called libtorch.so with nothing in it.
const STAND_IN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libtorch.so"));

/// A loaded artifact.
#[derive(Debug)]
pub struct Artifact(*mut c_void);

impl Artifact {
    /// Loads a PT2 archive, which runs on the CPU.
    ///
    /// # Errors
    /// libtorch's sentence.
    pub fn archive(path: &Path) -> Result<Self, ShimError> {
        let path = nul(path)?;
        let mut out = ptr::null_mut();
        // SAFETY: the path is NUL-terminated and `out` is writable.
        check(unsafe { sys::enn_artifact_archive(path.as_ptr(), &raw mut out) })?;
        Ok(Self(out))
    }

    /// Loads a package of AOTInductor onto the device it was compiled for.
    ///
    /// # Errors
    /// libtorch's sentence, or the system's about the library that stands in for libtorch.so.
    pub fn package(path: &Path, device: Device) -> Result<Self, ShimError> {
        stand_in()?;
        let path = nul(path)?;
        let index = if let Device::Cuda(index) = device { i32::try_from(index).unwrap_or(-1) } else { -1 };
        let mut out = ptr::null_mut();
        // SAFETY: the path is NUL-terminated and `out` is writable.
        check(unsafe { sys::enn_artifact_package(path.as_ptr(), index, &raw mut out) })?;
        Ok(Self(out))
    }

    /// What it says of itself.
    pub fn about(&self) -> BTreeMap<String, String> {
        // SAFETY: the artifact lives, and so does its NUL-terminated text.
        let text = unsafe { CStr::from_ptr(sys::enn_artifact_about(self.0)) }.to_string_lossy();
        text.lines().filter_map(|line| line.split_once('\t')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    /// Its outputs, contiguous, for all its inputs.
    ///
    /// # Errors
    /// libtorch's sentence.
    pub fn run(&mut self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, ShimError> {
        let inputs: Vec<*const C_tensor> = inputs.iter().map(|tensor| tensor.as_ptr()).collect();
        let mut outs = [ptr::null_mut(); OUTPUTS_MAX];
        let mut made = 0;
        // SAFETY: the artifact and the inputs live, and both lists have the lengths given.
        check(unsafe {
            sys::enn_artifact_run(self.0, inputs.as_ptr(), inputs.len(), outs.as_mut_ptr(), OUTPUTS_MAX, &raw mut made)
        })?;
        // SAFETY: the shim has made these tensors and given them up.
        Ok(outs[..made].iter().map(|out| unsafe { Tensor::from_ptr(*out) }).collect())
    }
}

impl Drop for Artifact {
    fn drop(&mut self) {
        // SAFETY: the only owner frees once.
        unsafe { sys::enn_artifact_free(self.0) }
    }
}

fn nul(path: &Path) -> Result<CString, ShimError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| ShimError { message: format!("{} holds a zero byte", path.display()) })
}

/// Sees to it that a libtorch.so is loaded.
fn stand_in() -> Result<(), ShimError> {
    let failed =
        |message: String| ShimError { message: format!("the library that stands in for libtorch.so: {message}") };
    let memory = memfd_create("libtorch.so", MFdFlags::MFD_CLOEXEC).map_err(|error| failed(error.to_string()))?;
    let mut file = File::from(memory);
    file.write_all(STAND_IN).map_err(|error| failed(error.to_string()))?;
    let path =
        CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|error| failed(error.to_string()))?;
    // SAFETY: the path is NUL-terminated, and the file behind it is open during the call.
    check(unsafe { sys::enn_artifact_stand_in(path.as_ptr()) }).map_err(|error| failed(error.message))
}
