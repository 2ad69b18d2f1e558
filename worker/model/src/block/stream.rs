//! The state that temporal templates keep between the calls of a stream, and its names in a file:
//! `stream.{task}.{block}`, blocks from 0.

use enn_core::autograd::Tensor;
use std::collections::{BTreeMap, btree_map::Entry};
use tch::Tensor as Raw;

/// States of the causal templates after a call, one per block of each task. A new stream has none.
#[derive(Debug, Default)]
pub struct StreamState {
    tasks: BTreeMap<String, Vec<Raw>>,
}

/// The named tensors are not the state of a stream.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the state of a stream has {name:?}, expected {PREFIX}TASK.BLOCK with blocks from 0 on, none left out")]
pub struct NoState {
    name: String,
}

const PREFIX: &str = "stream.";

/// One call of a stream: the states before it, and the states after it as far as they are computed.
#[derive(Debug)]
pub(crate) struct Stream<'a> {
    before: &'a StreamState,
    after: StreamState,
    /// States after the call as values of the step, in the order of their blocks.
    values: Vec<Tensor>,
}

impl StreamState {
    /// Returns the states of each task by block, (B, …) each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Raw])> {
        self.tasks.iter().map(|(task, states)| (task.as_str(), states.as_slice()))
    }

    /// Returns the states by name, as views; [`StreamState::restore`] is the inverse, in this process or another.
    pub fn named(&self) -> Vec<(String, Raw)> {
        let of = |(task, states): (&String, &Vec<Raw>)| -> Vec<(String, Raw)> {
            let named = |(block, state): (usize, &Raw)| (format!("{PREFIX}{task}.{block}"), state.shallow_clone());
            states.iter().enumerate().map(named).collect()
        };
        self.tasks.iter().flat_map(of).collect()
    }

    /// Reads the states from the names of [`StreamState::named`]; other names are ignored.
    ///
    /// # Errors
    /// When a block is missing or a name has no number.
    pub fn restore(saved: &BTreeMap<String, Raw>) -> Result<Self, NoState> {
        let mut found: BTreeMap<String, BTreeMap<usize, Raw>> = BTreeMap::new();
        for (name, state) in saved.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
            let parts = name[PREFIX.len()..].rsplit_once('.');
            let parts = parts.and_then(|(task, block)| Some((task, block.parse().ok()?)));
            let (task, block) = parts.ok_or_else(|| NoState { name: name.clone() })?;
            found.entry(task.to_owned()).or_default().insert(block, state.shallow_clone());
        }
        let whole = |(task, blocks): (String, BTreeMap<usize, Raw>)| {
            let left_out = blocks.keys().zip(0..).find(|(block, place)| *block != place);
            match left_out {
                Some((block, _)) => Err(NoState { name: format!("{PREFIX}{task}.{block}") }),
                None => Ok((task, blocks.into_values().collect())),
            }
        };
        Ok(Self { tasks: found.into_iter().map(whole).collect::<Result<_, _>>()? })
    }

    /// Lists the tasks and their numbers of blocks for messages; "nothing" before the first call.
    pub(crate) fn outline(&self) -> String {
        let of = |(task, states): (&String, &Vec<Raw>)| format!("{task} ({} blocks)", states.len());
        let all: Vec<String> = self.tasks.iter().map(of).collect();
        if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
    }

    /// Whether no call was made yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

impl<'a> Stream<'a> {
    pub(crate) fn after(before: &'a StreamState) -> Self {
        Self { before, after: StreamState::default(), values: Vec::new() }
    }

    /// Returns the state of a task's block before the call.
    pub(crate) fn state(&self, task: &str, block: usize) -> Option<Raw> {
        self.before.tasks.get(task).and_then(|states| states.get(block)).map(Raw::shallow_clone)
    }

    /// Stores the state of a block after the call; blocks come in order.
    pub(crate) fn keep(&mut self, task: &str, state: &Tensor) {
        let raw = state.raw().shallow_clone();
        self.values.push(state.clone());
        match self.after.tasks.entry(task.to_owned()) {
            Entry::Occupied(states) => states.into_mut().push(raw),
            Entry::Vacant(place) => {
                place.insert(vec![raw]);
            }
        }
    }

    /// Returns the states after the call, and the same states as values of the step, block after block.
    pub(crate) fn finish(self) -> (StreamState, Vec<Tensor>) {
        (self.after, self.values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn a_state_comes_back_by_its_names_and_gaps_are_refused() {
        let one = |value: f64| Raw::full([2, 3], value, (Kind::Float, Device::Cpu));
        let tasks = BTreeMap::from([
            ("a.b".to_owned(), (0..11).map(|i| one(f64::from(i))).collect()),
            ("c".to_owned(), vec![one(7.0)]),
        ]);
        let state = StreamState { tasks };
        let mut saved: BTreeMap<String, Raw> = state.named().into_iter().collect();
        saved.insert("model.c.weight".to_owned(), one(9.0));
        let back = StreamState::restore(&saved).unwrap();
        assert_eq!(back.outline(), "a.b (11 blocks), c (1 blocks)");
        // Block 10 comes after block 9, not after block 1.
        assert!(back.tasks["a.b"].iter().zip(0..).all(|(state, i)| state.double_value(&[1, 2]) == f64::from(i)));
        saved.remove("stream.a.b.4");
        assert!(StreamState::restore(&saved).unwrap_err().to_string().contains("\"stream.a.b.5\""));
        let odd = BTreeMap::from([("stream.c".to_owned(), one(1.0))]);
        assert_eq!(StreamState::restore(&odd).unwrap_err(), NoState { name: "stream.c".to_owned() });
        assert!(StreamState::restore(&BTreeMap::new()).unwrap().is_empty());
    }
}
