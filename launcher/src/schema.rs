//! The JSON schema of configurations: keys, types, bounds and defaults are those with which `resolve` reads them, descriptions those of the
//! pages.

use crate::{facts::Facts, pages::key_texts::KeyTexts};
use enn_common::{
    config::{
        key_list,
        model::ModelConfig,
        shape::{KeyShape, ValueShape},
        train::{ClusterConfig, TrainConfig},
    },
    fs::atomic,
};
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

const FILE: &str = "enn.schema.json";

/// Returns the schema as an indented JSON document.
pub(crate) fn text() -> String {
    let text = serde_json::to_string_pretty(&document()).unwrap_or_default();
    format!("{text}\n")
}

/// Returns the address of the schema in the user's cache, into which it is written; `None` if that cannot be.
pub(crate) fn address(facts: &Facts) -> Option<String> {
    let path = facts.cache_dir.join(FILE);
    let text = text();
    let is_there = std::fs::read(&path).is_ok_and(|found| found == text.as_bytes());
    if !is_there {
        std::fs::create_dir_all(&facts.cache_dir).ok()?;
        atomic::write(&path, text.as_bytes()).ok()?;
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+,:@~".contains(&byte);
    let encoded = path
        .to_str()?
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") });
    path.is_absolute().then(|| format!("file://{}", encoded.collect::<String>()))
}

/// Returns the schema.
pub(crate) fn document() -> Value {
    let schema = SchemaKeys::new();
    let mut root = schema.object("");
    root.insert("$schema".into(), json!("http://json-schema.org/draft-07/schema#"));
    root.insert("title".into(), json!("ENN configuration"));
    Value::Object(root)
}

struct SchemaKeys {
    /// Shapes by key path.
    shapes: BTreeMap<String, Vec<ValueShape>>,
    required: BTreeSet<String>,
    texts: KeyTexts,
    /// Values that texts and names have where they are not set.
    defaults: Value,
}

impl SchemaKeys {
    fn new() -> Self {
        let mut shapes: BTreeMap<String, Vec<ValueShape>> = BTreeMap::new();
        let mut required = BTreeSet::new();
        for KeyShape { path, shape, is_required } in key_list::keys() {
            if is_required {
                required.insert(path.clone());
            }
            shapes.entry(path).or_default().push(shape);
        }
        let defaults = json!({
            "train": serde_json::to_value(TrainConfig::default()).unwrap_or_default(),
            "model": serde_json::to_value(ModelConfig::default()).unwrap_or_default(),
            "cluster": serde_json::to_value(ClusterConfig::default()).unwrap_or_default(),
        });
        Self { shapes, required, texts: KeyTexts::read(), defaults }
    }

    /// Returns the schema of a section, or of the items of a list.
    fn object(&self, path: &str) -> Map<String, Value> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
        let mut properties = Map::new();
        let mut required = Vec::new();
        for key in self.shapes.keys() {
            let Some(name) = key.strip_prefix(&prefix).filter(|name| !name.contains('.')) else { continue };
            properties.insert(name.to_owned(), self.key(key));
            if self.required.contains(key) {
                required.push(name);
            }
        }
        let mut object = Map::new();
        object.insert("type".into(), json!("object"));
        object.insert("properties".into(), Value::Object(properties));
        object.insert("additionalProperties".into(), json!(false));
        if !required.is_empty() {
            object.insert("required".into(), json!(required));
        }
        if path == "data" {
            let one_of = |names: &[&str]| json!({ "oneOf": names.iter().map(|name| json!({ "required": [name] })).collect::<Vec<_>>() });
            object
                .insert("allOf".into(), json!([one_of(&["rows", "windows", "arrays"]), one_of(&["files", "sources"])]));
        }
        object
    }

    fn key(&self, path: &str) -> Value {
        let shapes = self.shapes.get(path).map_or(&[][..], Vec::as_slice);
        let mut forms: Vec<Map<String, Value>> = Vec::new();
        for form in shapes.iter().filter_map(|shape| self.form(path, shape)).chain(self.own_form(path)) {
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
        let mut key = match <[_; 1]>::try_from(forms) {
            Ok([form]) => form,
            Err(forms) if forms.is_empty() => Map::new(),
            Err(forms) => Map::from_iter([("anyOf".to_owned(), json!(forms))]),
        };
        if let Some(text) = self.texts.of(path) {
            key.insert("description".into(), json!(plain(&text.text)));
        }
        let pointer = format!("/{}", path.replace('.', "/"));
        if self.required.contains(path) {
            key.remove("default");
        }
        let names = self.names(path);
        // A name of an older version is not among the names.
        let is_of_names = |value: &&Value| {
            value.as_str().is_some_and(|text| names.is_empty() || names.iter().any(|name| name == text))
        };
        let default = self.defaults.pointer(&pointer).filter(is_of_names).filter(|_| !key.contains_key("anyOf"));
        if let Some(default) = default {
            key.insert("default".into(), default.clone());
        }
        Value::Object(key)
    }

    /// Returns the schema of one form of a key; `None` for those that `own_form` has.
    fn form(&self, path: &str, shape: &ValueShape) -> Option<Map<String, Value>> {
        let value = match shape {
            ValueShape::Section => return Some(self.object(path)),
            ValueShape::Other(_) | ValueShape::Free => return None,
            // The names of a list of names are those of its items.
            ValueShape::Name(_) if path == "data.windows.calendar" => return None,
            ValueShape::Integer { least, most, default } => {
                with_default(json!({ "type": "integer", "minimum": least, "maximum": most }), *default)
            }
            ValueShape::Number { low, high, default } => number(*low, *high, *default),
            ValueShape::Pair => json!({ "type": "array", "items": { "type": "number" }, "minItems": 2, "maxItems": 2 }),
            ValueShape::Numbers => json!({ "type": "array", "items": { "type": "number" } }),
            ValueShape::Integers => json!({ "type": "array", "items": { "type": "integer" } }),
            ValueShape::Truth(default) => with_default(json!({ "type": "boolean" }), *default),
            ValueShape::Text => json!({ "type": "string" }),
            ValueShape::Texts => {
                return Some(Map::from_iter([(
                    "anyOf".to_owned(),
                    json!([{ "type": "string" }, { "type": "array", "items": { "type": "string" } }]),
                )]));
            }
            ValueShape::Name(names) => json!({ "enum": names }),
        };
        value.as_object().cloned()
    }

    /// Returns the schema of a key that is read by code of its own.
    fn own_form(&self, path: &str) -> Option<Map<String, Value>> {
        let items = || Value::Object(self.object(path));
        let texts = || json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] });
        let value = match path {
            "data.rows.features" => {
                let one = json!({ "anyOf": [{ "type": "string" }, items()] });
                json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": one, "minItems": 1 }] })
            }
            "data.ranges" => {
                let pair = json!({ "type": "array", "items": { "type": "number" }, "minItems": 2, "maxItems": 2 });
                json!({ "anyOf": [{ "type": "object", "additionalProperties": pair }, { "type": "array", "items": items() }] })
            }
            "data.sources" => json!({ "type": "array", "items": items(), "minItems": 1 }),
            "model.tasks" => json!({ "type": "array", "items": items() }),
            "data.input_units" => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            "kernels" => json!({ "type": "object", "additionalProperties": texts() }),
            "data.windows.calendar" => {
                let name = json!({ "enum": self.names(path) });
                json!({ "anyOf": [name.clone(), { "type": "array", "items": name }] })
            }
            "train.cell_weights" => {
                let numbers = json!({ "type": "array", "items": { "type": "number", "minimum": 0 } });
                json!({ "anyOf": [numbers.clone(), { "type": "array", "items": numbers }] })
            }
            _ => return None,
        };
        value.as_object().cloned()
    }

    fn names(&self, path: &str) -> Vec<String> {
        let of = |shape: &ValueShape| if let ValueShape::Name(names) = shape { names.clone() } else { Vec::new() };
        self.shapes.get(path).into_iter().flatten().flat_map(of).collect()
    }
}

