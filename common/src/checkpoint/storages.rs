//! Storages as a pickle describes them, and where their bytes are.

use super::{
    item_error::ItemError,
    tree::{Tree, TreeId, TreeNode},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) name: String,
    /// Where it is in the file.
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// 0: not computed by the writer.
    pub(super) crc32: u32,
}

/// Where the storages are that a pickle names by a key.
pub(super) trait Storages {
    fn payload(&self, key: &str) -> Result<Payload, ItemError>;
}

/// A storage as a pickle describes it.
pub(super) struct StorageSeen<'a> {
    pub(super) class: &'a str,
    pub(super) key: String,
    pub(super) numel: u64,
}

/// Reads ("storage", class, key, device, elements, …).
pub(super) fn read_storage<'a>(tree: &Tree<'a>, id: TreeId) -> Option<StorageSeen<'a>> {
    let TreeNode::Persistent(storage) = tree.node(id) else { return None };
    let [_, class, key, _, numel, ..] = tree.tuple(*storage)? else { return None };
    let TreeNode::Global(_, class) = tree.node(*class) else { return None };
    Some(StorageSeen { class, key: tree.owned(*key)?, numel: tree.count(*numel)? })
}
