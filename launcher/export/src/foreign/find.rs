//! The search for a runtime's library: given itself, or in a directory, a `site-packages`, or a Python environment.

use crate::ExportError;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A library that is distributed in a wheel.
pub(crate) struct Wheel {
    /// Name of the runtime in error messages.
    pub(crate) what: &'static str,
    /// Format of the runtime, as `enn export` names it.
    pub(crate) format: &'static str,
    pub(crate) package: &'static str,
    /// Directory in `site-packages`.
    pub(crate) dir: &'static str,
    /// File in the directory.
    pub(crate) file: &'static str,
}

/// Limit on the places in an error message.
const PLACES_SHOWN: usize = 6;

fn searched_places(candidates: &[PathBuf]) -> String {
    let places: Vec<String> = candidates.iter().take(PLACES_SHOWN).map(|path| path.display().to_string()).collect();
    match candidates.len().saturating_sub(PLACES_SHOWN) {
        _ if places.is_empty() => "there is no place to look in".to_owned(),
        0 => format!("not in {}", places.join(", ")),
        more => format!("not in {} and {more} more", places.join(", ")),
    }
}

pub(crate) fn install_hint(format: &str, package: &str, file: &str) -> String {
    format!(
        "`enn export --prepare {format}` installs it for enn alone, or `python3 -m pip install {package}` in your Python; or let \
         ENN_RUNTIMES name the path of {file}"
    )
}

impl Wheel {
    /// Returns the library of the first candidate that has it.
    ///
    /// # Errors
    /// The library was not found; the error lists the places.
    pub(crate) fn library(&self, candidates: &[PathBuf]) -> Result<PathBuf, ExportError> {
        self.first(candidates, |candidate| self.below(candidate))
    }

    /// Returns the first candidate that is a file itself, or the library that `below` finds in one.
    ///
    /// # Errors
    /// As [`Wheel::library`].
    pub(crate) fn first(
        &self,
        candidates: &[PathBuf],
        below: impl Fn(&Path) -> Option<PathBuf>,
    ) -> Result<PathBuf, ExportError> {
        let of = |candidate: &PathBuf| if candidate.is_file() { Some(candidate.clone()) } else { below(candidate) };
        candidates
            .iter()
            .find_map(of)
            .ok_or_else(|| self.unavailable(format!("{} was not found: {}", self.file, searched_places(candidates))))
    }

    /// Builds the error for a library that cannot be used.
    pub(crate) fn unusable(&self, library: &Path, error: &str) -> ExportError {
        self.unavailable(format!("{}: {error}", library.display()))
    }

    fn unavailable(&self, why: String) -> ExportError {
        let hint = install_hint(self.format, self.package, self.file);
        ExportError::Unavailable { what: self.what, why, hint }
    }

    fn below(&self, candidate: &Path) -> Option<PathBuf> {
        let in_packages = |packages: &Path| packages.join(self.dir).join(self.file);
        let pythons = fs::read_dir(candidate.join("lib")).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut pythons: Vec<PathBuf> = pythons.filter(|path| path.to_string_lossy().contains("/python3")).collect();
        pythons.sort();
        let environments = pythons.iter().map(|python| in_packages(&python.join("site-packages")));
        let places = [candidate.join(self.file), in_packages(candidate)].into_iter().chain(environments);
        places.into_iter().find(|path| path.is_file())
    }

    /// Returns the version of the wheel around a library: the library itself does not report it.
    pub(crate) fn version(&self, library: &Path) -> Option<String> {
        let packages = library.parent()?.parent()?;
        let start = format!("{}-", self.dir);
        fs::read_dir(packages).ok()?.flatten().find_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some(name.strip_prefix(&start)?.strip_suffix(".dist-info")?.to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_by_its_path_its_packages_or_its_environment() {
        let dir = tempfile::tempdir().unwrap();
        let packages = dir.path().join("venv/lib/python3.11/site-packages");
        let library = packages.join("ai_thing/libThing.so");
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        fs::create_dir(packages.join("ai_thing-2.3.0.dist-info")).unwrap();
        fs::write(&library, "").unwrap();
        let wheel = Wheel { what: "Thing", format: "thing", package: "ai-thing", dir: "ai_thing", file: "libThing.so" };
        for candidate in [&library, &packages.join("ai_thing"), &packages, &dir.path().join("venv")] {
            assert_eq!(wheel.library(&[dir.path().join("absent"), candidate.clone()]).unwrap(), library);
        }
        assert_eq!(wheel.version(&library).as_deref(), Some("2.3.0"));
        assert_eq!(wheel.version(&dir.path().join("venv/lib")), None);
        let said = wheel.library(&[dir.path().join("absent")]).unwrap_err().to_string();
        assert!(said.contains("not in ") && said.contains("absent") && said.contains("pip install ai-thing"), "{said}");
        assert!(said.contains("`enn export --prepare thing` "), "{said}");
    }
}
