//! Every flag of every release of torchrun is understood, in each of its spellings, as releases.json has them from torch itself.

use super::{super::line::parse_known, *};
use serde_json::Value;
use std::ffi::OsString;

const RELEASES: &str = include_str!("../../torchrun/releases.json");

fn releases() -> Value {
    serde_json::from_str(RELEASES).unwrap()
}

#[test]
fn each_flag_of_each_release_parses() {
    let mut seen = 0;
    for (release, flags) in releases().as_object().unwrap() {
        for (name, flag) in flags.as_object().unwrap() {
            let takes_value = flag["value"].as_bool().unwrap();
            let choices = flag["choices"].as_array().map(|choices| choices.iter().filter_map(Value::as_str).collect());
            let values: Vec<&str> = choices.unwrap_or_else(|| vec!["1"]);
            for spelling in flag["spellings"].as_array().unwrap() {
                let spelling = spelling.as_str().unwrap();
                for value in &values {
                    let separate = if takes_value { vec![spelling, value] } else { vec![spelling] };
                    let joined = format!("{spelling}={value}");
                    check(&format!("{release} {name}"), &separate);
                    if takes_value && spelling.starts_with("--") {
                        check(&format!("{release} {name}"), &[&joined]);
                    }
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 8 * 50, "{seen} in 8 releases");
}

/// Both programs know these words before a script, alone where they end by themselves.
fn check(place: &str, words: &[&str]) {
    // What is printed ends the program before it looks for another.
    let script: &[&str] = if place.ends_with(" --print-completion") { &[] } else { &["train.py", "--lr", "1"] };
    for (program, dialect) in [(&["enn", "run"][..], Dialect::Enn), (&["enn-torchrun"][..], Dialect::Torchrun)] {
        let line: Vec<OsString> = [program, words, script].concat().into_iter().map(OsString::from).collect();
        let parsed = parse_known(&line, dialect);
        assert!(parsed.is_ok(), "{place}: {line:?}: {}", parsed.unwrap_err());
    }
}
