//! Libraries of others' that run artifacts, in an enn of their own (`enn runtime`). With the libraries themselves it is tried by
//! `tests/conformance/export_tf.py`.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_export::{
    ExportError, Ports,
    maker::{
        Limits,
        apart::{Library, convert},
    },
};
use enn_tests::{artifact::library, launch::enn};
use std::{fs, path::Path, process::Command, time::Duration};

/// Lines of C that take a GiB, and end as C++ does without it.
const GREEDY: &str = r#"if (!malloc(1UL << 30)) { fputs("what():  std::bad_alloc\n", stderr); abort(); }"#;

fn refusal(command: Command, dir: &Path, limits: Limits) -> ExportError {
    let ports = Ports { inputs: vec!["x".to_owned()], outputs: vec!["y".to_owned()] };
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
        (
            "echo 'double free' >&2; kill -ABRT $$",
            Limits::MAKES,
            "failed on m.tflite: it crashed (SIGABRT); its last lines:\n  double free",
        ),
        ("read job; echo nonsense", Limits::MAKES, "refused m.tflite: it sent nonsense"),
        ("read job; echo '{\"answered\": [[1]]}'", Limits::MAKES, "before any question"),
        ("read job; sleep 60", short, "refused m.tflite: no answer within 0 s\nhint: "),
    ] {
        let error = refusal(program(lines), dir.path(), limits).to_string();
        assert!(error.starts_with("LiteRT ") && error.contains(said), "{lines}: {error}");
    }
    let error = refusal(Command::new("/nowhere/enn"), dir.path(), Limits::MAKES).to_string();
    assert!(error.starts_with("/nowhere/enn: No such file"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn what_a_library_takes_or_breaks_is_the_end_of_its_own_process() {
    let large = Limits { memory_bytes: 4 << 30, ..Limits::MAKES };
    let small = Limits { memory_bytes: 512 << 20, ..Limits::MAKES };
    let short = Limits { time: Duration::from_secs(2), ..large };
    let killed = "kill(getpid(), SIGKILL);";
    for (lines, limits, run, made) in [
        (GREEDY, small, "it needs more memory than the 512 MiB", "it needs more memory than the 512 MiB"),
        (GREEDY, large, "does not offer OrtGetApiBase", "does not offer OrtGetApiBase"),
        ("*(volatile int *)8 = 1;", large, "it crashed (SIGSEGV)", "it crashed (SIGSEGV)"),
        (
            killed,
            large,
            "it was killed, as the system does where memory",
            "it was killed, as the system does where memory",
        ),
        ("sleep(1000);", short, "no answer within 2 s", "it was not done within 2 s"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let library = library(dir.path(), lines);
        let command = || {
            let mut command = Command::new(enn());
            command.args(["runtime", "onnxruntime"]).arg(&library);
            command
        };
        let ports = Ports { inputs: vec!["x".to_owned()], outputs: vec!["y".to_owned()] };
        let scratch = dir.path();
        let error = Library::OnnxRuntime.start(command(), Path::new("m.onnx"), ports, scratch, limits).unwrap_err();
        let told = error.to_string();
        assert!(told.contains(run) && told.contains("\nhint: "), "{lines}: {told}");
        let source = dir.path().join("m.onnx");
        let out = dir.path().join("m.ort");
        let told = convert(command(), &source, &out, limits).unwrap_err().to_string();
        assert!(told.contains(made) && told.contains("\nhint: ") && !out.exists(), "{lines}: {told}");
        let log = dir.path().join("m.ort.log");
        assert_eq!(told.contains(&format!("its output is in {}", log.display())), log.exists(), "{told}");
        assert_eq!(log.exists(), lines == GREEDY && limits.memory_bytes == small.memory_bytes, "{told}");
    }
}
