//! What a pickle holds: objects in one arena, and questions about them that never run anything.
//!
//! **Invariant:** shared and cyclic objects cost nothing to keep; whoever walks them bounds depth and number of steps, and all that is
//! copied out of a tree is within a multiple of the pickle's own bytes, however often it mentions one object.

use super::mention::Mentions;
use std::cell::Cell;

/// Axes of a tensor; PyTorch's own limit.
const AXES_MAX: usize = 64;
/// Bytes that may be copied out of a pickle, for each of its own, and beside.
const COPIED_BYTES_PER_BYTE: usize = 64;
const COPIED_BYTES: usize = 1 << 20;

/// Index of a node in the arena.
pub(super) type TreeId = usize;

#[derive(Debug)]
pub(super) enum TreeNode<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits: kept apart, never used.
    Huge,
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Tuple(Vec<TreeId>),
    List(Vec<TreeId>),
    Dict(Vec<(TreeId, TreeId)>),
    Global(&'a str, &'a str),
    /// A class or function that is not on the list: module and name.
    Foreign(&'a str, &'a str),
    /// A text with escapes of Python 2, which are not resolved.
    Escaped,
    /// NEWOBJ or REDUCE: what was called or made, with which arguments, the state set by BUILD, the items and the elements it was given.
    Object {
        callee: TreeId,
        args: TreeId,
        state: Option<TreeId>,
        items: Vec<(TreeId, TreeId)>,
        elements: Vec<TreeId>,
    },
    Persistent(TreeId),
}

/// A pickle that was read.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    /// The pickle, and what follows it.
    bytes: &'a [u8],
    nodes: Vec<TreeNode<'a>>,
    pub(super) root: TreeId,
    /// One behind its last byte.
    pub(super) end: usize,
    /// Classes and functions that are not on the list.
    pub(super) mentions: Mentions,
    /// Bytes that may still be copied.
    left: Cell<usize>,
}

impl<'a> Tree<'a> {
    /// Of a pickle that begins with `bytes` and ends at `end`.
    pub(super) fn new(bytes: &'a [u8], end: usize, nodes: Vec<TreeNode<'a>>, root: TreeId, mentions: Mentions) -> Self {
        let left = end.saturating_mul(COPIED_BYTES_PER_BYTE).saturating_add(COPIED_BYTES);
        Self { bytes, nodes, root, end, mentions, left: Cell::new(left) }
    }

    /// Where bytes of a node are in the pickle.
    pub(super) fn offset(&self, part: &[u8]) -> Option<u64> {
        let from = (part.as_ptr() as usize).checked_sub(self.bytes.as_ptr() as usize)?;
        (from + part.len() <= self.bytes.len()).then_some(from as u64)
    }

    /// Module and name of the class of an object that is not on the list, and what is in it.
    pub(super) fn foreign(&self, id: TreeId) -> Option<(&'a str, &'a str)> {
        let named = |id: TreeId| match self.node(id) {
            TreeNode::Foreign(module, name) => Some((*module, *name)),
            _ => None,
        };
        let TreeNode::Object { callee, args, .. } = self.node(id) else { return named(id) };
        match self.node(*callee) {
            // `copyreg._reconstructor(cls, base, state)` makes an object of its first argument; so does `copyreg.__newobj__`.
            TreeNode::Global("copyreg" | "copy_reg", _) => named(*self.tuple(*args)?.first()?),
            // torch.save kept the source of a class beside it: ("module", class, file, source).
            TreeNode::Persistent(id) => named(*self.tuple(*id)?.get(1)?),
            _ => named(*callee),
        }
    }

    /// All persistent objects: storages, mostly.
    pub(super) fn persistent(&self) -> impl Iterator<Item = TreeId> {
        (0..self.nodes.len()).filter(|id| matches!(self.node(*id), TreeNode::Persistent(_)))
    }

    /// All objects that this function or class made.
    pub(super) fn made_by(&self, module: &'static str, name: &'static str) -> impl Iterator<Item = TreeId> {
        let is_made = move |id: &TreeId| match self.node(*id) {
            TreeNode::Object { callee, .. } => self.is_global(*callee, module, name),
            _ => false,
        };
        (0..self.nodes.len()).filter(is_made)
    }

