//! `enn new`, `enn schema` and a table in place of a configuration, as somebody types them.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_tests::{launch::enn, pages};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What a command said, and its exit code.
struct Said {
    out: String,
    err: String,
    code: i32,
}

/// A directory with a space in its name, and no home.
struct Desk {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Desk {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("my desk");
        fs::create_dir(&path).unwrap();
        Self { _dir: dir, path }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path.join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path.join(name)).unwrap()
    }

    fn say(&self, words: &[&str]) -> Said {
        let mut command = Command::new(enn());
        command.args(words).current_dir(&self.path).env_remove("HOME").env("XDG_CACHE_HOME", self.path.join("cache"));
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said { out: text(output.stdout), err: text(output.stderr), code: output.status.code().unwrap() }
    }

    fn refused(&self, words: &[&str], parts: &[&str]) {
        let said = self.say(words);
        assert_eq!(said.code, 2, "{words:?}: {}{}", said.out, said.err);
        parts.iter().for_each(|part| assert!(said.err.contains(part), "{words:?} lacks {part}:\n{}", said.err));
    }
}

/// A table of a shop: numbers, a category, an identifier, a constant, and the price in cents.
fn shop() -> String {
    let mut text = "order_id,price,area,city,country,price_cents\n".to_owned();
    for row in 0..120u64 {
        let mixed = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let price = mixed % 9_000 + 100;
        let city = ["Ulm", "Köln", "Bonn"][(mixed % 3) as usize];
        text += &format!("o{row:04},{price},{},{city},DE,{}\n", mixed % 777, price * 100);
    }
    text
}

#[test]
fn a_configuration_of_a_table_is_written_once_and_the_same_each_time() {
    let desk = Desk::new();
    desk.write("shop 1.csv", &shop());
    let said = desk.say(&["new", "shop 1.csv", "--target", "price"]);
    assert_eq!(said.code, 0, "{}", said.err);
    for line in [
        "120 rows, 6 columns",
        "left out: order_id: identifier: each value occurs once",
        "left out: country: constant: always DE",
        "left out: price_cents: likely leak: it is price, but for a factor and a constant",
        "next: enn train 'shop 1.toml'",
    ] {
        assert!(said.out.contains(line), "{line}\n{}", said.out);
    }
    let text = desk.read("shop 1.toml");
    assert!(text.starts_with("#:schema file://") && text.contains("files = [\"shop 1.csv\"]"), "{text}");
    assert!(desk.path.join("cache/enn/enn.schema.json").is_file());
    desk.refused(&["new", "shop 1.csv", "--target", "price"], &["shop 1.toml exists already", "--force"]);
    assert_eq!(desk.say(&["new", "shop 1.csv", "--target", "price", "--force"]).code, 0);
    assert_eq!(desk.read("shop 1.toml"), text);
    let printed = desk.say(&["new", "shop 1.csv", "--target", "price", "--out", "-"]);
    assert!(
        printed.out.contains("targets = [\"price\"]") && printed.err.contains("left out: country"),
        "{}",
        printed.out
    );
    let staged = desk.say(&["stage", "shop 1.toml", "--quiet"]);
    assert_eq!(staged.code, 0, "the file is one that is read: {}", staged.err);
}

#[test]
fn targets_that_are_missing_or_misspelt_are_named_with_the_nearest() {
    let desk = Desk::new();
    desk.write("shop.csv", &shop());
    desk.refused(&["new", "shop.csv"], &["--target names no column", "city", "3 different texts", "hint: name one"]);
    desk.refused(&["train", "shop.csv"], &["--target names no column", "price"]);
    desk.refused(&["new", "shop.csv", "--target", "pric"], &["no column \"pric\"", "did you mean \"price\""]);
    desk.refused(&["train", "shop.csv", "--target", "prise"], &["did you mean \"price\""]);
    desk.refused(&["stage", "shop.csv"], &["is data", "enn new"]);
    desk.write("a.toml", "name = \"a\"\n");
    desk.refused(&["train", "a.toml", "--target", "y"], &["--target names a column of a table", "hint:"]);
    desk.refused(&["train", "--target", "y"], &["no table is given"]);
    assert!(!desk.path.join("runs").exists(), "nothing was begun");
    desk.write("empty.csv", "");
    assert!(desk.say(&["new", "empty.csv", "--target", "y"]).err.contains("the file is empty"));
    assert!(desk.say(&["new", "none.csv", "--target", "y"]).code != 0);
}

