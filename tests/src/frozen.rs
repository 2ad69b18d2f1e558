//! Files that released versions wrote, unpacked: see `tests/plain/frozen.rs`.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use std::{
    fs::File,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Runs of every archive.
pub const RUNS: [&str; 3] = ["rows", "classes", "series"];

/// What version 0.1 left, in a directory of its own.
pub fn archive() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let file = File::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("frozen/0.1.tar.zst")).unwrap();
    let mut tar = Command::new("tar").arg("x").current_dir(&dir).stdin(Stdio::piped()).spawn().unwrap();
    tar.stdin.take().unwrap().write_all(&zstd::decode_all(file).unwrap()).unwrap();
    assert!(tar.wait().unwrap().success());
    dir
}

/// Standard output of a command that succeeds.
pub fn enn(dir: &Path, arguments: &[&str]) -> String {
    let output = Command::new(crate::launch::enn()).args(arguments).current_dir(dir).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "enn {}: {error}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}
