//! The keys of a configuration: type and bounds as the reader of configurations declares them, defaults as it fills them in.

use enn_common::config::{
    key_list,
    model::ModelConfig,
    shape::{KeyShape, ValueShape},
    train::{ClusterConfig, TrainConfig},
};
use serde_json::{Value, json};

/// A key of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigKey {
    /// Name with the section, such as "train.epochs".
    pub(crate) name: String,
    /// Type and bounds, such as "a whole number from 0 to 10000000".
    pub(crate) expected: String,
    /// The default as TOML writes it; `None` where there is none, or where it depends on other keys.
    pub(crate) default: Option<String>,
    /// The list of sections of whose items it is a key.
    pub(crate) list: Option<String>,
}

/// Returns all keys but those of sections themselves, by section in the order in which the reader reads them.
pub(crate) fn all() -> Vec<ConfigKey> {
    let mut found: Vec<(String, Vec<KeyShape>)> = Vec::new();
    for key in key_list::keys().into_iter().filter(|key| key.shape != ValueShape::Section) {
        match found.iter_mut().find(|(name, _)| *name == key.path) {
            Some((_, shapes)) => shapes.push(key),
            None => found.push((key.path.clone(), vec![key])),
        }
    }
    let section = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let order: Vec<String> = found.iter().map(|(name, _)| section(name)).collect();
    found.sort_by_key(|(name, _)| order.iter().position(|known| *known == section(name)));
    let defaults = defaults();
    // Where a key has keys below it and is no section, these are the keys of the items of a list.
    let names: Vec<String> = found.iter().map(|(name, _)| name.clone()).collect();
    let list = |name: &str| name.rsplit_once('.').map(|(list, _)| list.to_owned()).filter(|list| names.contains(list));
    let key = |(name, shapes): (String, Vec<KeyShape>)| ConfigKey {
        expected: expected(&shapes),
        default: default(&name, &shapes, &defaults).map(|value| value.to_string()),
        list: list(&name),
        name,
    };
    found.into_iter().map(key).collect()
}

/// Says what a key takes that is read in one of these shapes.
fn expected(shapes: &[KeyShape]) -> String {
    let is_own = |key: &&KeyShape| matches!(key.shape, ValueShape::Other(_));
    let (own, common): (Vec<_>, Vec<_>) = shapes.iter().partition(is_own);
    // The code of a key's own says something only where the forms that it takes are not declared.
    let told = if common.is_empty() { own } else { common };
    told.iter().map(|key| key.shape.to_string()).collect::<Vec<_>>().join(", or ")
}

/// Returns the values of sections in which nothing is set.
fn defaults() -> Value {
    json!({ "name": "run", "train": TrainConfig::default(), "model": ModelConfig::default(), "cluster": ClusterConfig::default() })
}

fn default(name: &str, shapes: &[KeyShape], defaults: &Value) -> Option<Value> {
    if let [key] = shapes {
        match key.shape {
            _ if key.is_required => return None,
            ValueShape::Integer { default, .. } => return default.map(Value::from),
            ValueShape::Number { default, .. } => return default.map(Value::from),
            ValueShape::Truth(default) => return default.map(Value::from),
            _ => {}
        }
    }
    let filled_in = defaults.pointer(&format!("/{}", name.replace('.', "/"))).filter(|value| !value.is_null());
    let is_of_names = |value: &Value| {
        shapes.iter().all(|key| match (&key.shape, value) {
            // A name of an older version is not shown.
            (ValueShape::Name(names), Value::String(text)) => names.contains(text),
            _ => true,
        })
    };
    filled_in.cloned().filter(is_of_names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_reader_with_type_bounds_and_default() {
        let keys = all();
        let of = |name: &str| keys.iter().find(|key| key.name == name).unwrap_or_else(|| panic!("no key {name}"));
        let default = |name: &str| of(name).default.as_deref();
        assert_eq!(of("train.epochs").expected, "a whole number from 0 to 10000000");
        assert_eq!(default("train.epochs"), Some("0"));
        assert_eq!(default("train.lr"), Some("0.001"));
        assert_eq!(default("train.loss"), Some("\"huber\""));
        assert_eq!(default("model.mixer"), None, "its default has another name now");
        assert_eq!(default("model.by_rows"), None, "it depends on the sizes");
        assert_eq!(default("data.windows.history"), Some("1"));
        assert_eq!(default("data.windows.steps"), None, "it is required");
        assert_eq!(of("train.deterministic").expected, "true or false");
        assert_eq!(of("model.tasks.mode").list.as_deref(), Some("model.tasks"));
        assert_eq!((of("data.split.kind").list.as_deref(), default("train.poisoned_rows_max")), (None, None));
        assert!(of("train.loss").expected.starts_with("one of: "));
        assert_eq!(of("data.windows.history").expected, "a whole number from 1 to 65536");
        assert_eq!(of("data.windows.calendar").expected, "one of: day_of_year, weekday, hour, trend");
        assert_eq!(of("cluster.nproc_per_node").expected, "a whole number from 1 to 1024, or one of: auto, gpu, cpu");
        assert!(of("data.rows.features").expected.contains("column names"));
        assert_eq!(of("data.rows.features.kind").expected, "one of: number, category, index, labels, time");
        assert!(of("cluster.policy").expected.contains("reform"));
        assert!(keys.len() > 110, "{} keys", keys.len());
        let places: Vec<usize> = ["data.files", "data.windows.steps", "train.lr", "cluster.spares"]
            .iter()
            .map(|name| keys.iter().position(|key| key.name == *name).unwrap())
            .collect();
        assert!(places.is_sorted(), "{places:?}");
    }
}
