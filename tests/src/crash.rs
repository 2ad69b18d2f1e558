//! The program killed at its k-th write, sync, rename or removal: `crash.c` is preloaded into the real `enn`, counts the calls and ends the
//! process at one of them, a write half done. Needs a C compiler, as building does.

#![expect(clippy::unwrap_used, reason = "it is part of tests, which fail by panicking")]

use crate::launch::enn;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// Exit status of a process that was ended.
const ENDED: i32 = 137;

/// The preloaded library.
fn library() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_dir, path) = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("crash.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/crash.c");
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&path).arg(source).arg("-ldl").output();
        let built = built.unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        (dir, path)
    });
    path
}

/// `enn` with the arguments, or the program whose path stands before them, in `dir`, with the library.
fn command(dir: &Path, args: &[&str]) -> Command {
    let is_program = args[0].starts_with('/');
    let (program, args) = if is_program { (args[0].into(), &args[1..]) } else { (enn(), args) };
    let mut command = Command::new(program);
    command.args(args).current_dir(dir).env("LD_PRELOAD", library());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Runs to its end and says how many calls there were.
pub fn calm(dir: &Path, args: &[&str]) -> usize {
    let count = tempfile::NamedTempFile::new().unwrap();
    let done = command(dir, args).env("CRASH_COUNT", count.path()).output().unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    fs::read_to_string(count.path()).unwrap().parse().unwrap()
}

/// Every file below a directory, or the file; nothing where there is nothing.
pub fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    if path.is_file() {
        all.insert(PathBuf::new(), fs::read(path).unwrap());
    } else if path.is_dir() {
        for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
            let below = contents(&entry.path()).into_iter();
            let name = PathBuf::from(entry.file_name());
            // A path that ends with a slash is that of a directory.
            let at = |rest: PathBuf| if rest.as_os_str().is_empty() { name.clone() } else { name.join(rest) };
            all.extend(below.map(|(rest, bytes)| (at(rest), bytes)));
        }
    }
    all
}

/// Copies all files of a directory.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for (path, bytes) in contents(from) {
        fs::create_dir_all(to.join(&path).parent().unwrap()).unwrap();
        fs::write(to.join(path), bytes).unwrap();
    }
}

/// A copy of `place` in which `args` was killed at a call.
pub fn struck(place: &Path, args: &[&str], at: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy(place, dir.path());
    let done = command(dir.path(), args).env("CRASH_AT", at.to_string()).output().unwrap();
    // Threads may do a call less than last time: then it has ended well.
    let code = done.status.code();
    assert!(code == Some(ENDED) || code == Some(0), "{args:?} at {at}: {}", String::from_utf8_lossy(&done.stderr));
    dir
}
