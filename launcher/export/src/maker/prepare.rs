//! Private Python environments of the tools, each made once: `ROOT/aoti-2.11.0/bin/python`.
//!
//! **Invariant:** an environment that is found is whole: its marker is written last, and one without it is made anew. Nothing
//! outside its directory changes.

use super::{
    child::{Child, Errors},
    pin::{EXECUTORCH, Pin, TORCH},
};
use crate::ExportError;
use crossbeam_channel::RecvTimeoutError;
use enn_common::{
    fs::{atomic, private},
    secrets,
};
use nix::fcntl::{Flock, FlockArg};
use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Longest silence of an installer: it may be fetching gigabytes.
const SILENCE_MAX: Duration = Duration::from_secs(3600);
/// Number of a failed installer's last lines in the error.
const LAST_LINES: usize = 12;
/// File with the packages of an environment, as the installer reads it.
const PINNED: &str = "pinned.txt";
/// Marker file that lists an environment's packages once they are installed.
const COMPLETE: &str = ".complete";

const NUMPY: Pin = ("numpy", "2.4.6");

/// Tools for which an environment is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Aoti,
    ExecuTorch,
    OnnxRuntime,
    LiteRt,
    TensorFlow,
    /// TensorRT, where its packages are available.
    TensorRt,
}

struct BackendRow {
    name: &'static str,
    /// Packages to install; the first one's version is the environment's.
    packages: &'static [Pin],
    /// All installed packages with versions and SHA-256 of their files, as written by pins/renew.py.
    pinned: &'static str,
}

const fn row(name: &'static str, packages: &'static [Pin], pinned: &'static str) -> BackendRow {
    BackendRow { name, packages, pinned }
}

impl Backend {
    pub const ALL: [Self; 6] =
        [Self::Aoti, Self::ExecuTorch, Self::OnnxRuntime, Self::LiteRt, Self::TensorFlow, Self::TensorRt];

    const fn row(self) -> BackendRow {
        match self {
            Self::Aoti => row("aoti", &[TORCH, NUMPY], include_str!("pins/aoti.txt")),
            Self::ExecuTorch => row(
                "executorch",
                &[EXECUTORCH, TORCH, ("torchao", "0.18.0"), NUMPY],
                include_str!("pins/executorch.txt"),
            ),
            Self::OnnxRuntime => row("onnxruntime", &[("onnxruntime", "1.31.1")], include_str!("pins/onnxruntime.txt")),
            Self::LiteRt => row("litert", &[("ai-edge-litert", "2.3.0")], include_str!("pins/litert.txt")),
            Self::TensorFlow => row("tensorflow", &[("tensorflow", "2.21.0")], include_str!("pins/tensorflow.txt")),
            Self::TensorRt => row("tensorrt", &[("tensorrt", "11.4.0.106")], include_str!("pins/tensorrt.txt")),
        }
    }

    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns whether a package directory has the first package in the pinned version.
    pub fn fits(self, packages: &Path) -> bool {
        let (name, version) = self.row().packages[0];
        is_installed(packages, name, version)
    }

    /// Returns whether a package directory has the first package in any version.
    pub fn is_in(self, packages: &Path) -> bool {
        is_installed(packages, self.row().packages[0].0, "")
    }

    fn dir(self, root: &Path) -> PathBuf {
        root.join(format!("{}-{}", self.name(), self.row().packages[0].1))
    }

    fn requirements(self) -> Vec<String> {
        self.row().packages.iter().map(|(name, version)| format!("{name}=={version}")).collect()
    }

    /// Returns whether its packages are installed without running their code. TensorRT's are archives whose code fetches the rest.
    const fn is_of_wheels(self) -> bool {
        !matches!(self, Self::TensorRt)
    }
}

/// Returns whether a package is installed in a version with this prefix: `torch-2.11.0+cu130.dist-info`.
fn is_installed(packages: &Path, package: &str, version: &str) -> bool {
    let is_it = |name: String| {
        let (found, of) = name.strip_suffix(".dist-info")?.split_once('-')?;
        Some(found == package.replace('-', "_") && of.starts_with(version))
    };
    let names = fs::read_dir(packages).into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().into_string().ok()).any(|name| is_it(name) == Some(true))
}

#[derive(Debug, Clone, Copy)]
pub struct Installers<'a> {
    /// The faster installer uv, if available.
    pub uv: Option<&'a Path>,
    /// A Python with venv and pip.
    pub python: &'a Path,
}

/// Returns the interpreter of the environment below `root`, if it was made.
pub fn prepared(backend: Backend, root: &Path) -> Option<PathBuf> {
    // Files in a directory that other users can write to are not run.
    private::check(&root.canonicalize().ok()?).ok()?;
    let dir = backend.dir(root);
    let found = fs::read_to_string(dir.join(COMPLETE)).ok()?;
    (found == backend.requirements().join("\n")).then(|| dir.join("bin/python"))
}

