//! An artifact at work: rows go in as they are staged, and what is said of each comes out; where it carries the state of a stream, that
//! goes in and comes out as numbers that only it understands.

use super::{Packed, Tools};
use crossbeam_channel::Receiver;
use enn_common::{
    artifact::{chunk::RowStatus, export::Port},
    graph::Dim,
    staged::Histories,
};
use enn_export::{ExportError, Runner, Tensor};
use std::{path::Path, time::Duration};

/// The output of all levels.
const QUANTILES: &str = "quantiles";
/// What is before the name of a state where it comes out.
pub(super) const NEXT: &str = "next_";

/// A loaded artifact.
pub struct AtWork {
    runner: Box<dyn Runner>,
    shape: Shape,
}

/// What is said of some rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Said {
    /// Row-major, the user's units; NaN where there is none.
    pub values: Vec<f32>,
    /// What became of each row, numbers of `RowStatus`.
    pub status: Vec<u8>,
}

/// What goes in and comes out.
#[derive(Debug, Clone, PartialEq)]
struct Shape {
    /// Name of the rows.
    input: String,
    /// Place of the output that is told.
    answer: usize,
    states: Vec<State>,
    /// Fewest and most rows of a call.
    rows: (usize, usize),
    /// Cells of which training has seen nothing.
    blind: Vec<bool>,
    /// The inputs that are the history of each series, where rows have series.
    histories: Option<Histories>,
}

/// A tensor of a stream's state.
#[derive(Debug, Clone, PartialEq)]
struct State {
    name: String,
    /// Place among the outputs where it comes out.
    next: usize,
    /// Its sizes for a batch.
    sizes: Vec<Dim>,
}

impl State {
    /// Numbers of a row.
    fn numbers(&self) -> usize {
        self.sizes.iter().map(|dim| dim.of(1)).product::<u64>() as usize
    }
}

impl Shape {
    fn of(packed: &Packed, is_point: bool) -> Self {
        let said = &packed.said;
        let outputs = packed.ports().outputs;
        let place = |name: &str| outputs.iter().position(|output| output == name);
        let state = |port: &Port| {
            let next = place(&format!("{NEXT}{}", port.name))?;
            Some(State { name: port.name.clone(), next, sizes: port.shape.clone() })
        };
        let states: Vec<State> = said.inputs.iter().filter_map(state).collect();
        let is_state = |port: &&Port| states.iter().any(|state| state.name == port.name);
        let input = said.inputs.iter().find(|port| !is_state(port)).map(|port| port.name.clone()).unwrap_or_default();
        Self {
            input,
            answer: place(QUANTILES).filter(|_| !is_point && !said.levels.is_empty()).unwrap_or(0),
            states,
            rows: (said.batch.min.max(1) as usize, said.batch.max.max(1) as usize),
            blind: said.staged.y_stats.iter().map(|stats| stats.n == 0).collect(),
            histories: Histories::of(&said.staged),
        }
    }

    /// What became of a row `x`, of which so much is said.
    fn judged(&self, x: &[f32], told: &mut [f32]) -> RowStatus {
        match &self.histories {
            Some(histories) => histories.judged(x, told, &self.blind),
            None => RowStatus::judged(x, told, &self.blind),
        }
    }

    /// Numbers of a stream's state.
    fn state(&self) -> usize {
        self.states.iter().map(State::numbers).sum()
    }

    /// What goes in: `x` and `states` row-major, `rows` of each.
    fn inputs(&self, x: &[f32], states: &[f32], rows: usize) -> Vec<Tensor> {
        let mut tensors =
            vec![Tensor { name: self.input.clone(), shape: vec![rows, x.len() / rows.max(1)], values: x.to_vec() }];
        let mut at = 0;
        let all = self.state().max(1);
        for state in &self.states {
            let own = at..at + state.numbers();
            at = own.end;
            let values = states.chunks(all).flat_map(|row| &row[own.clone()]).copied().collect();
            let shape = state.sizes.iter().map(|dim| dim.of(rows as u64) as usize).collect();
            tensors.push(Tensor { name: state.name.clone(), shape, values });
        }
        tensors
    }

