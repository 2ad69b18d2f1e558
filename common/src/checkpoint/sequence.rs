//! What `torch.save` wrote before PyTorch 1.6, and writes still where it is asked to: five pickles and the storages behind them.
//!
//! ```text
//! magic number · protocol version · system · the object · keys of its storages · for each key: elements (u64), bytes
//! ```

use super::{
    element::{Element, UNTYPED},
    item_error::ItemError,
    mention::Mentions,
    storages::{Payload, StorageSeen, Storages, read_storage},
    torch::FILE_GLOBALS,
    tree::{Tree, TreeId, TreeNode},
    unpickle::{UnpickleError, unpickle_any},
};
use std::collections::BTreeMap;

/// The magic number, as its pickle holds it.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// The magic number is within so many bytes.
const MAGIC_BYTES_MAX: usize = 32;
const PROTOCOL: i64 = 1001;
/// Bytes before each storage: the number of its elements.
const COUNT_BYTES: u64 = 8;
/// Storages inside storages that are followed.
const NESTED_MAX: usize = 4;

/// Whether a file begins like that.
pub(super) fn begins(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(MAGIC_BYTES_MAX)];
    head.windows(MAGIC.len()).any(|window| window == MAGIC)
}

/// The pickles of such a file.
pub(super) struct Sequence<'a> {
    pub(super) tree: Tree<'a>,
    keys: Vec<String>,
    /// Where the first storage begins.
    data_at: u64,
}

impl<'a> Sequence<'a> {
    /// Reads the pickles at the beginning of `bytes`, which may be a part of the file.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, ItemError> {
        let mut at = 0;
        let mut next = || -> Result<Tree<'a>, ItemError> {
            let tree = unpickle_any(&bytes[at..], FILE_GLOBALS)?;
            at += tree.end;
            Ok(tree)
        };
        let _magic = next()?;
        let version = next()?;
        if version.int(version.root) != Some(PROTOCOL) {
            return Err(ItemError::Unsupported { what: "of a version of torch.save that is not known".into() });
        }
        let _system = next()?;
        let tree = next()?;
        let listed = next()?;
        let missing = || UnpickleError::Unexpected { expected: "the keys of its storages" };
        let keys = listed.sequence(listed.root).ok_or_else(missing)?;
        let keys: Option<Vec<String>> = keys.iter().map(|key| listed.owned(*key)).collect();
        Ok(Self { tree, keys: keys.ok_or_else(missing)?, data_at: at as u64 })
    }

    /// The storages, each where it must be when all before it are whole.
    pub(super) fn storages(&self, file_bytes: u64) -> Placed {
        let mut of_key = BTreeMap::new();
        for id in self.tree.persistent() {
            if let Some(StorageSeen { class, key, numel }) = read_storage(&self.tree, id) {
                let width = if class == UNTYPED { Some(1) } else { Element::of_storage(class).map(Element::bytes) };
                of_key.entry(key).or_insert(width.and_then(|width| numel.checked_mul(width)));
            }
        }
        let mut placed = Placed { found: BTreeMap::new(), file_bytes };
        let mut at = self.data_at;
        for key in &self.keys {
            // Behind a storage of which the size is not known nothing can be found.
            let Some(Some(bytes)) = of_key.get(key) else { break };
            let Some(begin) = at.checked_add(COUNT_BYTES) else { break };
            let Some(end) = begin.checked_add(*bytes) else { break };
            placed.found.insert(key.clone(), (begin, *bytes));
            at = end;
        }
        placed
    }
}

pub(super) struct Placed {
    found: BTreeMap<String, (u64, u64)>,
    file_bytes: u64,
}

impl Storages for Placed {
    fn payload(&self, key: &str) -> Result<Payload, ItemError> {
        let name = format!("storage {}", key.escape_debug());
        let Some(&(at, bytes)) = self.found.get(key) else { return Err(ItemError::Record { name }) };
        if at + bytes > self.file_bytes {
            return Err(ItemError::Cut);
        }
        Ok(Payload { name, at, bytes, crc32: 0 })
    }
}

/// A pickle by itself has its storages inside.
pub(super) struct Nowhere;

impl Storages for Nowhere {
    fn payload(&self, key: &str) -> Result<Payload, ItemError> {
        Err(ItemError::Record { name: format!("storage {}", key.escape_debug()) })
    }
}

/// The bytes that `torch.storage._load_from_bytes(bytes)` is given: a file of its own, with one storage.
fn file_inside<'a>(tree: &Tree<'a>, id: TreeId) -> Option<&'a [u8]> {
    let TreeNode::Object { callee, args, .. } = tree.node(id) else { return None };
    if !tree.is_global(*callee, "torch.storage", "_load_from_bytes") {
        return None;
    }
    match tree.node(*tree.tuple(*args)?.first()?) {
        TreeNode::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

/// A storage inside the pickle of `tree`, and where its bytes are there.
pub(super) fn inside<'a>(tree: &Tree<'a>, id: TreeId) -> Option<(StorageSeen<'a>, Payload)> {
    let file = file_inside(tree, id)?;
    let found = Sequence::read(file).ok()?;
    let seen = read_storage(&found.tree, found.tree.root)?;
    let mut payload = found.storages(file.len() as u64).payload(&seen.key).ok()?;
    payload.at += tree.offset(file)?;
    Some((seen, payload))
}

/// Adds what the files inside a pickle mention: Python would load them too.
pub(super) fn mentioned_inside(tree: &Tree<'_>, mentions: &mut Mentions) {
    follow(tree, mentions, NESTED_MAX);
}

fn follow(tree: &Tree<'_>, mentions: &mut Mentions, depth: usize) {
    mentions.extend(&tree.mentions);
    let Some(depth) = depth.checked_sub(1) else { return };
    for id in tree.made_by("torch.storage", "_load_from_bytes") {
        let Some(file) = file_inside(tree, id) else { continue };
        let mut at = 0;
        // Each pickle of it, whatever the file is.
        while let Ok(inner) = unpickle_any(&file[at..], FILE_GLOBALS) {
            at += inner.end;
            follow(&inner, mentions, depth);
            if at >= file.len() {
                break;
            }
        }
    }
}
