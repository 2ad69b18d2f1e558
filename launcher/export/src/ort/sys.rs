//! The one query of onnxruntime's library that crate `ort` does not offer: its version.

use libloading::Library;
use ort::sys::OrtApiBase;
use std::{error::Error, ffi::CStr, path::Path};

type Base = unsafe extern "C" fn() -> *const OrtApiBase;

/// Returns the version of a library, which stays loaded.
///
/// # Errors
/// The reason why it is no onnxruntime, in words.
pub(super) fn version(library: &Path) -> Result<String, String> {
    // SAFETY: loading runs the library's initialisers; the caller was told by the user that it is onnxruntime.
    let loaded = unsafe { Library::new(library) }.map_err(|error| match error.source() {
        // The system's own message, which names the file.
        Some(why) => why.to_string(),
        None => format!("{}: {error}", library.display()),
    })?;
    // SAFETY: this function has had this type in every release of onnxruntime.
    let base = unsafe { loaded.get::<Base>(b"OrtGetApiBase\0") }
        .map_err(|_| format!("{} does not offer OrtGetApiBase", library.display()))?;
    // SAFETY: it takes nothing and gives null or a table that lives as long as the library.
    let base = unsafe { base().as_ref() }.ok_or("OrtGetApiBase gave nothing")?;
    // SAFETY: the table's function gives a text that lives as long as the library.
    let version = unsafe { CStr::from_ptr((base.GetVersionString)()) }.to_string_lossy().into_owned();
    // Its threads and tables do not survive unloading.
    std::mem::forget(loaded);
    Ok(version)
}
