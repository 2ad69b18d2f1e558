//! `[kernels]`: for an operation, the kernels in the order in which they are tried. Which operations and kernels there are
//! only the worker knows, which refuses other names when it starts.

use crate::config::{
    error::ConfigErrorKind,
    raw::{RawEntry, RawValue},
    section::Section,
    shape::ValueShape,
};
use std::collections::BTreeMap;

pub(super) fn resolve(root: &mut Section<'_>) -> BTreeMap<String, Vec<String>> {
    let entries = root.free("kernels");
    entries.iter().filter_map(|entry| Some((entry.key.clone(), order(root, entry)?))).collect()
}

/// One name, or a list of names.
fn order(root: &mut Section<'_>, entry: &RawEntry) -> Option<Vec<String>> {
    let key = format!("kernels.{}", entry.key);
    let nodes = entry.node.items();
    if nodes.is_empty() {
        root.error(&key, entry.node.place.clone(), ConfigErrorKind::Empty("kernel"));
        return None;
    }
    let mut names: Vec<String> = Vec::with_capacity(nodes.len());
    for node in nodes {
        match &node.value {
            RawValue::Text(name) if !names.contains(name) => names.push(name.clone()),
            RawValue::Text(name) => root.error(&key, node.place.clone(), ConfigErrorKind::Repeated(name.clone())),
            _ => root.wrong(&key, node, &ValueShape::Other("the name of a kernel, or a list of names")),
        }
    }
    Some(names)
}
