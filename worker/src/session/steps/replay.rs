//! A refused step of a loop of one's own, once more, beside the plain references: who made it not finite.
//!
//! A refused step changed no weight. On the CPU it is seen at once, and the replay is that step exactly. A device is asked when the
//! ranks agree on kernels; what is replayed then are the inputs of its last step, with the weights of then.
//!
//! **Invariant:** a replay ends before anything in which other ranks take part, and changes nothing but gradients, which the next
//! step clears.

use crate::session::nonfinite_cause::End;
use enn_core::{
    autograd::{Cx, Tensor},
    error::{OpError, OpErrorKind},
};
use std::cell::{Cell, RefCell};
use tch::Tensor as Raw;

pub(super) struct Given {
    pub(super) number: u64,
    pub(super) inputs: Vec<Raw>,
}

/// Replays in a row that found no kernel: data that are never finite must not cost every step twice.
pub(super) const REPLAYS_MAX: u32 = 8;

/// Knowledge of refused steps.
#[derive(Default)]
pub(super) struct ReplayState {
    /// How many were looked at.
    pub(super) seen: u64,
    /// Replays in a row that found no kernel.
    pub(super) fruitless: u32,
    /// The last step of a device.
    pub(super) last: Option<Given>,
    /// One that is replayed before the next step.
    pub(super) due: Option<Given>,
    /// Why one was refused, in a sentence.
    pub(super) cause: Option<String>,
}

#[derive(Default)]
pub(super) struct Replay {
    pub(super) ends: RefCell<Vec<End>>,
    pub(super) ended: Cell<bool>,
}

impl Replay {
    /// Notes a backward pass that began at record number `before`.
    pub(super) fn note(&self, cx: &Cx<'_>, loss: &Tensor, before: usize) {
        let backward = before..cx.with_program(|program| program.recs().len());
        self.ends.borrow_mut().push(End { loss: loss.val(), backward });
    }

    /// All gradients are there: what ends the code.
    pub(super) fn end(&self, cx: &Cx<'_>) -> OpError {
        self.ended.set(true);
        cx.fail("complete", OpErrorKind::Hook("a step that is made once more ends with its gradients".into()))
    }
}
