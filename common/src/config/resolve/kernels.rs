//! `[kernels]`: for an operation, the kernels in the order in which they are tried. Which operations and kernels there are
//! only the worker knows, which refuses other names when it starts.

use crate::config::{
    error::ConfigErrorKind,
    raw::{Entry, Node, Value},
    section::{Section, describe},
};
use std::collections::BTreeMap;

pub(super) fn resolve(root: &mut Section<'_>) -> BTreeMap<String, Vec<String>> {
    let entries = root.free("kernels");
    entries.iter().filter_map(|entry| Some((entry.key.clone(), order(root, entry)?))).collect()
}

/// One name, or a list of names.
fn order(root: &mut Section<'_>, entry: &Entry) -> Option<Vec<String>> {
    let key = format!("kernels.{}", entry.key);
    let nodes: &[Node] = match &entry.node.value {
        Value::Array(items) if items.is_empty() => {
            root.error(&key, entry.node.place.clone(), ConfigErrorKind::Empty("kernel"));
            return None;
        }
        Value::Array(items) => items,
        _ => std::slice::from_ref(&entry.node),
    };
    let mut names: Vec<String> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let kind = match &node.value {
            Value::Text(name) if !names.contains(name) => {
                names.push(name.clone());
                continue;
            }
            Value::Text(name) => ConfigErrorKind::Repeated(name.clone()),
            other => {
                let expected = "the name of a kernel, or a list of names".into();
                ConfigErrorKind::Type { found: describe(other), expected }
            }
        };
        root.error(&key, node.place.clone(), kind);
    }
    Some(names)
}
