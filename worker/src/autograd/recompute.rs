//! Activation checkpointing: a part of the forward pass lets go of what its reverse rules read, and is computed again, from the
//! values at its border, when the backward pass comes to it.
//!
//! The records of the part are emitted once more with phase `Recompute`: the same operations on the same operands, the same
//! random key, hence the same bits.
//!
//! **Invariant:** a part is pure: it writes nothing in place and runs no collective. Its cost is one forward pass of the part.

use super::call::call;
use super::cx::Cx;
use super::program::{Phase, Rec};
use super::tape::Node;
use crate::error::{OpError, OpErrorKind};
use crate::op::value::{Tensor, Val};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ops::Range;

/// A new value, and the old one it stands for.
type StandsFor = (Val, Val);

/// A part of the forward pass to be computed again.
pub(super) struct Segment {
    recs: Range<usize>,
    values: Range<usize>,
    /// Values from outside that its records read.
    border: Vec<Tensor>,
}

impl Segment {
    /// Its records.
    pub(super) fn range(&self) -> Range<usize> {
        self.recs.clone()
    }

    /// Positions of the values made in it, leaves entered in it included.
    pub(super) fn values(&self) -> Range<usize> {
        self.values.clone()
    }
}

/// A part being recorded.
pub(super) struct Open {
    first_value: usize,
    border: Vec<Tensor>,
}

impl Open {
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

impl Cx<'_> {
    /// Runs `part`; where this step saves memory (see [`Cx::set_recompute`]), what it saved for the backward pass is let go and
    /// computed again. Parts do not nest: an inner one is part of the outer.
    ///
    /// # Errors
    /// Those of `part`.
    pub fn part<R>(&self, part: impl FnOnce(&Self) -> Result<R, OpError>) -> Result<R, OpError> {
        if self.recompute.get() { self.again(part) } else { part(self) }
    }

    /// Whether this step computes its parts again.
    pub fn recomputes(&self) -> bool {
        self.recompute.get()
    }

    /// [`Cx::part`] in every step, whether it saves memory elsewhere or not.
    ///
    /// # Errors
    /// Those of `part`.
    pub fn again<R>(&self, part: impl FnOnce(&Self) -> Result<R, OpError>) -> Result<R, OpError> {
        if !self.taping.get() || self.state.borrow().open.is_some() {
            return part(self);
        }
        let (first_rec, first_node) = {
            let mut state = self.state.borrow_mut();
            let first_value = state.program.values();
            state.open = Some(Open { first_value, border: Vec::new() });
            (state.program.recs().len(), state.nodes.len())
        };
        let result = part(self);
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if let Some(open) = state.open.take()
            && result.is_ok()
        {
            let recs = first_rec..state.program.recs().len();
            let mut own = state.program.recs()[recs.clone()].iter().filter(|rec| rec.phase != Phase::Comm);
            if let Some(rec) = own.find(|rec| !pure(rec)) {
                let place = state.program.place(rec.scope);
                return Err(OpError { op: rec.op.name(), place, kind: Box::new(OpErrorKind::Impure) });
            }
            let values = open.first_value..state.program.values();
            if state.nodes.len() > first_node {
                state.nodes.truncate(first_node);
                state.nodes.push(Node::Segment(Segment { recs, values, border: open.border }));
            }
        }
        result
    }

    /// Computes a segment again. Returns its tape, and which new value stands for which old one.
    pub(super) fn recompute(&self, segment: Segment) -> Result<(Vec<Node>, Vec<StandsFor>), OpError> {
        // What was brought then is brought again when it is read.
        let own = |rec: &&Rec| rec.phase != Phase::Comm;
        let recs: Vec<Rec> = self.with_program(|p| p.recs()[segment.range()].iter().filter(own).cloned().collect());
        let mut known: HashMap<Val, Tensor> = segment.border.into_iter().map(|t| (t.val(), t)).collect();
        let mut made = Vec::new();
        let place = self.scope.get();
        self.phase.set(Phase::Recompute);
        self.taping.set(true);
        let mut go = || {
            for rec in &recs {
                self.scope.set(rec.scope);
                let ins: SmallVec<[Tensor; 4]> = rec.ins.iter().filter_map(|val| known.get(val).cloned()).collect();
                assert_eq!(ins.len(), rec.ins.len(), "the border of a part holds what its records read");
                let outs = call(self, rec.op.clone(), &ins.iter().collect::<SmallVec<[&Tensor; 4]>>())?;
                for (old, new) in rec.outs().zip(outs) {
                    made.push((old, new.val()));
                    known.insert(old, new);
                }
            }
            Ok(())
        };
        let result = go();
        self.taping.set(false);
        self.scope.set(place);
        result?;
        Ok((std::mem::take(&mut self.state.borrow_mut().nodes), made))
    }
}

/// Whether running it twice changes nothing.
fn pure(rec: &Rec) -> bool {
    !rec.op.is_collective() && !(0..rec.ins.len()).any(|i| rec.op.writes(i))
}