    /// Takes what is to be copied from what may be.
    pub(super) fn spend(&self, bytes: usize) -> Option<()> {
        self.left.set(self.left.get().checked_sub(bytes)?);
        Some(())
    }

    pub(super) fn owned(&self, id: TreeId) -> Option<String> {
        let text = self.text(id)?;
        self.spend(text.len() + size_of::<String>())?;
        Some(text.to_owned())
    }

    pub(super) fn node(&self, id: TreeId) -> &TreeNode<'a> {
        self.nodes.get(id).unwrap_or(&TreeNode::None)
    }

    pub(super) fn text(&self, id: TreeId) -> Option<&'a str> {
        if let TreeNode::Text(text) = self.node(id) { Some(text) } else { None }
    }

    pub(super) fn int(&self, id: TreeId) -> Option<i64> {
        if let TreeNode::Int(int) = self.node(id) { Some(*int) } else { None }
    }

    pub(super) fn count(&self, id: TreeId) -> Option<u64> {
        self.int(id).and_then(|int| u64::try_from(int).ok())
    }

    pub(super) fn tuple(&self, id: TreeId) -> Option<&[TreeId]> {
        if let TreeNode::Tuple(items) = self.node(id) { Some(items) } else { None }
    }

    /// Items of a list or a tuple.
    pub(super) fn sequence(&self, id: TreeId) -> Option<&[TreeId]> {
        if let TreeNode::Tuple(items) | TreeNode::List(items) = self.node(id) { Some(items) } else { None }
    }

    pub(super) fn pairs(&self, id: TreeId) -> Option<&[(TreeId, TreeId)]> {
        match self.node(id) {
            TreeNode::Dict(items) => Some(items),
            TreeNode::Object { callee, items, .. }
                if ["OrderedDict", "defaultdict"].iter().any(|name| self.is_global(*callee, "collections", name)) =>
            {
                Some(items)
            }
            _ => None,
        }
    }

    pub(super) fn is_global(&self, id: TreeId, module: &str, name: &str) -> bool {
        matches!(self.node(id), TreeNode::Global(m, n) if *m == module && *n == name)
    }

    /// The name of an object's class or function, its arguments and its state.
    pub(super) fn object(&self, id: TreeId) -> Option<(&'a str, &[TreeId], Option<TreeId>)> {
        let TreeNode::Object { callee, args, state, .. } = self.node(id) else { return None };
        let TreeNode::Global(_, name) = self.node(*callee) else { return None };
        Some((name, self.tuple(*args)?, *state))
    }

    /// A field of an object: set by BUILD with a dictionary, or given as the `position`-th argument of the constructor.
    pub(super) fn field(&self, id: TreeId, name: &str, position: usize) -> Option<TreeId> {
        let (_, args, state) = self.object(id)?;
        let set = state.and_then(|state| self.entry(state, name));
        set.or_else(|| args.get(position).copied())
    }

    /// The entry of a dictionary under a text key.
    pub(super) fn entry(&self, id: TreeId, key: &str) -> Option<TreeId> {
        self.pairs(id)?.iter().find(|(k, _)| self.text(*k) == Some(key)).map(|(_, value)| *value)
    }

    /// `torch.Size((…))`, a bare tuple or a list of non-negative integers.
    pub(super) fn size(&self, id: TreeId) -> Option<Vec<u64>> {
        let items = match self.object(id) {
            Some(("Size", args, _)) => self.sequence(*args.first()?)?,
            Some(_) => return None,
            None => self.sequence(id)?,
        };
        if items.len() > AXES_MAX {
            return None;
        }
        self.spend((items.len() + 1) * size_of::<u64>())?;
        items.iter().map(|&item| self.count(item)).collect()
    }

    /// `_codecs.encode(text, "latin1")`: how protocol 2 writes bytes.
    pub(super) fn encoded(&self, id: TreeId) -> Option<Vec<u8>> {
        let (name, args, _) = self.object(id)?;
        let [text, codec] = args else { return None };
        if name != "encode" || self.text(*codec) != Some("latin1") {
            return None;
        }
        let text = self.text(*text)?;
        self.spend(text.len())?;
        text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect()
    }
}
