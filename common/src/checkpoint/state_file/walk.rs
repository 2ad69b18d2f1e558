//! Follows the containers of a pickle as DCP flattens them: dictionaries always, lists that hold tensors or dictionaries, and what is in
//! objects of other libraries.

use crate::checkpoint::{
    array,
    mention::{Mentions, is_dangerous},
    metadata::PathPart,
    storages::Storages,
    stored::{ItemError, StoredTensor, locate},
    tree::{Tree, TreeId, TreeNode},
    unpickle::UnpickleError,
    value::Value,
};
use std::{
    cell::Cell,
    collections::{BTreeMap, HashSet},
};

const DEPTH_MAX: usize = 64;
/// Tensors, values and containers in a file; shared ones count as often as they are met.
const LEAVES_MAX: usize = 1 << 20;
/// Objects of other libraries that are named; what is in the others is read all the same.
const FOREIGN_MAX: usize = 1 << 12;
/// Items of lists that are looked through for objects, in a file.
const LOOKS_MAX: usize = 1 << 26;
/// Lists in lists that are looked through for objects.
const NESTED_MAX: usize = 8;
/// Entries that are not read and named.
const REFUSED_MAX: usize = 1 << 14;
/// The name of a tensor that is saved by itself.
const ALONE: &str = "tensor";

#[derive(Debug, Default)]
pub(super) struct StateFileParts {
    pub(super) tensors: BTreeMap<String, StoredTensor>,
    pub(super) values: BTreeMap<String, Value>,
    pub(super) paths: BTreeMap<String, Vec<PathPart>>,
    pub(super) refused: Vec<(String, ItemError)>,
    /// Name and class of each object of another library.
    pub(super) foreign: Vec<(String, String)>,
    pub(super) mentions: Mentions,
}

/// On its way through a tree.
pub(super) struct Walk<'a> {
    storages: &'a dyn Storages,
    tree: &'a Tree<'a>,
    found: StateFileParts,
    left: usize,
    /// Items of lists that may still be looked through.
    looks: Cell<usize>,
    /// Objects of other libraries that were entered: they may hold each other.
    entered: HashSet<TreeId>,
}

impl<'a> Walk<'a> {
    /// All that can be read, and the names of what cannot.
    pub(super) fn over(tree: &'a Tree<'a>, storages: &'a dyn Storages) -> Result<StateFileParts, ItemError> {
        let looks = Cell::new(LOOKS_MAX);
        let mut walk =
            Walk { storages, tree, found: StateFileParts::default(), left: LEAVES_MAX, looks, entered: HashSet::new() };
        let mut path = Vec::new();
        if walk.is_tensor(tree.root) {
            path.push(PathPart::Key(ALONE.to_owned()));
        } else if !walk.is_container(tree.root) {
            return Err(UnpickleError::Unexpected { expected: "tensors, or dictionaries and lists of them" }.into());
        }
        walk.enter(tree.root, &mut path);
        if walk.left == 0 {
            walk.refuse(
                &[],
                ItemError::Unsupported { what: format!("a file of more than {LEAVES_MAX} entries: the rest") },
            );
        }
        Ok(walk.found)
    }

    fn is_tensor(&self, id: TreeId) -> bool {
        self.tree.object(id).is_some_and(|(name, ..)| name.starts_with("_rebuild_")) || array::is_array(self.tree, id)
    }

    fn is_container(&self, id: TreeId) -> bool {
        self.tree.pairs(id).is_some()
            || matches!(self.tree.node(id), TreeNode::List(_) | TreeNode::Tuple(_))
            || self.tree.foreign(id).is_some()
    }

    fn enter(&mut self, id: TreeId, path: &mut Vec<PathPart>) {
        let Some(left) = self.left.checked_sub(1) else { return };
        self.left = left;
        if path.len() > DEPTH_MAX {
            return self.refuse(path, UnpickleError::Unexpected { expected: "containers of bounded depth" }.into());
        }
        if let Some(keys) = self.keys(id) {
            return self.enter_all(keys, path);
        }
        if let Some((module, class)) = self.tree.foreign(id) {
            return self.enter_foreign(id, module, class, path);
        }
        let name = name(path);
        if self.found.paths.contains_key(&name) {
            return self.refuse(path, ItemError::Unsupported { what: "a second entry of this name".to_owned() });
        }
        let read = if array::is_array(self.tree, id) {
            array::array(self.tree, id).map(|stored| _ = self.found.tensors.insert(name.clone(), stored))
        } else if self.is_tensor(id) {
            locate(self.tree, id, self.storages).map(|stored| _ = self.found.tensors.insert(name.clone(), stored))
        } else {
            self.value(id).map(|value| _ = self.found.values.insert(name.clone(), value))
        };
        match read {
            Ok(()) => _ = self.found.paths.insert(name, path.clone()),
            Err(error) => self.refuse(path, error),
        }
    }

