//! Which torch a Python would import, without importing it.

use crate::process::{OutputError, output_within};
use enn_common::secrets;
use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

/// Longest time a Python may take to say where its torch is: it may start from a cold network disk.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Prints the package's directory. What lies in the working directory is not a package of that Python.
const SCRIPT: &str = "import sys; sys.path[:] = [path for path in sys.path if path]
from importlib.util import find_spec
spec = find_spec('torch')
print(list(spec.submodule_search_locations)[0] if spec and spec.submodule_search_locations else '')";

/// What a Python says of its torch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The directory of the package.
    At(PathBuf),
    /// There is none, which is nothing strange; the sentence that says so.
    None(String),
    /// The Python is broken or hangs; the sentence that says so.
    Broken(String),
}

/// Asks a Python, for as long as a start may take.
pub(super) fn torch(python: &Path) -> Answer {
    torch_within(python, WAIT_MAX)
}

fn torch_within(python: &Path, wait_max: Duration) -> Answer {
    let place = python.display();
    let mut command = secrets::command(python);
    command.args(["-c", SCRIPT]);
    match output_within(command, wait_max) {
        // What a site's own code prints comes first.
        Ok(said) => match said.lines().last().map(str::trim).filter(|line| !line.is_empty()) {
            Some(dir) => Answer::At(PathBuf::from(dir)),
            None => Answer::None(format!("the Python {place} has no torch")),
        },
        Err(OutputError::Start(error)) if error.kind() == ErrorKind::NotFound && python.components().count() == 1 => {
            Answer::None(format!("no {place} is on PATH"))
        }
        Err(OutputError::Start(error)) => Answer::Broken(format!("the Python {place} does not start: {error}")),
        Err(OutputError::Failed(line)) => {
            Answer::Broken(format!("the Python {place} cannot say whether it has torch: {line}"))
        }
        Err(OutputError::TimedOut(limit)) => Answer::Broken(format!(
            "the Python {place} did not say within {} s where its torch is",
            limit.as_secs_f64()
        )),
    }
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
        let said = |text: &str| torch(&program(dir.path(), text));
        assert_eq!(said("echo hello; echo /a b/torch"), Answer::At("/a b/torch".into()));
        let broken = |text: &str| match said(text) {
            Answer::Broken(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(matches!(said("echo"), Answer::None(why) if why.ends_with("has no torch")));
        assert!(broken("echo broken >&2; exit 1").ends_with("whether it has torch: broken"));
        assert!(broken("kill -9 $$").ends_with("it said nothing"));
        assert!(
            matches!(torch(&dir.path().join("absent")), Answer::Broken(why) if why.contains("does not start")),
            "a Python that was named"
        );
        assert_eq!(torch(Path::new("no-such-python3")), Answer::None("no no-such-python3 is on PATH".into()));
    }

    #[test]
    fn a_python_that_hangs_or_prints_without_end_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let within = |text: &str| torch_within(&program(dir.path(), text), Duration::from_millis(300));
        let begun = Instant::now();
        assert!(
            matches!(within("exec sleep 60"), Answer::Broken(why) if why.ends_with("did not say within 0.3 s where its torch is"))
        );
        assert!(matches!(within("exec yes"), Answer::Broken(_)));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