    /// The states of the first `rows` among the outputs of a call, row-major.
    fn next(&self, outputs: &[Tensor], rows: usize) -> Vec<f32> {
        let row = |row: usize| {
            self.states.iter().flat_map(move |state| {
                let numbers = state.numbers();
                outputs[state.next].values[row * numbers..(row + 1) * numbers].iter().copied()
            })
        };
        (0..rows).flat_map(row).collect()
    }
}

impl AtWork {
    /// Loads an artifact with what this machine has; what is exchanged lies below `scratch`. The quantiles are told where they come out,
    /// unless only the point `is_point` asked for.
    ///
    /// # Errors
    /// A runtime that is not there, or what it says.
    pub fn start(packed: &Packed, tools: &Tools, scratch: &Path, is_point: bool) -> Result<Self, ExportError> {
        let runner = tools.runner(packed.target, (&packed.path, &packed.ports()), scratch)?;
        let runner = runner.ok_or_else(|| ExportError::Unavailable {
            what: packed.target.about(),
            why: "its runtime is not on this machine".to_owned(),
            hint: "export the run in another format, e.g. onnx".to_owned(),
        })?;
        Ok(Self { runner, shape: Shape::of(packed, is_point) })
    }

    /// The runtime and its version.
    pub fn version(&self) -> String {
        self.runner.version()
    }

    /// Longest time for an answer from now on.
    pub fn set_time(&mut self, time: Duration) {
        self.runner.set_time(time);
    }

    /// Is disconnected once the runtime has ended by itself.
    pub fn ended(&self) -> Receiver<()> {
        self.runner.ended()
    }

    /// Numbers of a stream's state for each row; 0 where nothing is carried.
    pub fn state(&self) -> usize {
        self.shape.state()
    }

