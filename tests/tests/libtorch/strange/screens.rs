//! What is seen: panics in one sentence, and names from files that a terminal obeys nowhere.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use super::{Place, data};
use enn_common::shown;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

fn faulty(what: &str, dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faulty"));
    command.arg(what).env("TMPDIR", dir).env_remove("RUST_BACKTRACE").output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_panic_is_one_sentence_and_its_details_are_where_the_hint_says() {
    let dir = tempfile::tempdir().unwrap();
    let ended = faulty("main", dir.path());
    assert_eq!(ended.status.code(), Some(101));
    let said = said(&ended);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].starts_with("error: faulty has a fault and stopped at tests/src/bin/faulty.rs:"), "{said}");
    assert!(lines[0].ends_with(": the main thread has a \\u{1b}[2Jfault"), "{said}");
    let path = lines[1].strip_prefix("hint: ").unwrap().split(" holds the details").next().unwrap();
    let details = fs::read_to_string(path).unwrap();
    assert!(details.contains("thread \"main\"") && details.contains("faulty::main"), "{details}");
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_thread_that_panics_holds_no_process_up() {
    for what in ["thread", "isolating"] {
        let dir = tempfile::tempdir().unwrap();
        let begun = Instant::now();
        let ended = faulty(what, dir.path());
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}: {:?}", begun.elapsed());
        assert_eq!(ended.status.signal(), Some(15), "{what}: {:?}", ended.status);
        assert_eq!(said(&ended).matches("error: ").count(), 1, "{what}: {}", said(&ended));
    }
}

#[test]
fn a_panic_that_is_answered_for_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let library = faulty("library", dir.path());
    let told = String::from_utf8_lossy(&library.stdout).into_owned();
    assert_eq!(
        told,
        "the library numbers panicked (no such number): what it read is damaged, or the library has a fault, whose place RUST_BACKTRACE=1 shows\n"
    );
    assert_eq!((library.status.code(), said(&library)), (Some(0), String::new()));
    let isolated = faulty("isolated", dir.path());
    assert_eq!((isolated.status.code(), &isolated.stdout[..]), (Some(0), &b"true false\n"[..]));
    assert!(said(&isolated).starts_with("error: faulty has a fault"), "{}", said(&isolated));
}

/// Clears the screen, turns the text around, ends the line and sets the title of a window.
const ODD: &str = "k\u{1b}[2J\u{202e}x\u{9b}1m\n\u{1b}]0;title\u{7}";

/// Fails where a terminal would obey something of a text.
fn is_harmless(what: &str, text: &str) {
    let obeyed = text.chars().find(|character| shown::is_obeyed(*character) && !matches!(character, '\n' | '\t'));
    assert!(obeyed.is_none(), "{what} holds {obeyed:?}: {text}");
}

#[test]
fn names_in_files_are_seen_and_not_obeyed() {
    let quoted = |name: &str| format!("\"{name}\"");
    let table = data().with("k", |row, _| quoted(if row % 2 == 0 { ODD } else { "plain" }));
    let text = table.text().replacen(",k\n", &format!(",{}\n", quoted(ODD)), 1);
    let column =
        ODD.replace('\u{1b}', "\\u001b").replace('\u{9b}', "\\u009b").replace('\u{7}', "\\u0007").replace('\n', "\\n");
    let features = format!("features = [\"a\", \"b\", {{ column = \"{column}\", kind = \"category\" }}]");
    let place = Place::of_text(text.as_bytes(), &[("data.rows", &features), ("train", "epochs = 2")]);
    is_harmless("training", &place.train(&[]));
    let run = place.run();
    let odd_run = run.with_file_name(format!("zz{ODD}"));
    fs::rename(&run, &odd_run).unwrap();
    let run = odd_run.to_str().unwrap();
    for words in [
        &["status", run][..],
        &["status", run, "--json"],
        &["metrics", run],
        &["ckpt", "ls", run],
        &["ckpt", "show", run],
        &["kernels", run],
        &["evaluate", run, "--data", "data.csv"],
        &["predict", run, "--data", "data.csv", "--out", "answer.csv"],
        &["data", "verify", run],
        &["train", "\u{1b}[2J.toml"],
        &["stage", "strange.toml", "--set", "data.rows.targets=[\"\u{1b}[2J\u{202e}\"]"],
        &["\u{1b}[2J\u{202e}"],
    ] {
        let mut command = place.command(words);
        if words[0] == "\u{1b}[2J\u{202e}" {
            command = Command::new(enn_tests::launch::enn());
            command.args(words);
        }
        let ended = command.env("ENN_LOG", "debug").output().unwrap();
        is_harmless(&format!("{words:?} to standard output"), &String::from_utf8(ended.stdout.clone()).unwrap());
        is_harmless(&format!("{words:?} to standard error"), &said(&ended));
    }
    is_harmless("the report", &fs::read_to_string(odd_run.join("report.html")).unwrap());
}

#[test]
fn a_library_that_panics_on_a_file_is_named_with_the_file() {
    let dir = enn_tests::frozen::archive();
    let mut bytes = fs::read(dir.path().join("rows.parquet")).unwrap();
    // The length of a column's chunk, which is below zero now.
    bytes[1608] = 39;
    fs::write(dir.path().join("bad.parquet"), bytes).unwrap();
    let config =
        "name = \"bad\"\n[data]\nfiles = [\"bad.parquet\"]\n[data.rows]\nfeatures = [\"row_id\"]\ntargets = [\"y\"]\n";
    fs::write(dir.path().join("bad.toml"), config).unwrap();
    let stage = || {
        let mut command = Command::new(enn_tests::launch::enn());
        command.args(["stage", "bad.toml", "--out", "staged", "--lines"]).current_dir(&dir);
        command
    };
    let ended = stage().env_remove("RUST_BACKTRACE").output().unwrap();
    let told = said(&ended);
    assert_eq!(ended.status.code(), Some(3), "{told}");
    for words in ["bad.parquet: cannot be read as Parquet: ", "the library parquet panicked (column start"] {
        assert!(told.contains(words), "{told}");
    }
    assert!(!told.contains("panicked at") && !told.contains("backtrace") && !told.contains(".rs:"), "{told}");
    let ended = stage().env("RUST_BACKTRACE", "1").output().unwrap();
    assert!(said(&ended).contains("panicked at") && said(&ended).contains("stack backtrace"), "{}", said(&ended));
}
