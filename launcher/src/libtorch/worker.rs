//! The programs enn-worker of this installation: the one that ENN_WORKER names or that lies beside enn, else those of the package
//! `enn_train`.
//!
//! **Invariant:** a name in that package says what a program is built for: `enn-worker-2.11-cpu`, `enn-worker-2.11-cu13`.

use super::{
    installation::Installation,
    places::{is_world_writable, site_packages},
    python::PythonPackages,
    release::{CUDA_LIBRARY, RELEASE},
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// Name of the program, and of the Python package that contains it.
const PROGRAM: &str = "enn-worker";
const PACKAGE: &str = "enn_train";
/// Release of CUDA whose runtime `make cuda` links.
const CUDA_RELEASE: u32 = 13;
/// Text before the release of libtorch in the bytes of a program (`worker/core/shim/probe.cpp`).
const MARK: &str = "enn-worker for libtorch ";

/// One enn-worker, and what it is built for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorkerProgram {
    pub(super) path: PathBuf,
    /// First two numbers of the release of libtorch.
    pub(super) release: String,
    /// First number of the release of CUDA; `None` for a program that computes on CPUs only.
    pub(super) cuda: Option<u32>,
}

impl WorkerProgram {
    /// Describes a program that was named: by its name, else by its bytes.
    pub(super) fn named(path: PathBuf) -> Self {
        Self::of_package(&path).unwrap_or_else(|| {
            let bytes = fs::read(&path).unwrap_or_default();
            let cuda = memchr::memmem::find(&bytes, CUDA_LIBRARY.as_bytes()).map(|_| CUDA_RELEASE);
            Self { path, release: marked(&bytes).unwrap_or_else(|| RELEASE.to_owned()), cuda }
        })
    }

    /// Parses a name such as `enn-worker-2.11-cu13`.
    fn of_package(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_prefix(PROGRAM)?.strip_prefix('-')?;
        let (release, device) = name.split_once('-')?;
        let cuda = match device.strip_prefix("cu") {
            Some(number) => Some(number.parse().ok()?),
            None if device == "cpu" => None,
            None => return None,
        };
        Some(Self { path: path.to_owned(), release: release.to_owned(), cuda })
    }
}

/// A program enn-worker that was named. Its bytes are read when they are first needed, and once: most commands start no worker.
#[derive(Debug, Clone)]
pub struct NamedWorker {
    path: PathBuf,
    program: Arc<OnceLock<WorkerProgram>>,
}

impl NamedWorker {
    pub fn new(path: PathBuf) -> Self {
        Self { path, program: Arc::default() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn program(&self) -> &WorkerProgram {
        self.program.get_or_init(|| WorkerProgram::named(self.path.clone()))
    }
}

/// No program enn-worker was found: the places that were searched, and a hint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no {PROGRAM} was found: {}\nhint: {hint}", .tried.join("; "))]
pub struct NoWorker {
    tried: Vec<String>,
    hint: String,
}

/// The programs of which one is chosen by the libtorch that is found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Workers {
    /// Programs of one installation, sorted by name.
    pub(super) programs: Vec<WorkerProgram>,
    pub(super) tried: Vec<String>,
}

impl Workers {
    /// Finds the programs: the named one, else those of the package in the environment of `exe`, else those of the package that the
    /// active Python would import.
    pub(super) fn find<'a>(
        named: Option<&NamedWorker>,
        exe: Option<&Path>,
        active: impl FnOnce() -> &'a PythonPackages,
    ) -> Self {
        if let Some(named) = named {
            return Self { programs: vec![named.program().clone()], tried: Vec::new() };
        }
        let mut tried = vec!["ENN_WORKER is not set".to_owned()];
        if let Some(dir) = exe.and_then(Path::parent) {
            tried.push(format!("{} has none", dir.display()));
        }
        let near: Vec<PathBuf> = exe.map(package_dirs).unwrap_or_default();
        for dir in &near {
            let programs = programs_in(dir);
            if !programs.is_empty() {
                return Self { programs, tried };
            }
        }
        if let Some(root) = exe.and_then(Path::parent).and_then(Path::parent) {
            tried.push(match near.first() {
                Some(dir) => format!("{} contains no program for this machine", dir.display()),
                None => format!("no package {PACKAGE} is installed in {}", root.display()),
            });
        }
        let programs = match active().workers {
            Some(ref dir) => programs_in(dir),
            None => Vec::new(),
        };
        if programs.is_empty() {
            tried.push(format!("the active Python has no package {PACKAGE}"));
        }
        Self { programs, tried }
    }

    /// Returns the error of an installation without a program.
    pub(super) fn missing(&self, installation: &Installation) -> NoWorker {
        NoWorker { tried: self.tried.clone(), hint: installation.get_worker() }
    }

    /// Returns the releases of libtorch that fit, in the order of their numbers.
    pub(super) fn releases(&self) -> Vec<&str> {
        let mut releases: Vec<&str> = self.programs.iter().map(|program| program.release.as_str()).collect();
        if releases.is_empty() {
            releases.push(RELEASE);
        }
        releases.sort_by_key(|release| numbers(release));
        releases.dedup();
        releases
    }
}

/// Returns the numbers of a release, by which 2.9 comes before 2.11.
fn numbers(release: &str) -> Vec<u32> {
    release.split('.').map(|number| number.parse().unwrap_or(0)).collect()
}

/// Returns the directories in which the package can be where `exe` is in `ROOT/bin`: ROOT itself (`pip install --target`), its `lib` (the
/// release archive), or the packages of a Python below it. Directories that every user may write do not count.
fn package_dirs(exe: &Path) -> Vec<PathBuf> {
    let Some(root) = exe.parent().and_then(Path::parent).filter(|root| !is_world_writable(root)) else {
        return Vec::new();
    };
    let mut dirs = vec![root.join(PACKAGE), root.join("lib").join(PACKAGE)];
    for packages in site_packages(root) {
        dirs.push(packages.join(PACKAGE));
    }
    dirs.retain(|dir| dir.is_dir());
    dirs
}

