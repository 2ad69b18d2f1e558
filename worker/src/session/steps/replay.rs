//! What is known of the refused steps of a loop of one's own, and how far the replay of one has come.

use crate::session::nonfinite_cause::End;
use enn_core::{
    autograd::{Cx, Tensor},
    error::{OpError, OpErrorKind},
};
use std::cell::{Cell, RefCell};
use tch::Tensor as Raw;

/// What a step was given.
pub(super) struct Given {
    pub(super) number: u64,
    pub(super) inputs: Vec<Raw>,
}

/// What is known of refused steps.
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

/// How far a replay has come.
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
