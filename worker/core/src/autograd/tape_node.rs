//! What the forward pass leaves for the reverse walk: taped records, and segments to recompute.

use crate::op::value::Tensor;
use crate::op::vjp::Kept;
use smallvec::SmallVec;
use std::ops::Range;

/// A node of the tape, which the reverse walk visits.
pub(super) enum TapeNode {
    /// One taped record with the values that its reverse rule reads.
    Rec(Taped),
    /// Records whose results were dropped. The walk recomputes them when it gets here.
    Segment(RecomputeSegment),
}

pub(super) struct Taped {
    pub(super) rec: u32,
    pub(super) kept: SmallVec<[Kept; 3]>,
}

/// A part of the forward pass that is recomputed in the backward pass.
pub(super) struct RecomputeSegment {
    pub(super) recs: Range<usize>,
    pub(super) values: Range<usize>,
    /// Values from outside that the records read.
    pub(super) border: Vec<Tensor>,
}

impl RecomputeSegment {
    pub(super) fn range(&self) -> Range<usize> {
        self.recs.clone()
    }

    /// Range of the values made in the segment, including leaves entered in it.
    pub(super) fn values(&self) -> Range<usize> {
        self.values.clone()
    }
}

pub(super) struct OpenSegment {
    pub(super) first_value: usize,
    pub(super) border: Vec<Tensor>,
}

impl OpenSegment {
    /// Notes the operands of a record that come from outside.
    pub(super) fn note(&mut self, ins: &[&Tensor]) {
        for tensor in ins {
            let outside = tensor.val().index() < self.first_value || tensor.is_leaf();
            if outside && self.border.iter().all(|known| known.val() != tensor.val()) {
                self.border.push((*tensor).clone());
            }
        }
    }
}
