//! The release of a libtorch, from the files beside its libraries; nothing is loaded.

use std::{fmt, fs, path::Path};

/// Limit on the bytes of such a file.
const BYTES_MAX: u64 = 64 << 10;

/// A release as text, e.g. `2.11.0+cpu`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Release(String);

impl Release {
    /// Returns the release of the libtorch whose libraries are in `lib`; `None` when no file beside them names it.
    pub(super) fn of(lib: &Path) -> Option<Self> {
        let root = lib.parent()?;
        // The files of a Python package, of an unpacked archive, and of a directory that only has headers.
        let of_package = text(&root.join("version.py")).and_then(|text| python(&text));
        let of_archive = || text(&root.join("build-version")).map(|text| text.trim().to_owned());
        let of_headers = || text(&root.join("include/torch/headeronly/version.h")).and_then(|text| header(&text));
        of_package.or_else(of_archive).or_else(of_headers).filter(|release| !release.is_empty()).map(Self)
    }

    /// Returns whether the release begins with the numbers of `release`.
    pub(super) fn is(&self, release: &str) -> bool {
        self.0.strip_prefix(release).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn text(path: &Path) -> Option<String> {
    let small = fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() <= BYTES_MAX);
    small.then(|| fs::read_to_string(path).ok()).flatten()
}

/// Parses the line `__version__ = '2.11.0+cpu'`.
fn python(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("__version__"))?;
    let (_, value) = line.split_once('=')?;
    Some(value.trim().trim_matches(['\'', '"']).to_owned())
}

/// Parses the lines `#define TORCH_VERSION_MAJOR 2` and so on.
fn header(text: &str) -> Option<String> {
    let number = |part: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("#define TORCH_VERSION_{part} ")))?;
        line.trim().parse::<u32>().ok()
    };
    Some(format!("{}.{}.{}", number("MAJOR")?, number("MINOR")?, number("PATCH").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_from_whatever_lies_beside_the_libraries() {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("lib");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let said = || Release::of(&lib).map(|release| release.to_string());
        assert_eq!(said(), None);
        let header = "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 9\n#define TORCH_VERSION_PATCH 1\n";
        write("include/torch/headeronly/version.h", header);
        assert_eq!(said().as_deref(), Some("2.9.1"));
        write("build-version", "2.11.0\n");
        assert_eq!(said().as_deref(), Some("2.11.0"));
        write("version.py", "from typing import Optional\n\n__version__ = '2.10.0+cu130'\ndebug = False\n");
        assert_eq!(said().as_deref(), Some("2.10.0+cu130"));
        let of = |text: &str| Release(text.to_owned());
        assert!(of("2.11.0+cpu").is("2.11") && of("2.11").is("2.11") && of("2.11a0").is("2.11"));
        assert!(!of("2.1.0").is("2.11") && !of("2.110.0").is("2.11") && !of("12.11").is("2.11"));
    }
}