#[test]
fn a_table_whose_name_tells_no_format_is_read_in_the_one_that_is_given() {
    let desk = Desk::new();
    desk.write("shop.2024", &shop());
    let refused = desk.say(&["new", "shop.2024", "--target", "price"]);
    assert!(refused.err.contains("the extension does not name a format") && refused.err.contains("--format"));
    let said = desk.say(&["new", "shop.2024", "--format", "csv", "--target", "price"]);
    assert_eq!(said.code, 0, "{}", said.err);
    let text = desk.read("shop.toml");
    assert!(text.contains("format = \"csv\"") && text.contains("--target price --format csv`"), "{text}");
    assert_eq!(desk.say(&["stage", "shop.toml", "--quiet"]).code, 0);
    desk.refused(&["train", "shop.2024", "--target", "price"], &["--set data.format=csv"]);
    let format = ["train", "shop.2024", "--target", "prise", "--set", "data.format=csv"];
    desk.refused(&format, &["did you mean \"price\""]);
}

#[test]
fn all_columns_are_those_of_the_table_but_the_excepted() {
    let desk = Desk::new();
    desk.write("shop.csv", &shop());
    let config = |more: &str| {
        format!("[data]\nfiles = \"shop.csv\"\n[data.rows]\ntargets = [\"price\"]\nfeatures = \"*\"\n{more}")
    };
    desk.write("all.toml", &config("except = [\"order_id\", \"price_cents\"]\nrow_id = \"order_id\"\n"));
    let staged = desk.say(&["stage", "all.toml", "--quiet"]);
    assert_eq!(staged.code, 0, "{}", staged.err);
    let meta: Value = serde_json::from_str(&desk.read(&format!("{}/meta.json", staged.out.trim()))).unwrap();
    let inputs: Vec<&str> =
        meta["features"].as_array().unwrap().iter().filter_map(|input| input["name"].as_str()).collect();
    assert_eq!(inputs, ["area", "city", "country"], "{meta}");
    desk.write("wrong.toml", &config("except = [\"order_if\"]\n"));
    desk.refused(&["stage", "wrong.toml"], &["wrong.toml:6:11: data.rows.except", "did you mean \"order_id\""]);
    desk.write("list.toml", &config("").replace("\"*\"", "[\"area\"]\nexcept = [\"city\"]"));
    desk.refused(&["stage", "list.toml"], &["data.rows.except", "belongs to features = \"*\""]);
}