/// Returns the programs of a package, sorted by name.
fn programs_in(package: &Path) -> Vec<WorkerProgram> {
    let entries = fs::read_dir(package.join("bin")).into_iter().flatten().flatten();
    let mut programs: Vec<WorkerProgram> =
        entries.filter_map(|entry| WorkerProgram::of_package(&entry.path())).collect();
    programs.sort_by(|one, other| one.path.cmp(&other.path));
    programs
}

/// Returns the release in the mark of a program: the first two numbers of its libtorch.
fn marked(bytes: &[u8]) -> Option<String> {
    let after = &bytes[memchr::memmem::find(bytes, MARK.as_bytes())? + MARK.len()..];
    let version: Vec<&[u8]> = after.split(|byte| !byte.is_ascii_digit()).take(2).collect();
    let numbers: Option<Vec<u32>> = version.iter().map(|part| std::str::from_utf8(part).ok()?.parse().ok()).collect();
    numbers.filter(|numbers| numbers.len() == 2).map(|numbers| format!("{}.{}", numbers[0], numbers[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libtorch::python::TorchLookup;

    fn installed(packages: &Path, names: &[&str]) {
        let bin = packages.join("enn_train/bin");
        fs::create_dir_all(&bin).unwrap();
        names.iter().for_each(|name| fs::write(bin.join(name), "").unwrap());
    }

    fn nothing() -> PythonPackages {
        PythonPackages { torch: TorchLookup::Absent("no torch".to_owned()), workers: None }
    }

    fn found(exe: &Path, active: &PythonPackages) -> Vec<String> {
        let programs = Workers::find(None, Some(exe), || active).programs;
        programs.iter().map(|program| program.path.display().to_string()).collect()
    }

    #[test]
    fn a_name_says_what_a_program_is_built_for() {
        let of = |name: &str| WorkerProgram::of_package(Path::new(name)).map(|one| (one.release, one.cuda));
        assert_eq!(of("/a b/enn-worker-2.11-cpu"), Some(("2.11".to_owned(), None)));
        assert_eq!(of("enn-worker-2.13-cu13"), Some(("2.13".to_owned(), Some(13))));
        for other in ["enn-worker", "enn-worker-2.11", "enn-worker-2.11-rocm", "enn-worker-2.11-cu", "worker-2.11-cpu"]
        {
            assert_eq!(of(other), None, "{other}");
        }
        let named = WorkerProgram::named("/build/enn-worker".into());
        assert_eq!((named.release.as_str(), named.cuda), (RELEASE, None));
    }

    #[test]
    fn the_bytes_of_a_program_say_what_it_is_built_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("enn-worker");
        let of = |bytes: &str| {
            fs::write(&path, bytes).unwrap();
            let named = WorkerProgram::named(path.clone());
            (named.release, named.cuda)
        };
        assert_eq!(of("\0enn-worker for libtorch 2.13.0\0"), ("2.13".to_owned(), None));
        assert_eq!(of("\0enn-worker for libtorch 2.9.1\0libtorch_cuda.so\0"), ("2.9".to_owned(), Some(13)));
        for damaged in ["", "enn-worker for libtorch ", "enn-worker for libtorch x.1", "enn-worker for libtorch 2"] {
            assert_eq!(of(damaged), (RELEASE.to_owned(), None), "{damaged}");
        }
    }

    #[test]
    fn the_package_is_found_wherever_pip_puts_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("an environment");
        let exe = root.join("bin/enn");
        for packages in
            ["lib/python3.11/site-packages", "lib64/python3.12/site-packages", "lib/python3/dist-packages", "lib", ""]
        {
            let packages = root.join(packages);
            installed(&packages, &["enn-worker-2.11-cu13", "enn-worker-2.11-cpu", "README"]);
            let bin = packages.join("enn_train/bin");
            let expected =
                ["enn-worker-2.11-cpu", "enn-worker-2.11-cu13"].map(|name| bin.join(name).display().to_string());
            assert_eq!(found(&exe, &nothing()), expected);
            fs::remove_dir_all(packages.join("enn_train")).unwrap();
        }
        let elsewhere = dir.path().join("site-packages");
        installed(&elsewhere, &["enn-worker-2.11-cpu"]);
        let active = PythonPackages { workers: Some(elsewhere.join("enn_train")), ..nothing() };
        assert_eq!(found(&exe, &active).len(), 1, "the active Python knows a package that is not near enn");
    }

    #[test]
    fn where_no_program_is_found_each_place_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let exe = dir.path().join("bin/enn");
        let none = nothing();
        let workers = Workers::find(None, Some(&exe), || &none);
        assert_eq!(workers.releases(), [RELEASE]);
        let said = workers.missing(&Installation::package("python3", None)).to_string();
        let root = dir.path().display().to_string();
        for part in [
            "ENN_WORKER is not set",
            &format!("{root}/bin has none"),
            &format!("no package enn_train is installed in {root};"),
            "the active Python has no package enn_train",
            "pip install enn-train==",
        ] {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
    }

    #[test]
    fn releases_are_in_the_order_of_their_numbers() {
        let program = |release: &str| WorkerProgram { path: "w".into(), release: release.to_owned(), cuda: None };
        let programs = ["2.13", "2.9", "2.11", "2.13"].map(program).to_vec();
        assert_eq!(Workers { programs, tried: Vec::new() }.releases(), ["2.9", "2.11", "2.13"]);
    }
}
