//! Directories in which an installation has its parts.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Returns the directories of packages below a prefix of Python's, e.g. `lib/python3.11/site-packages`.
pub(super) fn site_packages(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for lib in ["lib", "lib64"] {
        let mut pythons: Vec<PathBuf> =
            fs::read_dir(root.join(lib)).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        pythons.sort();
        let named = |path: &&PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("python3") || name.starts_with("pypy3")
        };
        for python in pythons.iter().filter(named) {
            found.extend(["site-packages", "dist-packages"].map(|name| python.join(name)));
        }
    }
    found
}

/// Returns whether any user may replace what is in a directory.
pub(super) fn is_world_writable(dir: &Path) -> bool {
    const WRITTEN_BY_OTHERS: u32 = 0o002;
    fs::metadata(dir).is_ok_and(|found| found.permissions().mode() & WRITTEN_BY_OTHERS != 0)
}
