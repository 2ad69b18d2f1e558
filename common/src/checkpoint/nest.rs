//! Flat names become dictionaries and lists again.

use super::{metadata::PathPart, pickle::Pickler};
use std::{collections::BTreeMap, fmt};

/// A container, or the place of an entry in the caller's list.
pub(super) enum Nest {
    Dict(BTreeMap<PathPart, Self>),
    Leaf(usize),
}

impl Nest {
    /// Nests entries by their paths. A path that leads through another entry takes its place.
    pub(super) fn of<'a>(paths: impl Iterator<Item = &'a [PathPart]>) -> Self {
        let mut root = Self::Dict(BTreeMap::new());
        for (index, path) in paths.enumerate() {
            let mut at = &mut root;
            for part in path {
                if let Self::Leaf(_) = at {
                    *at = Self::Dict(BTreeMap::new());
                }
                let Self::Dict(items) = at else { break };
                at = items.entry(part.clone()).or_insert_with(|| Self::Dict(BTreeMap::new()));
            }
            *at = Self::Leaf(index);
        }
        root
    }

    /// Writes the containers; `leaf` writes the entries.
    pub(super) fn pickle(&self, out: &mut Pickler, leaf: &mut dyn FnMut(&mut Pickler, usize)) {
        let items = match self {
            Self::Leaf(index) => return leaf(out, *index),
            Self::Dict(items) => items,
        };
        // A list of which a part was left out keeps its numbers as keys.
        let list = items.keys().zip(0u64..).all(|(part, place)| *part == PathPart::Index(place)) && !items.is_empty();
        if list {
            return out.list(|out| items.values().for_each(|item| item.pickle(out, leaf)));
        }
        out.dict(|out| {
            for (part, item) in items {
                match part {
                    PathPart::Key(key) => out.text(key),
                    PathPart::Number(number) => out.int(*number),
                    PathPart::Index(index) => out.count(*index),
                }
                item.pickle(out, leaf);
            }
        });
    }
}

impl fmt::Display for PathPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => f.write_str(key),
            Self::Number(number) => write!(f, "{number}"),
            Self::Index(index) => write!(f, "{index}"),
        }
    }
}
