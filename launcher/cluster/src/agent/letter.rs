//! Words of heads and hands as letters that the rendezvous carries.

use crate::rendezvous::{NodeId, Rendezvous};
use enn_common::wire::frame::{self, FrameBuffer};
use serde::{Serialize, de::DeserializeOwned};

/// Sends a word to a node, or from a hand to its head. One that cannot arrive is a node lost, which the rendezvous tells.
pub(super) fn post<T: Serialize>(rendezvous: &Rendezvous, to: Option<NodeId>, word: &T) {
    let mut bytes = Vec::new();
    match frame::encode(word, &mut bytes) {
        Ok(()) => rendezvous.post(to, bytes),
        Err(error) => tracing::error!(%error, "a letter to another node has no encoding"),
    }
}

/// The word in a letter; `None`, with a line in the log, when it is none of this version.
pub(super) fn open<T: DeserializeOwned>(letter: &[u8]) -> Option<T> {
    let mut buffer = FrameBuffer::new();
    buffer.extend(letter);
    match buffer.decode() {
        Ok(Some(word)) => Some(word),
        Ok(None) => None,
        Err(error) => {
            tracing::warn!(%error, "a letter of another node makes no sense");
            None
        }
    }
}
