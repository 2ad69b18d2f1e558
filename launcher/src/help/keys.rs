//! The keys of a configuration: type and bounds as the reader of configurations enforces them, defaults as it fills them in,
//! descriptions from the pages.
//!
//! The reader is asked: a key that does not exist makes it list all keys of the section, and a value of a wrong type makes it say what it
//! expects. So there is no second list of keys that could be wrong.

use super::pages::{DATA, Description, EmbeddedPage, FAULTS, TRAINING};
use enn_common::config::{
    self, Facts, RawConfig,
    error::ConfigErrorKind,
    model::ModelConfig,
    train::{ClusterConfig, TrainConfig},
};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A key that no section has.
const ABSENT: &str = "absent-key";
/// A value that no key takes.
const MISFIT: &str = "1979-05-27";
/// The words with which the reader expects a section.
const SECTION: &str = "a section";
/// Sections within each other at most.
const DEPTH_MAX: usize = 4;

/// A key of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigKey {
    /// Name with the section, such as "train.epochs".
    pub(crate) name: String,
    /// Type and bounds, such as "a whole number from 0 to 10000000".
    pub(crate) expected: String,
    /// The default as TOML writes it; `None` where there is none, or where it depends on other keys.
    pub(crate) default: Option<String>,
}

/// Returns all keys, in the order in which the reader reads them.
pub(crate) fn all() -> Vec<ConfigKey> {
    let mut keys = Vec::new();
    collect("", 0, &defaults(), &mut keys);
    keys
}

/// Returns what the pages tell of a key.
pub(crate) fn description(key: &ConfigKey) -> Option<Description> {
    let pages: &[EmbeddedPage] = match key.name.split('.').next().unwrap_or_default() {
        "data" => &[DATA, TRAINING],
        "cluster" => &[FAULTS, TRAINING],
        "train" => &[TRAINING, FAULTS],
        "model" | "kernels" => &[TRAINING, FAULTS],
        _ => &[DATA, TRAINING],
    };
    // A table of any page says more than a paragraph of the first.
    pages
        .iter()
        .find_map(|page| page.row_of(&key.name))
        .or_else(|| pages.iter().find_map(|page| page.description(&key.name)))
}

/// Appends the keys of a section.
fn collect(section: &str, depth: usize, defaults: &Value, keys: &mut Vec<ConfigKey>) {
    let join = |name: &str| if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
    for name in names(section) {
        let name = join(&name);
        let Some(expected) = expected(&name) else { continue };
        let below = keys.len();
        if expected == SECTION && depth < DEPTH_MAX {
            collect(&name, depth + 1, defaults, keys);
        }
        // A section whose keys users choose has no key that the reader could name.
        if keys.len() == below {
            let default = default(&name, defaults);
            keys.push(ConfigKey { name, expected, default });
        }
    }
}

/// Asks the reader for the names of a section's keys.
fn names(section: &str) -> Vec<String> {
    let key = if section.is_empty() { ABSENT.to_owned() } else { format!("{section}.{ABSENT}") };
    let known = |kind| match kind {
        ConfigErrorKind::UnknownKey { known, .. } => Some(known),
        _ => None,
    };
    ask(&key).and_then(known).unwrap_or_default()
}

/// Asks the reader what it expects as the value of a key.
fn expected(key: &str) -> Option<String> {
    match ask(key)? {
        ConfigErrorKind::Type { expected, .. } | ConfigErrorKind::Range { expected, .. } => Some(expected),
        ConfigErrorKind::UnknownName { known, .. } => Some(format!("one of: {}", known.join(", "))),
        _ => None,
    }
}

/// Returns the mistake that the reader finds in a value that no key takes.
fn ask(key: &str) -> Option<ConfigErrorKind> {
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let head = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
    let raw = RawConfig::parse(&format!("{head}{name} = {MISFIT}\n"), Path::new("/asked.toml")).ok()?;
    let errors = config::resolve(&raw, &facts()).err()?;
    errors.into_iter().find(|error| error.key == key).map(|error| error.kind)
}

fn facts() -> Facts {
    Facts { cores: 1, gpus: 0, cuda_worker: false, cwd: PathBuf::from("/") }
}

/// Returns the values of sections in which nothing is set.
fn defaults() -> Value {
    let mut defaults = serde_json::json!({
        "name": "run", "seed": 0, "train": TrainConfig::default(), "model": ModelConfig::default(), "cluster": ClusterConfig::default(),
    });
    // The reader takes true if train.lr is not set.
    defaults["train"]["rate_by_rows"] = Value::Null;
    defaults
}

fn default(key: &str, defaults: &Value) -> Option<String> {
    let found = defaults.pointer(&format!("/{}", key.replace('.', "/")))?;
    match found {
        Value::Null | Value::Object(_) => None,
        value => Some(value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_reader_with_type_bounds_and_default() {
        let keys = all();
        let of = |name: &str| keys.iter().find(|key| key.name == name).unwrap_or_else(|| panic!("no key {name}"));
        assert_eq!(of("train.epochs").expected, "a whole number from 0 to 10000000");
        assert_eq!(of("train.epochs").default.as_deref(), Some("0"));
        assert_eq!(of("train.lr").default.as_deref(), Some("0.001"));
        assert_eq!(of("train.deterministic").expected, "true or false");
        assert!(of("train.loss").expected.starts_with("one of: "));
        assert_eq!(of("data.windows.history").expected, "a whole number from 1 to 65536");
        assert!(of("cluster.policy").expected.contains("reform"));
        assert!(keys.len() > 90, "{} keys", keys.len());
    }

    #[test]
    fn every_key_is_described() {
        let missing: Vec<String> =
            all().into_iter().filter(|key| description(key).is_none()).map(|key| key.name).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let epochs = all().into_iter().find(|key| key.name == "train.epochs").unwrap();
        assert!(description(&epochs).unwrap().text.starts_with("passes over the training rows"));
        let history = all().into_iter().find(|key| key.name == "data.windows.history").unwrap();
        assert_eq!(description(&history).unwrap().default, "1");
    }
}
