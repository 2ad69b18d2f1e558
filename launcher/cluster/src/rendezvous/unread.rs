//! Letters that came and that nobody has read yet: how many bytes of each node's.

use enn_common::wire::node::NodeId;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Bytes of letters of one node that may wait to be read, with what each of them costs.
pub(super) const UNREAD_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };
/// What a letter costs beside its bytes, roughly.
const LETTER_COST: usize = 128;

/// Shared by the thread that hears the letters and the one that reads them.
#[derive(Debug, Clone, Default)]
pub(super) struct Unread(Arc<Mutex<HashMap<NodeId, usize>>>);

impl Unread {
    /// Counts a letter that came; false when too many wait already, and this one must not.
    pub(super) fn came(&self, from: NodeId, letter: &[u8]) -> bool {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = waiting.entry(from).or_default();
        if *bytes > UNREAD_BYTES_MAX {
            return false;
        }
        *bytes += letter.len() + LETTER_COST;
        true
    }

    /// It was read.
    pub(super) fn read(&self, from: NodeId, letter: &[u8]) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = waiting.get_mut(&from) {
            *bytes = bytes.saturating_sub(letter.len() + LETTER_COST);
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
    fn who_writes_too_much_is_found_and_nobody_else() {
        let unread = Unread::default();
        let large = vec![0; UNREAD_BYTES_MAX / 2];
        assert!((0..2).all(|_| unread.came(NodeId(1), &large)));
        assert!(!unread.came(NodeId(1), b"x") && unread.came(NodeId(2), b"x"));
        unread.read(NodeId(1), &large);
        assert!(unread.came(NodeId(1), b"x"));
        // Short ones are counted, too.
        let short = UNREAD_BYTES_MAX / LETTER_COST + 1;
        assert!((0..short).all(|_| unread.came(NodeId(3), b"")) && !unread.came(NodeId(3), b""));
        (0..short).for_each(|_| unread.read(NodeId(3), b""));
        assert!(!unread.0.lock().unwrap().contains_key(&NodeId(3)));
    }
}
