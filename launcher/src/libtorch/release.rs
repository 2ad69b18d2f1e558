//! The release of a libtorch, from the files beside its libraries; nothing is loaded.

use std::{fmt, fs, path::Path};

/// Release of libtorch for which `make build` builds: its first two numbers.
pub(super) const RELEASE: &str = "2.11";
/// Library that every libtorch has, and the one that computes on GPUs.
pub(super) const CPU_LIBRARY: &str = "libtorch_cpu.so";
pub(super) const CUDA_LIBRARY: &str = "libtorch_cuda.so";
/// Limit on the bytes of such a file.
const BYTES_MAX: u64 = 64 << 10;

/// A release, e.g. `2.11.0+cpu`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Release {
    text: String,
    /// First number of the release of CUDA, where a file names it.
    pub(super) cuda: Option<u32>,
}

impl Release {
    /// Returns the release of the libtorch whose libraries are in `lib`; `None` when no file beside them names it.
    pub(super) fn of(lib: &Path) -> Option<Self> {
        let root = lib.parent()?;
        // The files of a Python package, of an unpacked archive, and of a directory that only has headers.
        let package = text(&root.join("version.py"));
        let of_package = package.as_deref().and_then(|text| python(text, "__version__"));
        let of_archive = || text(&root.join("build-version")).map(|text| text.trim().to_owned());
        let of_headers = || text(&root.join("include/torch/headeronly/version.h")).and_then(|text| header(&text));
        let text = of_package.or_else(of_archive).or_else(of_headers).filter(|release| !release.is_empty())?;
        let cuda = package.as_deref().and_then(|text| python(text, "cuda"));
        let cuda = cuda.and_then(|cuda| cuda.split('.').next()?.parse().ok());
        Some(Self { text, cuda })
    }

    /// Returns whether the release begins with the numbers of `release`.
    pub(super) fn is(&self, release: &str) -> bool {
        self.text.strip_prefix(release).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn text(path: &Path) -> Option<String> {
    let small = fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() <= BYTES_MAX);
    small.then(|| fs::read_to_string(path).ok()).flatten()
}

/// Parses the line of a name: `__version__ = '2.11.0+cpu'`, or `cuda: Optional[str] = '13.0'`.
fn python(text: &str, name: &str) -> Option<String> {
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', ':', '=']));
    let (_, value) = text.lines().find(of_name)?.split_once('=')?;
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
        write(
            "version.py",
            "from typing import Optional\n\n__version__ = '2.10.0+cu130'\ncuda: Optional[str] = '13.0'\n",
        );
        assert_eq!(said().as_deref(), Some("2.10.0+cu130"));
        assert_eq!(Release::of(&lib).unwrap().cuda, Some(13));
        write("version.py", "__version__ = '2.10.0+cpu'\ncuda_of_else = '9'\ncuda: Optional[str] = None\n");
        assert_eq!(Release::of(&lib).unwrap().cuda, None);
        let of = |text: &str| Release { text: text.to_owned(), cuda: None };
        assert!(of("2.11.0+cpu").is("2.11") && of("2.11").is("2.11") && of("2.11a0").is("2.11"));
        assert!(!of("2.1.0").is("2.11") && !of("2.110.0").is("2.11") && !of("12.11").is("2.11"));
    }
}