    fn enter_all(&mut self, keys: Vec<(PathPart, TreeId)>, path: &mut Vec<PathPart>) {
        for (part, value) in keys {
            path.push(part);
            self.enter(value, path);
            path.pop();
        }
    }

    /// Reads the content of an object of another library by the names it has there; the object itself is a name.
    fn enter_foreign(&mut self, id: TreeId, module: &str, class: &str, path: &mut Vec<PathPart>) {
        if !self.entered.insert(id) {
            return;
        }
        if self.found.foreign.len() < FOREIGN_MAX && !is_dangerous(module, class) {
            let class = format!("{module}.{class}").chars().take(160).collect();
            self.found.foreign.push((name(path), class));
        }
        let tree = self.tree;
        let TreeNode::Object { args, state, items, elements, .. } = tree.node(id) else { return };
        let mut keys: Vec<(PathPart, TreeId)> =
            items.iter().filter_map(|&(key, value)| Some((self.part(key)?, value))).collect();
        keys.extend(numbered(elements));
        for part in self.parts(*state) {
            keys.extend(self.keys(part).unwrap_or_default());
        }
        // Arguments of a call have no names: of those only what holds tensors is worth one.
        let given = tree.tuple(*args).unwrap_or_default();
        keys.extend(numbered(given).into_iter().filter(|(_, id)| self.holds_objects(*id, NESTED_MAX)));
        self.enter_all(keys, path);
    }

    /// The dictionaries of a state: itself, or those of a pair of attributes and slots.
    fn parts(&self, state: Option<TreeId>) -> Vec<TreeId> {
        let Some(state) = state else { return Vec::new() };
        match self.tree.node(state) {
            TreeNode::Tuple(parts) => parts.iter().copied().filter(|part| self.tree.pairs(*part).is_some()).collect(),
            _ => vec![state],
        }
    }

    /// A plain value, or why it is none.
    fn value(&self, id: TreeId) -> Result<Value, ItemError> {
        let found = self.tree.value(id);
        found.map_err(|error| self.kind(id).map_or_else(|| error.into(), |what| ItemError::Unsupported { what }))
    }

    /// Describes an object that is no plain value.
    fn kind(&self, id: TreeId) -> Option<String> {
        if self.tree.pairs(id).is_some() {
            // Were it not for its keys, it would have been followed.
            return Some("a dictionary of which a key is neither a text nor a whole number".to_owned());
        }
        match self.tree.node(id) {
            TreeNode::Huge => Some("a whole number of more than 64 bits".to_owned()),
            TreeNode::Escaped => Some("a text with escapes of Python 2".to_owned()),
            TreeNode::Persistent(_) => Some("a storage without a tensor".to_owned()),
            TreeNode::Global(module, name) => Some(format!("the class {module}.{name}")),
            _ => self.tree.object(id).map(|(name, ..)| format!("an object made by {name}")),
        }
    }

    fn refuse(&mut self, path: &[PathPart], error: ItemError) {
        self.found.refused.push((name(path), error));
        if self.found.refused.len() >= REFUSED_MAX {
            // Nothing more is entered.
            self.left = 0;
        }
    }

    fn part(&self, key: TreeId) -> Option<PathPart> {
        match self.tree.text(key) {
            Some(text) => Some(PathPart::Key(text.to_owned())),
            None => self.tree.int(key).map(PathPart::Number),
        }
    }

    /// Returns the content of a container that is followed.
    fn keys(&self, id: TreeId) -> Option<Vec<(PathPart, TreeId)>> {
        if let Some(pairs) = self.tree.pairs(id) {
            return pairs.iter().map(|&(key, value)| Some((self.part(key)?, value))).collect();
        }
        let (TreeNode::List(items) | TreeNode::Tuple(items)) = self.tree.node(id) else { return None };
        let is_deep = items.iter().any(|item| self.holds_objects(*item, NESTED_MAX));
        let is_plain = || matches!(self.tree.node(id), TreeNode::Tuple(_)) && self.tree.value(id).is_ok();
        (is_deep && !is_plain()).then(|| numbered(items))
    }

    /// Whether there may be a tensor in it, or an object of another library.
    fn holds_objects(&self, id: TreeId, depth: usize) -> bool {
        match self.tree.node(id) {
            TreeNode::Dict(_) | TreeNode::Object { .. } => true,
            TreeNode::List(items) | TreeNode::Tuple(items) if depth > 0 => {
                // A list may hold itself any number of times; what is not looked through is entered.
                let left = self.looks.get().saturating_sub(items.len());
                self.looks.set(left);
                left == 0 || items.iter().any(|item| self.holds_objects(*item, depth - 1))
            }
            _ => false,
        }
    }
}

fn numbered(items: &[TreeId]) -> Vec<(PathPart, TreeId)> {
    (0u64..).map(PathPart::Index).zip(items.iter().copied()).collect()
}

/// The keys from the outermost container on, with dots.
fn name(path: &[PathPart]) -> String {
    path.iter().map(ToString::to_string).collect::<Vec<_>>().join(".")
}
