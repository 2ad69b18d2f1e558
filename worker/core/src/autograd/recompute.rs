//! Activation checkpointing: a part of the forward pass drops the values that its reverse rules read. The backward pass recomputes
//! them from the values at the part's border.
//!
//! The records of the part are emitted once more with phase `Recompute`: the same operations on the same operands, the same
//! random key, hence the same bits.
//!
//! **Invariant:** a part is pure: it writes nothing in place and runs no collective. Its cost is one forward pass of the part.

use super::call::call;
use super::cx::Cx;
use super::program::{Phase, Rec};
use super::tape_node::{OpenSegment, RecomputeSegment, TapeNode};
use crate::error::{OpError, OpErrorKind};
use crate::op::value::{Tensor, Val};
use smallvec::SmallVec;
use std::collections::HashMap;

/// A new value, and the old one it stands for.
type StandsFor = (Val, Val);

impl Cx<'_> {
    /// Runs `part`. Where this step saves memory (see [`Cx::set_recompute`]), the values saved for the backward pass are dropped and
    /// recomputed. Parts do not nest: an inner one belongs to the outer one.
    pub fn part<R>(&self, part: impl FnOnce(&Self) -> Result<R, OpError>) -> Result<R, OpError> {
        if self.recompute.get() { self.recompute_part(part) } else { part(self) }
    }

    /// Whether this step recomputes its parts.
    pub fn recomputes(&self) -> bool {
        self.recompute.get()
    }

    /// Does what [`Cx::part`] does in every step, even if the step does not save memory elsewhere.
    pub fn recompute_part<R>(&self, part: impl FnOnce(&Self) -> Result<R, OpError>) -> Result<R, OpError> {
        if !self.taping.get() || self.state.borrow().open.is_some() {
            return part(self);
        }
        let (first_rec, first_node) = {
            let mut state = self.state.borrow_mut();
            let first_value = state.program.values();
            state.open = Some(OpenSegment { first_value, border: Vec::new() });
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
                state.nodes.push(TapeNode::Segment(RecomputeSegment { recs, values, border: open.border }));
            }
        }
        result
    }

    /// Recomputes a segment. Returns its tape, and which new value stands for which old one.
    pub(super) fn recompute(&self, segment: RecomputeSegment) -> Result<(Vec<TapeNode>, Vec<StandsFor>), OpError> {
        // Arrays that were unsharded for the forward pass are unsharded again when they are read.
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

/// Whether the operation may run twice: it writes nothing in place and is no collective.
fn pure(rec: &Rec) -> bool {
    !rec.op.is_collective() && !(0..rec.ins.len()).any(|i| rec.op.writes(i))
}