fn number(low: Bound<f64>, high: Bound<f64>, default: Option<f64>) -> Value {
    let mut value = json!({ "type": "number" });
    match low {
        Bound::Included(low) => value["minimum"] = json!(low),
        Bound::Excluded(low) => value["exclusiveMinimum"] = json!(low),
        Bound::Unbounded => {}
    }
    match high {
        Bound::Included(high) => value["maximum"] = json!(high),
        Bound::Excluded(high) => value["exclusiveMaximum"] = json!(high),
        Bound::Unbounded => {}
    }
    with_default(value, default)
}

fn with_default<T: Into<Value>>(mut value: Value, default: Option<T>) -> Value {
    if let Some(default) = default {
        value["default"] = default.into();
    }
    value
}

/// Returns a cell of a page as a sentence without links.
fn plain(cell: &str) -> String {
    let mut text = String::new();
    let mut rest = cell;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((shown, after)) = link.split_once("](").filter(|(shown, _)| !shown.contains(['[', ']'])) else {
            text += before;
            text.push('[');
            rest = link;
            continue;
        };
        text += before;
        text += shown;
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text += rest;
    let mut letters = text.trim_end_matches(',').chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    let sentence = format!("{first}{}", letters.as_str());
    if sentence.ends_with(['.', ':']) { sentence } else { format!("{sentence}.") }
}

#[cfg(test)]
mod schema_tests {
    use super::*;

    #[test]
    fn every_key_has_a_form() {
        let schema = SchemaKeys::new();
        for path in schema.shapes.keys() {
            let key = schema.key(path);
            let has_form = ["type", "enum", "anyOf"].iter().any(|word| key.get(word).is_some());
            assert!(has_form, "{path} has no form: {key}");
        }
    }

    #[test]
    fn the_file_of_the_schema_is_that_of_this_program() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/enn.schema.json");
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(found == text(), "docs/enn.schema.json is out of date: enn schema > docs/enn.schema.json");
    }

    #[test]
    fn bounds_defaults_and_names_are_those_of_the_reader() {
        let schema = document();
        let key = |path: &str| {
            schema.pointer(&format!("/properties/{}", path.replace('.', "/properties/"))).cloned().unwrap_or_default()
        };
        assert_eq!(
            (key("train.epochs")["minimum"].clone(), key("train.epochs")["default"].clone()),
            (json!(0), json!(0))
        );
        assert_eq!(key("model.dropout")["exclusiveMaximum"], json!(1.0));
        assert_eq!(key("train.loss")["default"], json!("huber"));
        assert!(key("train.loss")["enum"].as_array().is_some_and(|names| names.contains(&json!("quantile"))));
        assert_eq!(key("data.windows")["required"], json!(["entity", "steps", "target", "time"]));
        assert_eq!(schema["additionalProperties"], json!(false));
        assert!(key("cluster.nproc_per_node")["anyOf"].as_array().is_some_and(|forms| forms.len() == 2));
    }

    #[test]
    fn a_cell_of_a_page_is_a_sentence() {
        assert_eq!(plain("[which state each worker keeps](#strategies)"), "Which state each worker keeps.");
        assert_eq!(plain("`[low, high]`: a [range](DATA.md#units), or none"), "`[low, high]`: a range, or none.");
    }
}