#[test]
fn what_is_written_and_what_pages_show_validates() {
    let desk = Desk::new();
    let schema: Value = serde_json::from_str(&desk.say(&["schema"]).out).unwrap();
    desk.write("shop.csv", &shop());
    assert_eq!(desk.say(&["new", "shop.csv", "--target", "city"]).code, 0);
    let mut texts = vec![("shop.toml".to_owned(), desk.read("shop.toml"))];
    for path in tomls(&pages::root().join("examples")) {
        texts.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
    }
    assert!(texts.len() > 1, "no example was found");
    for (name, text) in texts {
        // The lines that are commented out are keys as well.
        let value: toml::Value = toml::from_str(&text).unwrap();
        let mistakes = mistakes(&schema, &serde_json::to_value(value).unwrap());
        assert!(mistakes.is_empty(), "{name}: {mistakes:?}");
    }
    // Blocks of pages leave out what they are not about.
    for page in pages::pages() {
        for (line, text) in page.tables() {
            let value: toml::Value = toml::from_str(&text).unwrap();
            let mut mistakes = mistakes(&schema, &serde_json::to_value(value).unwrap());
            mistakes.retain(|mistake| !mistake.contains("required"));
            assert!(mistakes.is_empty(), "{}: {mistakes:?}", page.at(line));
        }
    }
    let refused =
        |text: &str| mistakes(&schema, &serde_json::to_value(toml::from_str::<toml::Value>(text).unwrap()).unwrap());
    for text in [
        "nam = \"x\"",
        "[train]\nepoch = 3",
        "[train]\nloss = \"hubert\"",
        "[model]\ndropout = 1.0",
        "[train]\nlr = \"fast\"",
    ] {
        assert_eq!(refused(text).len(), 1, "{text}");
    }
}

fn tomls(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(tomls(&path));
        } else if path.extension().is_some_and(|extension| extension == "toml") && !path.ends_with("Cargo.toml") {
            found.push(path);
        }
    }
    found
}

/// Returns the mistakes of a value by the words of JSON Schema that the schema uses. A word that it does not know is a mistake.
fn mistakes(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (word, rule) in schema.as_object().unwrap() {
        let is_broken = match word.as_str() {
            "$schema" | "title" | "description" | "default" => false,
            "type" => !is_of_type(rule.as_str().unwrap(), value),
            "enum" => !rule.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_some_and(|number| number < rule.as_f64().unwrap()),
            "maximum" => value.as_f64().is_some_and(|number| number > rule.as_f64().unwrap()),
            "exclusiveMinimum" => value.as_f64().is_some_and(|number| number <= rule.as_f64().unwrap()),
            "exclusiveMaximum" => value.as_f64().is_some_and(|number| number >= rule.as_f64().unwrap()),
            "minItems" => value.as_array().is_some_and(|items| (items.len() as u64) < rule.as_u64().unwrap()),
            "maxItems" => value.as_array().is_some_and(|items| items.len() as u64 > rule.as_u64().unwrap()),
            "required" => {
                value.is_object()
                    && rule.as_array().unwrap().iter().any(|key| value.get(key.as_str().unwrap()).is_none())
            }
            "anyOf" => !rule.as_array().unwrap().iter().any(|form| mistakes(form, value).is_empty()),
            "oneOf" => rule.as_array().unwrap().iter().filter(|form| mistakes(form, value).is_empty()).count() != 1,
            "allOf" => {
                found.extend(
                    rule.as_array()
                        .unwrap()
                        .iter()
                        .flat_map(|form| mistakes(form, value))
                        .map(|_| "required".to_owned()),
                );
                false
            }
            "items" => {
                found.extend(value.as_array().into_iter().flatten().flat_map(|item| mistakes(rule, item)));
                false
            }
            "properties" => {
                let inner = value
                    .as_object()
                    .into_iter()
                    .flatten()
                    .filter_map(|(key, value)| Some((key, rule.get(key)?, value)));
                found.extend(inner.flat_map(|(key, rule, value)| {
                    mistakes(rule, value).into_iter().map(move |mistake| format!("{key}: {mistake}"))
                }));
                false
            }
            "additionalProperties" => {
                let known = |key: &String| schema.get("properties").is_some_and(|known| known.get(key).is_some());
                let others = value.as_object().into_iter().flatten().filter(|(key, _)| !known(key));
                match rule {
                    Value::Bool(false) => found.extend(others.map(|(key, _)| format!("{key} is no key"))),
                    rule => found.extend(others.flat_map(|(_, value)| mistakes(rule, value))),
                }
                false
            }
            _ => true,
        };
        if is_broken {
            found.push(format!("{word} {rule}: {value}"));
        }
    }
    found
}

fn is_of_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => false,
    }
}