/// Makes the environment below `root`, unless it exists; returns its interpreter. `progress` receives the installer's output.
///
/// # Errors
/// Any error of the installer, with its last lines, or of the system.
pub fn prepare(
    backend: Backend,
    root: &Path,
    installers: Installers<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, ExportError> {
    if let Some(python) = prepared(backend, root) {
        return Ok(python);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(ExportError::io(root))?;
    let real = root.canonicalize().map_err(ExportError::io(root))?;
    private::check(&real).map_err(|error| ExportError::Io { path: error.path, source: error.source })?;
    let lock = root.join(format!(".{}.lock", backend.name()));
    let file = File::create(&lock).map_err(ExportError::io(&lock))?;
    // Another process may be making it; then it exists when the lock is released.
    let _lock =
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| ExportError::io(&lock)(error.into()))?;
    if let Some(python) = prepared(backend, root) {
        return Ok(python);
    }
    let dir = backend.dir(root);
    match fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(ExportError::io(&dir)(error)),
        _ => {}
    }
    let installed = install(backend, &dir, installers, progress);
    let python = installed.and_then(|python| {
        atomic::write(&dir.join(COMPLETE), backend.requirements().join("\n").as_bytes())?;
        Ok(python)
    });
    if python.is_err() {
        // The first error is returned; the next call begins with removing the leftover.
        let _ = fs::remove_dir_all(&dir);
    }
    python
}

fn install(
    backend: Backend,
    dir: &Path,
    installers: Installers<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, ExportError> {
    let python = dir.join("bin/python");
    let pinned = dir.join(PINNED);
    let mut step = |program: &Path, arguments: &[&OsStr]| {
        let mut command = secrets::command(program);
        command.args(arguments);
        if arguments.contains(&OsStr::new("install")) {
            atomic::write(&pinned, backend.row().pinned.as_bytes())?;
            command.args(["--require-hashes", "--requirement"]).arg(&pinned);
            command.args(if backend.is_of_wheels() { &["--only-binary", ":all:"][..] } else { &[] });
        }
        run(command, progress).map_err(|why| ExportError::Unavailable {
            what: "the Python environment",
            why,
            hint: format!(
                "check the network, the room on the disk and that {} is Python 3.11 or newer, and try again: what was fetched is kept",
                installers.python.display()
            ),
        })
    };
    let text = OsStr::new;
    if let Some(uv) = installers.uv {
        let base = installers.python.as_os_str();
        step(uv, &[text("venv"), text("--no-project"), text("--python"), base, dir.as_os_str()])?;
        step(uv, &[text("pip"), text("install"), text("--python"), python.as_os_str()])?;
    } else {
        step(installers.python, &[text("-I"), text("-m"), text("venv"), dir.as_os_str()])?;
        let quiet = [text("--disable-pip-version-check"), text("--no-input")];
        step(&python, &[text("-I"), text("-m"), text("pip"), text("install"), quiet[0], quiet[1]])?;
    }
    Ok(python)
}

/// Runs an installer to its end; returns its last lines where it fails.
fn run(command: Command, progress: &mut dyn FnMut(&str)) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = Child::start(command, Errors::Received).map_err(|error| format!("{name}: {error}"))?;
    let mut output = Vec::new();
    loop {
        match child.receive(SILENCE_MAX) {
            Ok(line) => {
                progress(&line);
                output.push(line);
            }
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("{name} has printed nothing for {} s", SILENCE_MAX.as_secs()));
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child.wait().map_err(|error| format!("{name}: {error}"))?;
    let last = output[output.len().saturating_sub(LAST_LINES)..].join("\n  ");
    if status.success() { Ok(()) } else { Err(format!("{name} ended with {status}:\n  {last}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that the installer joins, without what is said of them.
    fn pinned(backend: Backend) -> Vec<String> {
        let lines = backend.row().pinned.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>();
        lines.join("\n").replace("\\\n", "").lines().map(str::to_owned).collect()
    }

    #[test]
    fn every_package_is_pinned_by_its_version_and_its_digests() {
        for backend in Backend::ALL {
            let pinned = pinned(backend);
            for required in backend.requirements() {
                let is_it = |line: &&String| line.split(' ').next() == Some(&required);
                assert!(
                    pinned.iter().any(|line| is_it(&line)),
                    "{required} is not in pins/{}.txt: run `make pins`",
                    backend.name()
                );
                assert!(backend.row().pinned.lines().next().unwrap().contains(&required), "{required}");
            }
            for line in &pinned {
                let (requirement, digests) =
                    line.split_once("--hash").unwrap_or_else(|| panic!("{line} has no digest"));
                assert!(requirement.split(' ').next().unwrap().contains("=="), "{line}");
                for digest in digests.split("--hash") {
                    let digest = digest.trim().strip_prefix("=sha256:").unwrap_or_else(|| panic!("{line}"));
                    assert!(digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
                }
            }
        }
    }
}
