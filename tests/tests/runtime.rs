//! Libraries of others' that run artifacts, in an enn of their own (`enn runtime`). With the libraries themselves it is tried by
//! `tests/conformance/export_tf.py`.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_export::{
    ExportError,
    maker::{Limits, apart::Library},
};
use enn_tests::launch::enn;
use std::{fs, path::Path, process::Command, time::Duration};

fn refusal(command: Command, dir: &Path, limits: Limits) -> ExportError {
    let ports = (vec!["x".to_owned()], vec!["y".to_owned()]);
    Library::LiteRt.start(command, Path::new("m.tflite"), ports, dir, limits).unwrap_err()
}

/// A program of these lines of sh.
fn program(lines: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", lines]);
    command
}

#[test]
fn a_library_that_is_none_is_named_with_what_the_linker_says() {
    let dir = tempfile::tempdir().unwrap();
    for whose in [Library::LiteRt, Library::TensorFlow] {
        let library = dir.path().join("libnothing.so");
        fs::write(&library, "nothing").unwrap();
        let mut command = Command::new(enn());
        command.args(["runtime", whose.name()]).arg(&library);
        let error = refusal(command, dir.path(), Limits::MAKES).to_string();
        assert!(error.starts_with("LiteRT refused m.tflite: ") && error.contains("libnothing.so"), "{error}");
        assert!(error.contains("file too short") && error.contains("hint: "), "{error}");
    }
}

#[test]
fn a_runtime_that_ends_says_nothing_or_nonsense_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let short = Limits { time: Duration::from_millis(200), ..Limits::MAKES };
    for (lines, limits, said) in [
        ("echo 'double free' >&2; kill -ABRT $$", Limits::MAKES, "double free"),
        ("read job; echo nonsense", Limits::MAKES, "it said nonsense"),
        ("read job; echo '{\"answered\": [[1]]}'", Limits::MAKES, "before it was asked"),
        ("read job; sleep 60", short, "no answer within"),
    ] {
        let error = refusal(program(lines), dir.path(), limits).to_string();
        assert!(error.starts_with("LiteRT refused m.tflite: ") && error.contains(said), "{lines}: {error}");
    }
    let error = refusal(Command::new("/nowhere/enn"), dir.path(), Limits::MAKES).to_string();
    assert!(error.starts_with("/nowhere/enn: No such file"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
