//! A run's configuration as a list of keys and values, as the report, comparisons and exports show it.

use serde_json::Value;
use std::collections::BTreeSet;

/// Returns the keys of run.json with dotted names, in the order of the file. Keys without a value are left out.
pub fn keys(config: &Value) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    flatten("", config, &mut pairs);
    pairs
}

/// Appends nested tables as dotted names. A list of plain values is one value. The items of a list of tables are named by their column
/// or name where all of them have one, so that an item that is added does not rename the others.
pub fn flatten(path: &str, value: &Value, pairs: &mut Vec<(String, String)>) {
    match value {
        Value::Null => {}
        Value::Object(inner) => {
            for (key, value) in inner {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, pairs);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let names = item_names(items);
            for (index, item) in items.iter().enumerate() {
                let name = names.as_ref().map_or_else(|| index.to_string(), |names| names[index].to_owned());
                flatten(&format!("{path}[{name}]"), item, pairs);
            }
        }
        Value::Array(items) => pairs.push((path.to_owned(), items.iter().map(plain).collect::<Vec<_>>().join(", "))),
        other => pairs.push((path.to_owned(), plain(other))),
    }
}

/// Returns the distinct names of all items; `None` where one has no name or two have the same.
fn item_names(items: &[Value]) -> Option<Vec<&str>> {
    let names: Vec<&str> = items.iter().map(item_name).collect::<Option<_>>()?;
    let distinct: BTreeSet<&str> = names.iter().copied().collect();
    (distinct.len() == names.len()).then_some(names)
}

fn item_name(item: &Value) -> Option<&str> {
    ["column", "name"].iter().find_map(|key| item.get(*key)?.as_str())
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_dotted_and_items_are_named() {
        let config = json!({
            "seed": 3, "parent": null, "data": {"files": ["a.csv", "b.csv"], "features": [{"column": "wind", "form": "number"}]},
            "tasks": [{"kind": 1}, {"kind": 2}],
        });
        let found = keys(&config);
        let found: Vec<_> = found.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let expected = [
            "data.features[wind].column=wind",
            "data.features[wind].form=number",
            "data.files=a.csv, b.csv",
            "seed=3",
            "tasks[0].kind=1",
            "tasks[1].kind=2",
        ];
        let mut sorted = found.clone();
        sorted.sort();
        assert_eq!(sorted, expected);
    }
}
