//! Messages between the supervisor and the node agents of other nodes, as the membership service carries them. The
//! leader's own node agent is in the same thread: its messages are inputs in a queue, and nobody can tell the
//! difference.
//!
//! A message is a frame with the epoch in which it was sent, and its content.

use crate::rendezvous::{NodeId, Rendezvous, RendezvousInfo};
use enn_common::wire::{
    frame::{self, FrameBuffer},
    node_agent::Epoch,
};
use serde::{Serialize, de::DeserializeOwned};

/// Returns the epoch of a round of the membership service; no membership has the number 0.
pub(crate) fn epoch_of(plan: &RendezvousInfo) -> Epoch {
    Epoch { number: plan.round.saturating_add(1), leader: plan.leader }
}

/// Returns the round of the membership service that has this epoch.
pub(crate) fn round_of(epoch: Epoch) -> u64 {
    epoch.number.saturating_sub(1)
}

/// Sends a command to another node, or an event to the leader, which is on another node: `to` is `None` then. If it
/// cannot arrive, the node is lost, and the membership notifies.
pub(crate) fn send<T: Serialize>(rendezvous: &Rendezvous, to: Option<NodeId>, epoch: Epoch, message: &T) {
    match encode(epoch, message) {
        Ok(bytes) => rendezvous.send_message(to, bytes),
        Err(error) => tracing::error!(%error, "a message to another node has no encoding"),
    }
}

fn encode<T: Serialize>(epoch: Epoch, message: &T) -> Result<Vec<u8>, frame::FrameError> {
    let mut bytes = Vec::new();
    frame::encode(&(epoch, message), &mut bytes)?;
    Ok(bytes)
}

/// Returns the epoch and the message of a frame; `None`, with a line in the log, when it is none of this version.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<(Epoch, T)> {
    let mut buffer = FrameBuffer::new();
    buffer.extend(bytes);
    match buffer.decode() {
        Ok(Some(message)) if buffer.pending() == 0 => Some(message),
        Ok(_) => {
            tracing::warn!("a message of another node is cut or too long");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "a message of another node makes no sense");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::{
        id::WorkerId,
        wire::node_agent::{NodeCommand, NodeEvent},
    };

    #[test]
    fn a_message_carries_its_epoch_and_nothing_else_is_understood() {
        let command = NodeCommand::ReleaseSnapshot { worker: WorkerId(7), ticket: 3 };
        let epoch = Epoch { number: 9, leader: NodeId(3) };
        let mut bytes = encode(epoch, &command).unwrap();
        assert_eq!(decode(&bytes), Some((epoch, command)));
        assert_eq!(decode::<NodeCommand>(&bytes[..bytes.len() - 1]), None);
        bytes.push(0);
        assert_eq!(decode::<NodeCommand>(&bytes), None);
        assert_eq!(decode::<NodeCommand>(&[2, 0, 0, 0, 255, 255]), None);
        let event = NodeEvent::Progress(Vec::new());
        assert_eq!(decode(&encode(epoch, &event).unwrap()), Some((epoch, event)));
    }
}
