//! Where every item of a shard lies in its file, before a byte of it is known: checksums do not change lengths.
//!
//! **Invariant:** the same boxes in the same order give the same layout in every process.

use super::{
    boxes::{Region, volume},
    item,
    shard::{NAME_BYTES_MAX, ShardError},
    table::TensorDType,
};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// A box of a tensor that is an item of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxOf {
    pub fqn: String,
    pub dtype: TensorDType,
    /// Shape of the whole tensor.
    pub global: Vec<u64>,
    pub offsets: Vec<u64>,
    pub sizes: Vec<u64>,
}

/// An item's place in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub at: u64,
    pub length: u64,
    /// Where its elements begin in the file.
    pub payload_at: u64,
    /// Bytes of its elements.
    pub payload: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardLayout {
    /// Items in file order.
    pub boxes: Vec<BoxOf>,
    pub spans: Vec<Span>,
    pub bytes: u64,
}

impl BoxOf {
    /// Bytes of the elements; `None` when the box does not lie in the shape or they do not fit 64 bits.
    fn payload(&self) -> Option<u64> {
        let region = Region { offsets: self.offsets.clone(), sizes: self.sizes.clone() };
        volume(&self.sizes)?.checked_mul(self.dtype.bytes()).filter(|_| region.lies_in(&self.global))
    }
}

impl ShardLayout {
    /// Puts the boxes behind each other.
    ///
    /// # Errors
    /// When a box does not lie in its tensor, has a name beyond the limit, or comes twice.
    pub fn of(boxes: Vec<BoxOf>) -> Result<Self, ShardError> {
        let mut spans = Vec::with_capacity(boxes.len());
        let mut seen = HashSet::with_capacity(boxes.len());
        let mut at = 0u64;
        for part in &boxes {
            if part.fqn.len() > NAME_BYTES_MAX {
                let fqn = part.fqn.chars().take(40).collect();
                let found = part.fqn.len();
                return Err(ShardError::TooLong { what: "name", fqn, found, limit: NAME_BYTES_MAX });
            }
            if !seen.insert((&part.fqn, &part.offsets)) {
                return Err(ShardError::Twice { fqn: part.fqn.clone(), offsets: part.offsets.clone() });
            }
            let outside = || {
                let BoxOf { fqn, global, offsets, sizes, .. } = part.clone();
                ShardError::Outside { fqn, offsets, sizes, global }
            };
            let Some(payload) = part.payload() else { return Err(outside()) };
            let around = item::tensor(at, part.dtype, &part.sizes, payload, 0);
            let payload_at = at + around.head.len() as u64;
            let end = payload_at.checked_add(payload).and_then(|end| end.checked_add(around.tail.len() as u64));
            let Some(end) = end else { return Err(outside()) };
            spans.push(Span { at, length: end - at, payload_at, payload });
            at = end;
        }
        Ok(Self { boxes, spans, bytes: at })
    }

    pub fn payload(&self) -> u64 {
        self.spans.iter().map(|span| span.payload).sum()
    }
}
