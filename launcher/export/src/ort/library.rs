//! onnxruntime's library in this process: a single one, loaded once.

use super::sys;
use crate::{ExportError, foreign::install_hint};
use enn_common::panics;
use ort::environment::Environment;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Name of the library in messages.
pub(super) const NAME: &str = "onnxruntime";
/// Oldest minor release of major version 1 that crate `ort` supports.
const MINOR_MIN: u32 = 22;

#[derive(Debug, Clone)]
pub(super) struct Loaded {
    library: PathBuf,
    pub version: String,
    pub environment: Environment,
}

static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

pub(super) fn load(library: &Path) -> Result<Loaded, ExportError> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*loaded {
        Some(there) if there.library == library => return Ok(there.clone()),
        Some(there) => {
            let why = format!("{} is requested, and {} is loaded", library.display(), there.library.display());
            return Err(unavailable(why, "a process works with one library: name the same one each time"));
        }
        None => {}
    }
    let install = &install_hint("onnx", "onnxruntime", "another libonnxruntime.so");
    let version = sys::version(library).map_err(|why| unavailable(why, install))?;
    if !suits(&version) {
        let why = format!("{} is version {version}, expected 1.{MINOR_MIN} or newer", library.display());
        return Err(unavailable(why, install));
    }
    let environment = guarded(|| {
        let builder = ort::init_from(library).map_err(|error| error.to_string())?;
        // Logged errors are also returned.
        let silent = Arc::new(|_, _: &str, _: &str, _: &str, _: &str| {});
        builder.with_name("enn").with_telemetry(false).with_logger(silent).build().map_err(|error| error.to_string())
    })
    .map_err(|why| unavailable(why, install))?;
    let there = Loaded { library: library.to_owned(), version, environment };
    *loaded = Some(there.clone());
    Ok(there)
}

/// Returns the result of `f`, or its panic as an error: the crate panics where the library returns invalid values.
pub(super) fn guarded<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    panics::caught(NAME, f).unwrap_or_else(|panic| Err(panic.to_string()))
}

fn suits(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(1)), Some(Ok(minor))) => minor >= MINOR_MIN,
        _ => false,
    }
}

fn unavailable(why: String, hint: &str) -> ExportError {
    ExportError::Unavailable { what: NAME, why, hint: hint.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_that_are_too_old_or_none_are_told_apart() {
        assert!(suits("1.22.0") && suits("1.31.1") && suits("1.100"));
        assert!(!suits("1.21.9") && !suits("2.0.0") && !suits("") && !suits("1"));
    }

    #[test]
    fn what_is_no_library_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libonnxruntime.so");
        std::fs::write(&path, "not a library").unwrap();
        for library in [path, dir.path().join("absent.so")] {
            let said = load(&library).unwrap_err().to_string();
            assert!(said.starts_with("onnxruntime is not available: "), "{said}");
            assert!(said.contains(library.to_str().unwrap()) && said.contains("pip install"), "{said}");
        }
    }

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(guarded(|| Ok(1)), Ok(1));
        let index = std::hint::black_box(3);
        let said = guarded(|| Ok([1, 2][index])).unwrap_err();
        assert!(said.contains("out of bounds"), "{said}");
    }
}
