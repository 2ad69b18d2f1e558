//! What temporal templates carry from call to call.

use crate::autograd::Tensor;
use std::collections::{BTreeMap, btree_map::Entry};
use tch::Tensor as Raw;

/// States of the causal templates after a call, by task: one per block. Begins empty.
#[derive(Debug, Default)]
pub struct StreamState {
    tasks: BTreeMap<String, Vec<Raw>>,
}

/// A call of a stream: the states before it, and after it as they come.
#[derive(Debug)]
pub(crate) struct Stream<'a> {
    before: &'a StreamState,
    after: StreamState,
}

impl StreamState {
    /// States by task and block, (B, …) each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Raw])> {
        self.tasks.iter().map(|(task, states)| (task.as_str(), states.as_slice()))
    }
}

impl<'a> Stream<'a> {
    pub(crate) fn after(before: &'a StreamState) -> Self {
        Self { before, after: StreamState::default() }
    }

    /// State of a task's block before the call.
    pub(crate) fn state(&self, task: &str, block: usize) -> Option<Raw> {
        self.before.tasks.get(task).and_then(|states| states.get(block)).map(Raw::shallow_clone)
    }

    /// Keeps a block's state after the call; blocks come in order.
    pub(crate) fn keep(&mut self, task: &str, state: &Tensor) {
        let raw = state.raw().shallow_clone();
        match self.after.tasks.entry(task.to_owned()) {
            Entry::Occupied(states) => states.into_mut().push(raw),
            Entry::Vacant(place) => {
                place.insert(vec![raw]);
            }
        }
    }

    pub(crate) fn finish(self) -> StreamState {
        self.after
    }
}
