//! Which torch a Python would import, without importing it.

use crate::process::{OutputError, output_within};
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Longest time a Python may take to say where its torch is: it may start from a cold network disk.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Prints the package's directory. What lies in the working directory is not a package of that Python.
const SCRIPT: &str = "import sys; sys.path[:] = [path for path in sys.path if path]
from importlib.util import find_spec
spec = find_spec('torch')
print(list(spec.submodule_search_locations)[0] if spec and spec.submodule_search_locations else '')";

/// The directory of the package torch; why there is none.
pub(super) fn torch(python: &Path) -> Result<PathBuf, String> {
    let place = python.display();
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT]);
    match output_within(command, WAIT_MAX) {
        // What a site's own code prints comes first.
        Ok(said) => match said.lines().last().map(str::trim).filter(|line| !line.is_empty()) {
            Some(dir) => Ok(PathBuf::from(dir)),
            None => Err(format!("the Python {place} has no torch")),
        },
        Err(OutputError::Start(error)) => Err(format!("the Python {place} does not start: {error}")),
        Err(OutputError::Failed(line)) => Err(format!("the Python {place} cannot say whether it has torch: {line}")),
        Err(OutputError::TimedOut(limit)) => Err(format!("the Python {place} said nothing for {} s", limit.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

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
        assert_eq!(said("echo hello; echo /a b/torch"), Ok("/a b/torch".into()));
        assert!(said("echo").unwrap_err().ends_with("has no torch"));
        assert!(said("echo broken >&2; exit 1").unwrap_err().ends_with("whether it has torch: broken"));
        assert!(torch(&dir.path().join("absent")).unwrap_err().contains("does not start"));
    }
}
