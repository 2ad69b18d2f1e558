//! What temporal templates carry from call to call, and its names in a file: `stream.{task}.{block}`, blocks from 0.

use crate::autograd::Tensor;
use std::collections::{BTreeMap, btree_map::Entry};
use tch::Tensor as Raw;

/// States of the causal templates after a call, by task: one per block. Begins empty.
#[derive(Debug, Default)]
pub struct StreamState {
    tasks: BTreeMap<String, Vec<Raw>>,
}

/// Named tensors that are not the state of a stream.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the state of a stream has {name:?}, expected {PREFIX}TASK.BLOCK with blocks from 0 on, none left out")]
pub struct NoState {
    name: String,
}

/// What the names begin with.
const PREFIX: &str = "stream.";

/// A call of a stream: the states before it, and after it as they come.
#[derive(Debug)]
pub(crate) struct Stream<'a> {
    before: &'a StreamState,
    after: StreamState,
    /// The states after it as values of the step, in the order of their blocks.
    values: Vec<Tensor>,
}

impl StreamState {
    /// States by task and block, (B, …) each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Raw])> {
        self.tasks.iter().map(|(task, states)| (task.as_str(), states.as_slice()))
    }

    /// The states by name, as views: what [`StreamState::restore`] makes them of again, in this process or another.
    pub fn named(&self) -> Vec<(String, Raw)> {
        let of = |(task, states): (&String, &Vec<Raw>)| -> Vec<(String, Raw)> {
            let named = |(block, state): (usize, &Raw)| (format!("{PREFIX}{task}.{block}"), state.shallow_clone());
            states.iter().enumerate().map(named).collect()
        };
        self.tasks.iter().flat_map(of).collect()
    }

    /// States by the names that [`StreamState::named`] gives them; other names are not looked at.
    ///
    /// # Errors
    /// When a block is left out or a name has no number.
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

    /// Tasks and their blocks, for people; "nothing" before the first call.
    pub(crate) fn outline(&self) -> String {
        let of = |(task, states): (&String, &Vec<Raw>)| format!("{task} ({} blocks)", states.len());
        let all: Vec<String> = self.tasks.iter().map(of).collect();
        if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
    }

    /// Whether nothing was carried yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

impl<'a> Stream<'a> {
    pub(crate) fn after(before: &'a StreamState) -> Self {
        Self { before, after: StreamState::default(), values: Vec::new() }
    }

    /// State of a task's block before the call.
    pub(crate) fn state(&self, task: &str, block: usize) -> Option<Raw> {
        self.before.tasks.get(task).and_then(|states| states.get(block)).map(Raw::shallow_clone)
    }

    /// Keeps a block's state after the call; blocks come in order.
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

    /// The states after the call, and the same as values of the step, block after block.
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
        // Ten comes after nine, not after one.
        assert!(back.tasks["a.b"].iter().zip(0..).all(|(state, i)| state.double_value(&[1, 2]) == f64::from(i)));
        saved.remove("stream.a.b.4");
        assert!(StreamState::restore(&saved).unwrap_err().to_string().contains("\"stream.a.b.5\""));
        let odd = BTreeMap::from([("stream.c".to_owned(), one(1.0))]);
        assert_eq!(StreamState::restore(&odd).unwrap_err(), NoState { name: "stream.c".to_owned() });
        assert!(StreamState::restore(&BTreeMap::new()).unwrap().is_empty());
    }
}
