//! Names, ids and texts within the limits of MLflow 3 (`mlflow/utils/validation.py`).

use std::fmt::Write;
use std::path::Path;

/// Maximum number of bytes of the name of a parameter, a metric or a tag, which is the name of a file.
const KEY_BYTES_MAX: usize = 250;
const PARAM_CHARS_MAX: usize = 6_000;
const TAG_CHARS_MAX: usize = 8_000;
pub(super) const EXPERIMENT_CHARS_MAX: usize = 500;
/// Hexadecimal digits that tell names apart that would be the same.
const DISTINCT_DIGITS: usize = 8;
/// Contexts of the hashes that make ids.
const RUN_CONTEXT: &str = "enn 2026 mlflow run id";
const EXPERIMENT_CONTEXT: &str = "enn 2026 mlflow experiment id";
/// Ids of experiments have 18 digits, of which the first is not 0.
const EXPERIMENT_ID_MIN: u64 = 100_000_000_000_000_000;
const EXPERIMENT_IDS: u64 = 9 * EXPERIMENT_ID_MIN;

/// Returns a name of a parameter that MLflow accepts and that none of `taken` has. MLflow accepts letters, digits and `_ - . : /` and
/// spaces; a slash would make a folder, and the brackets of a list's items become points.
pub(super) fn key(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let dotted = name.replace('[', ".").replace(']', "");
    let accepted = |one: char| one.is_alphanumeric() || matches!(one, '_' | '-' | '.' | ' ');
    let mut key: String = dotted.chars().map(|one| if accepted(one) { one } else { '_' }).collect();
    if key.chars().all(|one| one == '.') {
        key.insert(0, '_');
    }
    if key.len() <= KEY_BYTES_MAX && !is_taken(&key) {
        return key;
    }
    let mut end = key.len().min(KEY_BYTES_MAX - DISTINCT_DIGITS - 1);
    while !key.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{}", &key[..end], &blake3::hash(name.as_bytes()).to_hex()[..DISTINCT_DIGITS])
}

pub(super) fn param(value: &str) -> String {
    cut(value, PARAM_CHARS_MAX)
}

pub(super) fn tag(value: &str) -> String {
    cut(value, TAG_CHARS_MAX)
}

fn cut(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    text.chars().take(limit - 1).chain(['…']).collect()
}

/// Returns the id of a run in an experiment: 32 hexadecimal digits, the same for each export. `started` tells folds of different
/// cross-validations apart, whose directories have the same names.
pub(super) fn run_id(run: &str, started: f64, experiment: &str) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(RUN_CONTEXT);
    for part in [run.as_bytes(), &started.to_bits().to_le_bytes(), experiment.as_bytes()] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

/// Returns the id of a new experiment of this name.
pub(super) fn experiment_id(name: &str) -> String {
    let hash = blake3::derive_key(EXPERIMENT_CONTEXT, name.as_bytes());
    let number = hash[..8].iter().fold(0u64, |number, byte| (number << 8) | u64::from(*byte));
    (EXPERIMENT_ID_MIN + number % EXPERIMENT_IDS).to_string()
}

/// Returns a text as a scalar of YAML in double quotes, which JSON's strings are.
pub(super) fn yaml(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    enn_common::shown::json(&quoted).into_owned()
}

/// Reads the value of a key at the beginning of a line of a meta.yaml, which MLflow writes without nesting.
pub(super) fn yaml_value(document: &str, key: &str) -> Option<String> {
    let line = document.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))?.trim();
    if let Some(inner) = line.strip_prefix('\'').and_then(|line| line.strip_suffix('\'')) {
        return Some(inner.replace("''", "'"));
    }
    if line.starts_with('"') {
        return serde_json::from_str(line).ok();
    }
    Some(line.to_owned())
}

/// Returns the address of a file: all bytes but letters, digits and a few marks are written as %XX.
pub(super) fn file_uri(path: &Path) -> String {
    let mut uri = "file://".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => uri.push(char::from(*byte)),
            other => {
                // Writing to a String cannot fail.
                let _ = write!(uri, "%{other:02X}");
            }
        }
    }
    uri
}
