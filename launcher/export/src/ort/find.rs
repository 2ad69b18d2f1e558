//! The search for onnxruntime's library: among the files of a Python that has the package, or of an unpacked release.

use super::library::NAME;
use crate::{ExportError, foreign::Wheel};
use std::{
    fs,
    path::{Path, PathBuf},
};

const WHEEL: Wheel =
    Wheel { what: NAME, format: "onnx", package: "onnxruntime", dir: "onnxruntime/capi", file: "libonnxruntime.so" };
/// Directories below a candidate; `*` stands for any suffix.
const BELOW: [&str; 5] = ["", "lib", "capi", "onnxruntime/capi", "lib/python3*/site-packages/onnxruntime/capi"];

/// Returns the first library among `candidates`: given itself, in a directory, in a `site-packages`, or in a Python environment.
/// In a directory the newest one counts.
///
/// # Errors
/// The library was not found; the error lists the places.
pub fn library(candidates: &[PathBuf]) -> Result<PathBuf, ExportError> {
    WHEEL.first(candidates, |candidate| BELOW.iter().find_map(|below| newest(candidate, below)))
}

fn newest(dir: &Path, below: &str) -> Option<PathBuf> {
    let mut dirs = vec![dir.to_owned()];
    for part in below.split('/').filter(|part| !part.is_empty()) {
        dirs = match part.strip_suffix('*') {
            Some(start) => dirs.iter().flat_map(|dir| beginning(dir, start)).collect(),
            None => dirs.into_iter().map(|dir| dir.join(part)).collect(),
        };
    }
    let libraries = dirs.iter().flat_map(|dir| beginning(dir, "libonnxruntime."));
    libraries.filter(|path| path.is_file() && is_shared(path)).max_by_key(|path| numbers(path))
}

/// Returns the entries of a directory whose names begin with `start`.
fn beginning(dir: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(start))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// Returns whether a path is a shared library: `libonnxruntime.so`, `libonnxruntime.so.1.31.1`, `libonnxruntime.1.31.1.dylib`.
fn is_shared(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').any(|part| part == "so" || part == "dylib")
}

fn numbers(path: &Path) -> Vec<u32> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_library_of_the_first_place_that_has_one_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let made = |path: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        };
        let in_venv = made("venv/lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime.so.1.31.1");
        made("release/lib/libonnxruntime.so.1.9.0");
        let newest = made("release/lib/libonnxruntime.so.1.24.0");
        made("release/lib/libonnxruntime_providers_shared.so");
        made("release/lib/libonnxruntime.a");
        let places = |names: &[&str]| -> Vec<PathBuf> { names.iter().map(|name| root.join(name)).collect() };
        let found = |names: &[&str]| library(&places(names)).ok();
        assert_eq!(found(&["venv"]).as_ref(), Some(&in_venv));
        assert_eq!(found(&["venv/lib/python3.11/site-packages"]).as_ref(), Some(&in_venv));
        assert_eq!(found(&["venv/lib/python3.11/site-packages/onnxruntime"]).as_ref(), Some(&in_venv));
        assert_eq!(found(&["absent", "release", "venv"]).as_ref(), Some(&newest));
        assert_eq!(
            found(&["release/lib/libonnxruntime.so.1.9.0"]),
            Some(root.join("release/lib/libonnxruntime.so.1.9.0"))
        );
        let said = library(&places(&["absent"])).unwrap_err().to_string();
        assert!(said.contains("not in ") && said.contains("absent"), "{said}");
        assert!(
            said.contains("hint: `enn export --prepare onnx` ") && said.contains("pip install onnxruntime`"),
            "{said}"
        );
    }
}
