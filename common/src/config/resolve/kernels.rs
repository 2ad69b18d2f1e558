//! `[kernels]`: for an operation, the kernels in the order in which they are tried. Which operations and kernels there are
//! only the worker knows, which refuses other names when it starts.

use crate::config::{
    error::ConfigErrorKind,
    raw::{RawEntry, RawNode, RawValue},
    section::{Section, describe},
};
use std::collections::BTreeMap;

pub(super) fn resolve(root: &mut Section<'_>) -> BTreeMap<String, Vec<String>> {
    let entries = root.free("kernels");
    entries.iter().filter_map(|entry| Some((entry.key.clone(), order(root, entry)?))).collect()
}

/// One name, or a list of names.
fn order(root: &mut Section<'_>, entry: &RawEntry) -> Option<Vec<String>> {
    let key = format!("kernels.{}", entry.key);
    let nodes: &[RawNode] = match &entry.node.value {
        RawValue::Array(items) if items.is_empty() => {
            root.error(&key, entry.node.place.clone(), ConfigErrorKind::Empty("kernel"));
            return None;
        }
        RawValue::Array(items) => items,
        _ => std::slice::from_ref(&entry.node),
    };
    let mut names: Vec<String> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let kind = match &node.value {
            RawValue::Text(name) if !names.contains(name) => {
                names.push(name.clone());
                continue;
            }
            RawValue::Text(name) => ConfigErrorKind::Repeated(name.clone()),
            other => {
                let expected = "the name of a kernel, or a list of names".into();
                ConfigErrorKind::Type { found: describe(other), expected }
            }
        };
        root.error(&key, node.place.clone(), kind);
    }
    Some(names)
}
