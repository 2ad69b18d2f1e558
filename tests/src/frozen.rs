//! Files that released versions wrote, unpacked: see `tests/frozen.rs`.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use std::{
    fs::File,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// What version 0.1 left, in a directory of its own.
pub fn archive() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let file = File::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("frozen/0.1.tar.zst")).unwrap();
    let mut tar = Command::new("tar").arg("x").current_dir(&dir).stdin(Stdio::piped()).spawn().unwrap();
    tar.stdin.take().unwrap().write_all(&zstd::decode_all(file).unwrap()).unwrap();
    assert!(tar.wait().unwrap().success());
    dir
}
