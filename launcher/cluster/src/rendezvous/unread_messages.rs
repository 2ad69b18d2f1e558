//! Messages that arrived and were not read: the number of their bytes for each node.

use enn_common::wire::node::NodeId;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Limit on the bytes of one node's messages that wait, with the cost of each message.
pub(super) const UNREAD_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };
/// Memory of a message beside its bytes, roughly.
const MESSAGE_COST: usize = 128;

/// Bytes that wait, shared by the thread that receives the messages and the one that reads them.
#[derive(Debug, Clone, Default)]
pub(super) struct UnreadMessages(Arc<Mutex<HashMap<NodeId, usize>>>);

impl UnreadMessages {
    /// Counts a message that arrived. Returns false if too many wait already, so that it must be dropped.
    pub(super) fn add(&self, from: NodeId, message: &[u8]) -> bool {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = waiting.entry(from).or_default();
        if *bytes > UNREAD_BYTES_MAX {
            return false;
        }
        *bytes += message.len() + MESSAGE_COST;
        true
    }

    /// A message was read.
    pub(super) fn remove(&self, from: NodeId, message: &[u8]) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = waiting.get_mut(&from) {
            *bytes = bytes.saturating_sub(message.len() + MESSAGE_COST);
            if *bytes == 0 {
                waiting.remove(&from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_writes_too_much_is_found() {
        let unread = UnreadMessages::default();
        let large = vec![0; UNREAD_BYTES_MAX / 2];
        assert!((0..2).all(|_| unread.add(NodeId(1), &large)));
        assert!(!unread.add(NodeId(1), b"x") && unread.add(NodeId(2), b"x"));
        unread.remove(NodeId(1), &large);
        assert!(unread.add(NodeId(1), b"x"));
        // Short ones are counted, too.
        let short = UNREAD_BYTES_MAX / MESSAGE_COST + 1;
        assert!((0..short).all(|_| unread.add(NodeId(3), b"")) && !unread.add(NodeId(3), b""));
        (0..short).for_each(|_| unread.remove(NodeId(3), b""));
        assert!(!unread.0.lock().unwrap().contains_key(&NodeId(3)));
    }
}