    /// What is said of rows `x` (rows, F), NaN where missing; of each alone, where the artifact carries a state.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn answer(&mut self, x: &[f32], rows: usize) -> Result<Said, ExportError> {
        let states = vec![0.0; rows * self.state()];
        self.go_on(x, &states, rows).map(|(said, _)| said)
    }

    /// The same as the next call of a stream for each row: with the states (rows, numbers) before it, and those after it. All zero is the
    /// state before the first.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn go_on(&mut self, x: &[f32], states: &[f32], rows: usize) -> Result<(Said, Vec<f32>), ExportError> {
        let width = x.len() / rows.max(1);
        let state = self.state();
        let mut said = Said::default();
        let mut after = Vec::new();
        for first in (0..rows).step_by(self.shape.rows.1) {
            let wanted = self.shape.rows.1.min(rows - first);
            // A call has no fewer rows than it may: the last one is repeated, and its answers are left away.
            let given = wanted.max(self.shape.rows.0);
            let part = |all: &[f32], width: usize| -> Vec<f32> {
                let rows = (first..first + given).map(|row| row.min(rows - 1));
                rows.flat_map(|row| all[row * width..(row + 1) * width].iter().copied()).collect()
            };
            let outputs = self.runner.run(&self.shape.inputs(&part(x, width), &part(states, state), given))?;
            self.check(&outputs, given)?;
            after.extend(self.shape.next(&outputs, wanted));
            let told = &outputs[self.shape.answer].values;
            let each = told.len() / given;
            self.add(&mut said, &x[first * width..(first + wanted) * width], &told[..each * wanted], wanted);
        }
        Ok((said, after))
    }

    /// As many numbers as there should be: a runtime that was given the wrong file may answer anything.
    fn check(&self, outputs: &[Tensor], rows: usize) -> Result<(), ExportError> {
        let of = |place: usize| outputs.get(place).map_or(0, |output| output.values.len());
        let whole = self.shape.states.iter().all(|state| of(state.next) == rows * state.numbers());
        if whole && of(self.shape.answer) > 0 && of(self.shape.answer).is_multiple_of(rows) {
            return Ok(());
        }
        let found: Vec<String> = outputs.iter().map(|output| format!("{} {:?}", output.name, output.shape)).collect();
        let why = format!("it answered {rows} rows with {}", found.join(", "));
        Err(ExportError::Refused { what: "enn", path: self.version().into(), why })
    }

    fn add(&self, said: &mut Said, x: &[f32], told: &[f32], rows: usize) {
        let inputs = (x.len() / rows).max(1);
        let outputs = (told.len() / rows).max(1);
        for (x, told) in x.chunks(inputs).zip(told.chunks(outputs)) {
            let mut told = told.to_vec();
            let status = self.shape.judged(x, &mut told);
            let is_nothing = status == RowStatus::NoInput;
            said.values.extend(told.iter().map(|value| if is_nothing { f32::NAN } else { *value }));
            said.status.push(status as u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Tells the sum of a row and of the sums before it, and notes how many rows a call has.
    struct Sums(Arc<Mutex<Vec<usize>>>);

    impl Runner for Sums {
        fn version(&self) -> String {
            "sums".to_owned()
        }

        fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
            let x = &inputs[0];
            let state = inputs.get(1);
            assert_eq!((x.name.as_str(), x.shape.iter().product::<usize>()), ("x", x.values.len()));
            self.0.lock().unwrap().push(x.shape[0]);
            let before = |row: usize| state.map_or(0.0, |state| state.values[2 * row + 1]);
            let sums: Vec<f32> =
                x.values.chunks(x.shape[1]).enumerate().map(|(at, row)| row.iter().sum::<f32>() + before(at)).collect();
            let next = sums.iter().flat_map(|sum| [7.0, *sum]).collect();
            let tensor = |name: &str, shape, values| Tensor { name: name.to_owned(), shape, values };
            let rows = x.shape[0];
            Ok(vec![
                tensor("zero", vec![rows], vec![0.0; rows]),
                tensor("y", vec![rows, 1], sums),
                tensor("n", vec![rows, 2], next),
            ])
        }
    }

    fn at_work(states: Vec<State>) -> (AtWork, Arc<Mutex<Vec<usize>>>) {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let shape =
            Shape { input: "x".to_owned(), answer: 1, states, rows: (2, 3), blind: vec![false], histories: None };
        (AtWork { runner: Box::new(Sums(Arc::clone(&calls))), shape }, calls)
    }

    #[test]
    fn calls_have_as_many_rows_as_they_may() {
        let (mut engine, calls) = at_work(Vec::new());
        let x: Vec<f32> = (0..14).map(|value| value as f32).collect();
        let said = engine.answer(&x, 7).unwrap();
        assert_eq!(said.values, [1.0, 5.0, 9.0, 13.0, 17.0, 21.0, 25.0]);
        assert_eq!(*calls.lock().unwrap(), [3, 3, 2], "the last row stands there twice");
        let said = engine.answer(&[f32::NAN, f32::NAN, 1.0, f32::NAN], 2).unwrap();
        assert_eq!(said.status, [1, 2], "no input; an answer that is not finite");
    }

    #[test]
    fn a_stream_goes_on_from_its_state_and_others_beside_it_from_theirs() {
        let sizes = vec![Dim::BATCH, Dim::Fixed(2)];
        let (mut engine, _) = at_work(vec![State { name: "s".to_owned(), next: 2, sizes }]);
        assert_eq!(engine.state(), 2);
        let (said, after) = engine.go_on(&[1.0, 2.0, 4.0, 8.0], &[0.0; 4], 2).unwrap();
        assert_eq!((said.values, after.clone()), (vec![3.0, 12.0], vec![7.0, 3.0, 7.0, 12.0]));
        let (said, _) = engine.go_on(&[1.0, 0.0, 1.0, 0.0], &after, 2).unwrap();
        assert_eq!(said.values, [4.0, 13.0]);
        assert_eq!(engine.answer(&[1.0, 0.0], 1).unwrap().values, [1.0]);
    }

    #[test]
    fn a_cell_that_training_never_saw_fails_no_row() {
        let (mut engine, _) = at_work(Vec::new());
        engine.shape.blind = vec![true];
        assert_eq!(engine.answer(&[1.0, f32::NAN], 1).unwrap().status, [0]);
    }
}
