//! The JSON schema of configurations: keys, types, bounds and defaults are those with which `resolve` reads them, descriptions those of the
//! pages.

use crate::facts::Facts;
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
/// Pages with tables of keys, and the section to which keys without one belong at the beginning.
const PAGES: [(&str, &str); 3] = [
    (include_str!("../DATA.md"), "data"),
    (include_str!("../TRAINING.md"), "train"),
    (include_str!("../FAULTS.md"), "cluster"),
];
/// Headings below which keys belong to a section of their own.
const HEADINGS: [(&str, &str); 4] = [
    ("Rows", "data.rows"),
    ("Windows", "data.windows"),
    ("Arrays", "data.arrays"),
    ("Training, validation, test", "data.split"),
];
/// Descriptions of keys that pages explain in sentences, or in a row about something else as well.
const SENTENCES: &[(&str, &str)] = &[
    ("cluster", "Workers, and what happens when they fail."),
    ("data", "The data, and how they become samples."),
    ("data.arrays", "Samples from arrays that have the right shape already."),
    ("data.ranges.column", "Column whose values have a valid range."),
    ("data.ranges.high", "Largest valid value."),
    ("data.ranges.low", "Smallest valid value."),
    ("data.rows.features.column", "Name of the column."),
    ("data.rows.features.empty", "What an empty cell of labels means: \"none\" of them, or a \"missing\" value."),
    (
        "data.rows.features.encoding",
        "How a category or an index is read: by a learned table (\"embedding\"), or as one column for each (\"one_hot\").",
    ),
    ("data.rows.features.kind", "What the column holds. Without it: a number."),
    ("data.rows.features.offset", "Smallest integer of an index."),
    ("data.rows.features.outside", "What an integer outside the range of an index is: unknown, or the nearest one."),
    ("data.rows.features.rows", "How many integers an index has, from `offset` on."),
    ("data.rows.features.separator", "The character between labels."),
    ("data.sources.files", "Files of the source: one path or a list."),
    ("data.sources.name", "Name of the source in reports."),
    ("data.sources.weight", "Share of an epoch, relative to the other sources' weights; for all sources or for none."),
    ("data.split", "Which samples are for training, validation and test."),
    ("data.windows", "Samples from a long table of entities and times: past windows in, the next window out."),
    ("data.rows", "Samples from a table: one row is one sample."),
    ("data.input_units", "Units of numeric inputs, by column."),
    ("data.mask", "Which target cells are used."),
    ("data.mask_value", "The number in a target that means \"missing\", with mask = \"value\"."),
    ("data.units", "Unit of the targets, for reports."),
    ("data.weight", "Column with the weight of each row."),
    ("kernels", "For an operation, the kernels in the order in which they are tried."),
    ("model", "The model. Without any size its sizes follow from the number of training rows."),
    ("model.tasks.depth", "Blocks of a template."),
    ("model.tasks.mixer", "Layer that mixes the tokens of a template."),
    (
        "model.tasks.mode",
        "Whether the tokens of a template attend to all (\"spatial\") or to earlier ones (\"temporal\").",
    ),
    ("model.tasks.model", "A module of your own worker that follows the blocks."),
    ("model.tasks.name", "Name of the task, which is part of the names of its parameters."),
    ("model.tasks.parent", "The sub-fuser that joins this task."),
    ("model.tasks.reduction", "Makes the task a sub-fuser, and says how it joins its children."),
    ("model.tasks.tokens", "Tokens of a template."),
    ("model.tasks.weight", "Share of the attention among the tasks of the same parent."),
    ("name", "Name of the runs."),
    ("seed", "Seed of everything that is random."),
    ("model.d_model", "Width of a token; without any size the sizes follow from the number of training rows."),
    ("model.heads", "Number of heads, which must divide the width."),
    ("train", "Optimizer, schedule, loss, checkpoints."),
    ("train.batch", "Rows of one step over all workers; 0: by the number of training rows."),
    ("train.degrees_of_freedom", "Degrees of freedom of Student's t distribution."),
    ("train.epochs", "Passes over the training rows; 0: by their number."),
    ("train.huber_delta", "Error, in standard deviations of the targets, from which on it counts linearly."),
    ("train.levels", "Levels of the predicted quantiles, rising, with 0.5 among them."),
    (
        "train.loss",
        "What is predicted and minimised: a number (huber, mse), quantiles, a distribution (gaussian, crps, student_t), or the probabilities of classes (cross_entropy).",
    ),
    ("train.lr", "Peak learning rate; without it, it follows from the number of training rows."),
    ("train.step_memory_mb", "Memory that the activations of a step may take, in MB; 0: 90 % of what is free."),
    ("train.strategy", "Which state of training each worker keeps."),
];

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
    descriptions: BTreeMap<String, String>,
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
        let mut descriptions: BTreeMap<String, String> = BTreeMap::new();
        for (page, section) in PAGES {
            for (key, text) in rows(page, section) {
                if shapes.contains_key(&key) {
                    descriptions.entry(key).or_insert(text);
                }
            }
        }
        descriptions.extend(SENTENCES.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())));
        let defaults = json!({
            "train": serde_json::to_value(TrainConfig::default()).unwrap_or_default(),
            "model": serde_json::to_value(ModelConfig::default()).unwrap_or_default(),
            "cluster": serde_json::to_value(ClusterConfig::default()).unwrap_or_default(),
        });
        Self { shapes, required, descriptions, defaults }
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
        if let Some(text) = self.descriptions.get(path) {
            key.insert("description".into(), json!(text));
        }
        let pointer = format!("/{}", path.replace('.', "/"));
        if self.required.contains(path) {
            key.remove("default");
        }
        let default = self.defaults.pointer(&pointer).filter(|value| value.is_string() && !key.contains_key("anyOf"));
        if let Some(default) = default {
            key.insert("default".into(), default.clone());
        }
        Value::Object(key)
    }

    /// Returns the schema of one form of a key; `None` for those that `own_form` has.
    fn form(&self, path: &str, shape: &ValueShape) -> Option<Map<String, Value>> {
        let value = match shape {
            ValueShape::Section => return Some(self.object(path)),
            ValueShape::Other | ValueShape::Free => return None,
            // The names of a list of names are those of its items.
            ValueShape::Name(_) if path == "data.windows.calendar" => return None,
            ValueShape::Integer { least, most, default } => {
                let mut value = json!({ "type": "integer", "minimum": least, "maximum": most });
                value["default"] = json!(default);
                value
            }
            ValueShape::Number { low, high, default } => number(*low, *high, *default),
            ValueShape::Pair => json!({ "type": "array", "items": { "type": "number" }, "minItems": 2, "maxItems": 2 }),
            ValueShape::Numbers => json!({ "type": "array", "items": { "type": "number" } }),
            ValueShape::Integers => json!({ "type": "array", "items": { "type": "integer" } }),
            ValueShape::Truth(default) => json!({ "type": "boolean", "default": default }),
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
    if let Some(default) = default {
        value["default"] = json!(default);
    }
    value
}

/// Returns keys and their descriptions from the tables of a page.
fn rows(page: &str, section: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut section = section.to_owned();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix('#').map(|rest| rest.trim_start_matches('#').trim()) {
            let own = HEADINGS.iter().find(|(heading, _)| *heading == title);
            section = own
                .map_or_else(|| section.split('.').next().unwrap_or_default().to_owned(), |(_, own)| (*own).to_owned());
        }
        let Some(row) = line.strip_prefix('|') else { continue };
        let cells: Vec<&str> =
            row.trim_end().trim_end_matches('|').split(" | ").map(|cell| cell.trim_start_matches('|').trim()).collect();
        let (Some(first), Some(last)) = (cells.first(), cells.last()) else { continue };
        if cells.len() < 2 || last.is_empty() {
            continue;
        }
        // The table of flags has the key of a flag in its second cell.
        let named = if first.is_empty() || first.contains("--") { cells.get(1).unwrap_or(first) } else { first };
        for key in named.split('`').skip(1).step_by(2) {
            let is_path = key.contains('.');
            found.push((if is_path { key.to_owned() } else { format!("{section}.{key}") }, plain(last)));
        }
    }
    found
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
    fn every_key_has_a_form_and_a_description() {
        let schema = SchemaKeys::new();
        for path in schema.shapes.keys() {
            assert!(schema.descriptions.contains_key(path), "{path} has no description: add a row to its page");
            let key = schema.key(path);
            let has_form = ["type", "enum", "anyOf"].iter().any(|word| key.get(word).is_some());
            assert!(has_form, "{path} has no form: {key}");
        }
        for (path, _) in SENTENCES {
            assert!(schema.shapes.contains_key(*path), "{path} is no key");
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
        let page = "## Rows\n| key | |\n|---|---|\n| `features` | input columns |\n| `train.epochs`, `train.batch` | 0 | passes; rows |\n";
        let found = rows(page, "data");
        assert!(found.contains(&("data.rows.features".into(), "Input columns.".into())), "{found:?}");
        assert!(found.contains(&("train.batch".into(), "Passes; rows.".into())), "{found:?}");
    }
}
