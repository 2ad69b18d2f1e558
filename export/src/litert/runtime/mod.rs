//! LiteRT's own library, which runs a `.tflite` file: `libLiteRt.so` of the wheel ai-edge-litert, by its C API, without Python.

mod result;
mod safe;
mod sys;

pub use safe::{Compiled, LiteRt};

use crate::{ExportError, foreign};
use std::path::{Path, PathBuf};

/// In error messages.
const WHAT: &str = "LiteRT";
/// What the name of the directory with a wheel's description begins and ends with.
const DESCRIPTION: (&str, &str) = ("ai_edge_litert-", ".dist-info");

/// LiteRT's library in a Python's site-packages, and its version.
///
/// # Errors
/// When it is not there.
pub fn library(site_packages: &Path) -> Result<(PathBuf, String), ExportError> {
    let path = foreign::of_wheel(site_packages, "ai_edge_litert/libLiteRt.so", (WHAT, "ai-edge-litert"))?;
    let entries = std::fs::read_dir(site_packages)
        .map_err(|source| ExportError::Io { path: site_packages.to_owned(), source })?;
    let version = entries.filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        Some(name.strip_prefix(DESCRIPTION.0)?.strip_suffix(DESCRIPTION.1)?.to_owned())
    });
    let version = version.max().ok_or_else(|| ExportError::Unavailable {
        what: WHAT,
        why: format!("{} has no {}VERSION{}", site_packages.display(), DESCRIPTION.0, DESCRIPTION.1),
        hint: "pip install ai-edge-litert".to_owned(),
    })?;
    Ok((path, version))
}
