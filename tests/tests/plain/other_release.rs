//! The copy of the workspace for another release of libtorch.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_tests::pages::root;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const SCRIPT: &str = "worker/setup/other_release.py";

fn copy(script: &Path, folder: &Path) -> Output {
    Command::new("python3").arg(script).arg("2.13").arg(folder).output().unwrap()
}

fn error(done: &Output) -> String {
    String::from_utf8_lossy(&done.stderr).into_owned()
}

/// Returns the lines that differ, old and new.
fn changed(old: &Path, new: &Path) -> Vec<(String, String)> {
    let lines = |path: &Path| fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    let (old, new) = (lines(old), lines(new));
    assert_eq!(old.len(), new.len());
    old.into_iter().zip(new).filter(|(old, new)| old != new).collect()
}

/// A workspace of its own, with the script in it.
fn workspace(dir: &Path) -> PathBuf {
    let root_of_copy = dir.join("a workspace");
    let script = root_of_copy.join(SCRIPT);
    fs::create_dir_all(script.parent().unwrap()).unwrap();
    fs::copy(root().join(SCRIPT), &script).unwrap();
    for name in ["Cargo.toml", "Cargo.lock"] {
        fs::copy(root().join(name), root_of_copy.join(name)).unwrap();
    }
    fs::write(root_of_copy.join(".gitignore"), "/target\n").unwrap();
    let git = Command::new("git").arg("init").arg("--quiet").arg(&root_of_copy).status().unwrap();
    assert!(git.success());
    root_of_copy
}

#[test]
fn a_copy_differs_in_the_release_of_tch_only() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("copy");
    let done = copy(&root().join(SCRIPT), &folder);
    assert!(done.status.success(), "{}", error(&done));
    let manifest = changed(&root().join("Cargo.toml"), &folder.join("Cargo.toml"));
    assert_eq!(manifest.len(), 2, "{manifest:?}");
    for (line, name) in manifest.iter().zip(["tch", "torch-sys"]) {
        assert!(line.0.starts_with(&format!("{name} = ")) && line.1.contains("version = \"=0.26.0\""), "{line:?}");
    }
    let lock = changed(&root().join("Cargo.lock"), &folder.join("Cargo.lock"));
    let starts: Vec<&str> = lock.iter().map(|(_, new)| new.split(' ').next().unwrap()).collect();
    assert_eq!(starts, ["version", "checksum", "version", "checksum"], "{lock:?}");
    assert!(folder.join("worker/core/shim/artifact.cpp").is_file() && !folder.join("target").exists());
}

#[test]
fn a_copy_follows_its_workspace_and_touches_only_what_changed() {
    let dir = tempfile::tempdir().unwrap();
    let from = workspace(dir.path());
    let folder = from.join("target/copy");
    let again = || {
        let done = copy(&from.join(SCRIPT), &folder);
        assert!(done.status.success(), "{}", error(&done));
        fs::metadata(folder.join("Cargo.lock")).unwrap().modified().unwrap()
    };
    fs::write(from.join("new.rs"), "one").unwrap();
    let first = again();
    assert_eq!(fs::read_to_string(folder.join("new.rs")).unwrap(), "one", "a file that git does not know yet");
    fs::write(from.join("new.rs"), "two").unwrap();
    assert_eq!(again(), first, "the file is the same, and cargo sees it as the same");
    assert_eq!(fs::read_to_string(folder.join("new.rs")).unwrap(), "two");
    fs::remove_file(from.join("new.rs")).unwrap();
    again();
    assert!(!folder.join("new.rs").exists());
}

#[test]
fn what_cannot_be_copied_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let from = workspace(dir.path());
    let refused = |folder: &Path| {
        let done = copy(&from.join(SCRIPT), folder);
        assert_eq!(done.status.code(), Some(4));
        error(&done)
    };
    let others = dir.path().join("somebody's");
    fs::create_dir(&others).unwrap();
    fs::write(others.join("work"), "").unwrap();
    assert!(refused(&others).contains("is not a copy of the workspace\nhint: "));
    assert!(others.join("work").exists());
    let manifest = fs::read_to_string(from.join("Cargo.toml")).unwrap();
    fs::write(from.join("Cargo.toml"), manifest.replace("tch = { version", "tch = { optional = true, version"))
        .unwrap();
    let said = refused(&dir.path().join("copy"));
    assert!(said.contains("the requirement of tch in Cargo.toml is found 0 times, expected once"), "{said}");
}
