//! The torch and the package enn_train that a Python would import, found without importing them.

use enn_common::secrets;
use enn_process::{OutputError, output_within};
use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

/// Longest wait for a Python's answer: it may start from a cold network disk.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Prints the directories of both packages, divided by [`DIVIDER`]. Packages in the working directory do not count.
const SCRIPT: &str = "import sys; sys.path[:] = [path for path in sys.path if path]
from importlib.util import find_spec
def place(name):
    spec = find_spec(name)
    return list(spec.submodule_search_locations)[0] if spec and spec.submodule_search_locations else ''
print(place('torch') + '\\t' + place('enn_train'))";
const DIVIDER: char = '\t';

/// Places of the packages of a Python, as it reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PythonPackages {
    pub(super) torch: TorchLookup,
    /// Directory of the package that contains programs enn-worker.
    pub(super) workers: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TorchLookup {
    Found(PathBuf),
    /// The Python has no torch, which is not unusual; a sentence for people.
    Absent(String),
    /// The Python is broken or hangs; a sentence for people.
    Broken(String),
}

/// Queries a Python with the default time limit.
pub(super) fn packages(python: &Path) -> PythonPackages {
    packages_within(python, WAIT_MAX)
}

fn packages_within(python: &Path, wait_max: Duration) -> PythonPackages {
    let place = python.display();
    let mut command = secrets::command(python);
    command.args(["-c", SCRIPT]);
    let mut workers = None;
    let torch = match output_within(command, wait_max) {
        Ok(output) => {
            // Output of a site's own start-up code comes first.
            let line = output.lines().last().unwrap_or_default();
            let (torch, enn_train) = line.split_once(DIVIDER).unwrap_or((line, ""));
            let place_of = |text: &str| Some(PathBuf::from(text.trim())).filter(|dir| !dir.as_os_str().is_empty());
            workers = place_of(enn_train);
            match place_of(torch) {
                Some(dir) => TorchLookup::Found(dir),
                None => TorchLookup::Absent(format!("the Python {place} has no torch")),
            }
        }
        Err(OutputError::Start(error)) if error.kind() == ErrorKind::NotFound && python.components().count() == 1 => {
            TorchLookup::Absent(format!("no {place} is on PATH"))
        }
        Err(OutputError::Start(error)) => TorchLookup::Broken(format!("the Python {place} does not start: {error}")),
        Err(OutputError::Failed(line)) => {
            TorchLookup::Broken(format!("the Python {place} cannot report whether it has torch: {line}"))
        }
        Err(OutputError::TimedOut(limit)) => TorchLookup::Broken(format!(
            "the Python {place} did not say within {} s where its torch is",
            limit.as_secs_f64()
        )),
    };
    PythonPackages { torch, workers }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt, time::Instant};

    /// A program that stands for a Python.
    fn program(dir: &Path, text: &str) -> PathBuf {
        let path = dir.join("python with a space");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_python_says_where_its_torch_is_or_why_not() {
        let dir = tempfile::tempdir().unwrap();
        let torch = |python: &Path| packages(python).torch;
        let both = packages(&program(dir.path(), "echo hello; printf '/a b/torch\\t/a b/enn_train\\n'"));
        assert_eq!(both.torch, TorchLookup::Found("/a b/torch".into()));
        assert_eq!(both.workers, Some("/a b/enn_train".into()));
        assert_eq!(packages(&program(dir.path(), "printf '\\t/a/enn_train\\n'")).workers, Some("/a/enn_train".into()));
        let said = |text: &str| torch(&program(dir.path(), text));
        assert_eq!(said("printf '/a b/torch\\t\\n'"), TorchLookup::Found("/a b/torch".into()));
        let broken = |text: &str| match said(text) {
            TorchLookup::Broken(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(matches!(said("echo"), TorchLookup::Absent(why) if why.ends_with("has no torch")));
        assert!(broken("echo broken >&2; exit 1").ends_with("whether it has torch: broken"));
        assert!(broken("kill -9 $$").ends_with("it printed nothing"));
        assert!(
            matches!(torch(&dir.path().join("absent")), TorchLookup::Broken(why) if why.contains("does not start")),
            "a Python that was named"
        );
        assert_eq!(torch(Path::new("no-such-python3")), TorchLookup::Absent("no no-such-python3 is on PATH".into()));
    }

    #[test]
    fn a_python_that_hangs_or_prints_without_end_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let within = |text: &str| packages_within(&program(dir.path(), text), Duration::from_millis(300)).torch;
        let begun = Instant::now();
        assert!(
            matches!(within("exec sleep 60"), TorchLookup::Broken(why) if why.ends_with("did not say within 0.3 s where its torch is"))
        );
        assert!(matches!(within("exec yes"), TorchLookup::Broken(_)));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
