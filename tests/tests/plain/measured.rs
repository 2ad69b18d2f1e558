//! The page of figures is what its script makes of the results, and every figure has its machine.

#![expect(clippy::unwrap_used, reason = "it is part of tests")]

use enn_tests::pages::root;
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

/// What names a machine above a table.
const MACHINES: [&str; 3] = [" cores", "H100", "H200"];

fn python(script: &Path, arguments: &[&str]) -> Output {
    Command::new("python3").arg(script).args(arguments).output().unwrap()
}

fn error(done: &Output) -> String {
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn the_page_of_figures_is_what_the_script_makes_of_the_results() {
    let done = python(&root().join("tests/bench/measured.py"), &["--check"]);
    assert!(done.status.success(), "{}", error(&done));
}

#[test]
fn new_results_are_written_into_their_rows_with_their_machine() {
    let dir = tempfile::tempdir().unwrap();
    let bench = dir.path().join("tests/bench");
    let new = dir.path().join("target/bench");
    fs::create_dir_all(&bench).unwrap();
    fs::create_dir_all(&new).unwrap();
    let script = bench.join("measured.py");
    fs::copy(root().join("tests/bench/measured.py"), &script).unwrap();
    let page = "# Measured\n\n| bench | ours | peer | ratio | on |\n|---|---|---|---|---|\n| `line_2`, `_8`: to the `first` line | 1 ms | 2 ms | 2 | \
                here |\n| `other`: waits | 3 ms | 4 ms | 1.3 | there |\n\n| bench | ours |\n|---|---|\n| `line_2` | 5 ms |\n";
    fs::write(bench.join("MEASURED.md"), page).unwrap();
    let result = |name: &str, ours: f64, limit: &str, machine: &str| {
        let text = format!(
            "{{\"name\": \"{name}\", \"unit\": \"s\", \"ours\": {ours}, \"peer\": 3.5, \"peer_name\": \"torchrun\", \"ratio\": {}, \
             \"limit\": {limit}, \"commit\": \"abc1234\", \"machine\": {machine}}}",
            3.5 / ours
        );
        fs::write(new.join(format!("{name}.json")), text).unwrap();
    };
    let machine = "{\"processor\": \"EPYC\", \"cores\": 2, \"memory_gb\": 25, \"gpus\": \"\", \"load\": 0.1, \"date\": \"2026-11-27\"}";
    result("line_2", 0.024, "50.0", machine);
    let read = || fs::read_to_string(bench.join("MEASURED.md")).unwrap();
    assert!(python(&script, &[]).status.success());
    assert_eq!(read(), page, "the row names a bench without a result, too");

    result("line_8", 0.5, "50.0", machine);
    result("other", 1.0, "1.0", "\"some machine\"");
    let done = python(&script, &[]);
    assert!(
        done.status.success() && error(&done).contains("other.json is left out: it has no machine.processor"),
        "{}",
        error(&done)
    );
    let row = "| `line_2`, `_8`: to the `first` line | 24, 500 ms | 3.5, 3.5 s; torchrun | 146, 7 (**below the limit of 50**) | EPYC, 2 \
               cores, 25 GB; load 0.1 before; 2026-11-27, abc1234 |";
    let expected = page.replace("| `line_2`, `_8`: to the `first` line | 1 ms | 2 ms | 2 | here |", row);
    assert_eq!(read(), expected);
    assert!(python(&script, &["--check"]).status.success());

    fs::write(bench.join("MEASURED.md"), expected.replace("| 24, 500 ms", "| 20, 500 ms")).unwrap();
    let done = python(&script, &["--check"]);
    assert!(!done.status.success() && error(&done).contains("hint: make measured"), "{}", error(&done));
    assert!(fs::remove_file(bench.join("results/line_8.json")).is_ok());
    fs::write(bench.join("results/line_2.json"), "{}").unwrap();
    assert!(error(&python(&script, &["--check"])).contains("line_2.json: it has no name, unit, "));
}

/// The cells of a row.
fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

#[test]
fn every_table_of_figures_names_its_machine() {
    let mut breaches = Vec::new();
    let mut tables = 0;
    for name in ["README.md", "tests/bench/MEASURED.md"] {
        let text = fs::read_to_string(root().join(name)).unwrap();
        let text = if name == "README.md" { text.split_once("## Measured").unwrap().1 } else { &text };
        let text = if name == "README.md" { text.split_once("\n## ").unwrap().0 } else { text };
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if !line.starts_with('|') || at == 0 || lines[at - 1].starts_with('|') {
                continue;
            }
            tables += 1;
            let rows = lines[at + 2..].iter().take_while(|line| line.starts_with('|'));
            match cells(line).last() {
                Some(&"on") => {
                    let columns = cells(line).len();
                    let bare = rows.filter(|row| cells(row).len() != columns || cells(row)[columns - 1].is_empty());
                    breaches.extend(bare.map(|row| format!("{name}: {row}")));
                }
                _ => {
                    let above =
                        lines[..at].iter().rev().skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty());
                    let above: Vec<&str> = above.copied().collect();
                    let named = |text: &str| MACHINES.iter().any(|machine| text.contains(machine));
                    if !named(&above.join(" "))
                        && !named(line)
                        && !line.contains("machine")
                        && !line.contains("| GPU |")
                    {
                        breaches.push(format!("{name}: {line}"));
                    }
                }
            }
        }
    }
    assert!(tables > 12, "only {tables} tables were found");
    assert!(
        breaches.is_empty(),
        "a table has a column `on` or a machine in the words above it:\n{}",
        breaches.join("\n")
    );
}
