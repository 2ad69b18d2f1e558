//! The list of all keys of a configuration, made by reading configurations that have everything.

use super::{
    facts::Facts,
    raw::RawConfig,
    resolve::resolve,
    shape::{KeyShape, Notes},
};
use std::path::Path;

/// Configurations that together have every section, list and form, so that all keys are read.
const EVERYTHING: [&str; 3] = [
    "[data]\nfiles = \"a.csv\"\nranges = [{}]\n[data.rows]\nfeatures = [{}]\n[data.split]\n[train]\n\
     [model]\ntasks = [{}]\n[cluster]\nnproc_per_node = 1\n",
    "[data]\nsources = [{}]\n[data.windows]\ncalendar = [\"hour\"]\n[cluster]\nnproc_per_node = \"auto\"\n",
    "[data.arrays]\n",
];

/// Returns the shapes of all keys that a configuration may have, in the order in which they are read.
#[must_use]
pub fn keys() -> Vec<KeyShape> {
    let facts = Facts { cores: 1, gpus: 0, cuda_worker: false, cwd: "/".into() };
    let notes = Notes::default();
    for text in EVERYTHING {
        if let Ok(mut raw) = RawConfig::parse(text, Path::new("everything.toml")) {
            raw.notes = Some(notes.clone());
            // The values are examples, and some are refused; the keys are read nevertheless.
            let _refused = resolve(&raw, &facts);
        }
    }
    let mut keys: Vec<KeyShape> = Vec::new();
    for key in notes.take() {
        match keys.iter_mut().find(|known| known.path == key.path && known.shape == key.shape) {
            Some(known) => known.is_required |= key.is_required,
            None => keys.push(key),
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::shape::ValueShape;
    use std::ops::Bound;

    #[test]
    fn keys_have_the_shapes_in_which_they_are_read() {
        let keys = keys();
        let of = |path: &str| keys.iter().filter(|key| key.path == path).map(|key| &key.shape).collect::<Vec<_>>();
        assert_eq!(of("train.epochs"), [&ValueShape::Integer { least: 0, most: 10_000_000, default: Some(0) }]);
        assert_eq!(
            of("train.ema"),
            [&ValueShape::Number { low: Bound::Included(0.0), high: Bound::Excluded(1.0), default: Some(0.98) }]
        );
        assert_eq!(of("train.deterministic"), [&ValueShape::Truth(Some(false))]);
        assert!(
            of("train.loss")
                .iter()
                .any(|shape| matches!(shape, ValueShape::Name(names) if names.contains(&"huber".into())))
        );
        assert_eq!(of("data.rows.features.column"), [&ValueShape::Text]);
        assert_eq!(of("cluster.nproc_per_node").len(), 3);
        for path in [
            "data.windows.steps",
            "data.arrays.x",
            "data.split.kind",
            "data.sources.name",
            "model.tasks.mode",
            "data.ranges.low",
        ] {
            assert!(!of(path).is_empty(), "{path}");
        }
        let is_required = |path: &str| keys.iter().any(|key| key.path == path && key.is_required);
        assert!(is_required("data.windows.entity") && is_required("data.rows.targets") && !is_required("train.lr"));
    }
}
