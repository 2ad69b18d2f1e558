//! A loaded artifact that predicts: rows go in as they are staged, and a prediction for each comes out; where it has the state of a
//! stream, the state goes in and comes out as opaque numbers.

use super::{Packed, Tools};
use crossbeam_channel::Receiver;
use enn_common::{
    artifact::{chunk::RowStatus, export::Port},
    graph::Dim,
    staged::Histories,
};
use enn_export::{ExportError, Runner, Tensor};
use std::{path::Path, time::Duration};

/// Name of the output with all quantile levels.
const QUANTILES: &str = "quantiles";
/// Prefix of a state's name among the outputs.
pub(super) const NEXT: &str = "next_";

pub struct ArtifactRunner {
    runner: Box<dyn Runner>,
    shape: Shape,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Predictions {
    /// Predictions, row-major, in the user's units; NaN for none.
    pub values: Vec<f32>,
    /// Status of each row, as numbers of `RowStatus`.
    pub status: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq)]
struct Shape {
    /// Name of the input for the rows.
    input: String,
    /// Index of the output with the predictions.
    prediction: usize,
    states: Vec<State>,
    /// Smallest and largest number of rows of a call.
    rows: (usize, usize),
    /// Outputs for which training has seen no value.
    blind: Vec<bool>,
    /// Inputs that hold the history of each series, where rows have series.
    histories: Option<Histories>,
}

/// A tensor of a stream's state.
#[derive(Debug, Clone, PartialEq)]
struct State {
    name: String,
    /// Index of the next state among the outputs.
    next: usize,
    /// Sizes for a batch.
    sizes: Vec<Dim>,
}

impl State {
    /// Returns the numbers per row.
    fn numbers(&self) -> usize {
        self.sizes.iter().map(|dim| dim.of(1)).product::<u64>() as usize
    }
}

impl Shape {
    fn of(packed: &Packed, is_point: bool) -> Self {
        let sidecar = &packed.sidecar;
        let outputs = packed.ports().outputs;
        let place = |name: &str| outputs.iter().position(|output| output == name);
        let state = |port: &Port| {
            let next = place(&format!("{NEXT}{}", port.name))?;
            Some(State { name: port.name.clone(), next, sizes: port.shape.clone() })
        };
        let states: Vec<State> = sidecar.inputs.iter().filter_map(state).collect();
        let is_state = |port: &&Port| states.iter().any(|state| state.name == port.name);
        let input =
            sidecar.inputs.iter().find(|port| !is_state(port)).map(|port| port.name.clone()).unwrap_or_default();
        Self {
            input,
            prediction: place(QUANTILES).filter(|_| !is_point && !sidecar.levels.is_empty()).unwrap_or(0),
            states,
            rows: (sidecar.batch.min.max(1) as usize, sidecar.batch.max.max(1) as usize),
            blind: sidecar.staged.y_stats.iter().map(|stats| stats.n == 0).collect(),
            histories: Histories::of(&sidecar.staged),
        }
    }

    /// Returns the numbers per row of the whole state.
    fn state(&self) -> usize {
        self.states.iter().map(State::numbers).sum()
    }

    /// Builds the inputs: `x` and `states` row-major, `rows` of each.
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

    /// Returns the states of the first `rows` from the outputs of a call, row-major.
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

impl ArtifactRunner {
    /// Loads an artifact with the runtimes of this machine; exchanged files lie below `scratch`. Quantiles are returned where the artifact
    /// has them, unless `is_point` requests the point only.
    ///
    /// # Errors
    /// The runtime is not installed, or any error of it.
    pub fn start(packed: &Packed, tools: &Tools, scratch: &Path, is_point: bool) -> Result<Self, ExportError> {
        let runner = tools.runner(packed.target, &packed.path, &packed.ports(), scratch)?;
        let runner = runner.ok_or_else(|| ExportError::Unavailable {
            what: packed.target.about(),
            why: "its runtime is not on this machine".to_owned(),
            hint: "export the run in another format, e.g. onnx".to_owned(),
        })?;
        Ok(Self { runner, shape: Shape::of(packed, is_point) })
    }

    pub fn version(&self) -> String {
        self.runner.version()
    }

    /// Sets the longest time of later calls.
    pub fn set_time(&mut self, time: Duration) {
        self.runner.set_time(time);
    }

    /// Returns a channel that is disconnected once the runtime has ended by itself.
    pub fn ended(&self) -> Receiver<()> {
        self.runner.ended()
    }

    /// Returns the numbers of a stream's state per row; 0 without a state.
    pub fn state(&self) -> usize {
        self.shape.state()
    }

    /// Predicts rows `x` (rows, F), NaN where missing; each row is predicted alone where the artifact has a state.
    ///
    /// # Errors
    /// Any error of the runtime.
    pub fn predict(&mut self, x: &[f32], rows: usize) -> Result<Predictions, ExportError> {
        let states = vec![0.0; rows * self.state()];
        self.continue_stream(x, &states, rows).map(|(predictions, _)| predictions)
    }

    /// Predicts the next call of a stream for each row: takes the states (rows, numbers) before it, and returns those after it. All zero
    /// is the state before the first call.
    ///
    /// # Errors
    /// Any error of the runtime.
    pub fn continue_stream(
        &mut self,
        x: &[f32],
        states: &[f32],
        rows: usize,
    ) -> Result<(Predictions, Vec<f32>), ExportError> {
        let width = x.len() / rows.max(1);
        let state = self.state();
        let mut predictions = Predictions::default();
        let mut after = Vec::new();
        for first in (0..rows).step_by(self.shape.rows.1) {
            let count = self.shape.rows.1.min(rows - first);
            // A call has at least the smallest number of rows: the last row is repeated, and its predictions are dropped.
            let padded = count.max(self.shape.rows.0);
            let part = |all: &[f32], width: usize| -> Vec<f32> {
                let rows = (first..first + padded).map(|row| row.min(rows - 1));
                rows.flat_map(|row| all[row * width..(row + 1) * width].iter().copied()).collect()
            };
            let outputs = self.runner.run(&self.shape.inputs(&part(x, width), &part(states, state), padded))?;
            self.check(&outputs, padded)?;
            after.extend(self.shape.next(&outputs, count));
            let values = &outputs[self.shape.prediction].values;
            let each = values.len() / padded;
            self.add(&mut predictions, &x[first * width..(first + count) * width], &values[..each * count], count);
        }
        Ok((predictions, after))
    }

    /// Checks the number of values: a runtime that was padded the wrong file may return anything.
    fn check(&self, outputs: &[Tensor], rows: usize) -> Result<(), ExportError> {
        let of = |place: usize| outputs.get(place).map_or(0, |output| output.values.len());
        let whole = self.shape.states.iter().all(|state| of(state.next) == rows * state.numbers());
        if whole && of(self.shape.prediction) > 0 && of(self.shape.prediction).is_multiple_of(rows) {
            return Ok(());
        }
        let found: Vec<String> = outputs.iter().map(|output| format!("{} {:?}", output.name, output.shape)).collect();
        let why = format!("it returned for {rows} rows {}", found.join(", "));
        Err(ExportError::refused("enn", Path::new(&self.version()), why))
    }

    fn add(&self, predictions: &mut Predictions, x: &[f32], values: &[f32], rows: usize) {
        let inputs = (x.len() / rows).max(1);
        let outputs = (values.len() / rows).max(1);
        for (x, row) in x.chunks(inputs).zip(values.chunks(outputs)) {
            let mut row = row.to_vec();
            let status = match &self.shape.histories {
                Some(histories) => histories.judged(x, &mut row, &self.shape.blind),
                None => RowStatus::judged(x, &row, &self.shape.blind),
            };
            let is_nothing = status == RowStatus::NoInput;
            predictions.values.extend(row.iter().map(|value| if is_nothing { f32::NAN } else { *value }));
            predictions.status.push(status as u8);
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

    fn runner(states: Vec<State>) -> (ArtifactRunner, Arc<Mutex<Vec<usize>>>) {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let shape =
            Shape { input: "x".to_owned(), prediction: 1, states, rows: (2, 3), blind: vec![false], histories: None };
        (ArtifactRunner { runner: Box::new(Sums(Arc::clone(&calls))), shape }, calls)
    }

    #[test]
    fn calls_have_as_many_rows_as_they_may() {
        let (mut engine, calls) = runner(Vec::new());
        let x: Vec<f32> = (0..14).map(|value| value as f32).collect();
        let predictions = engine.predict(&x, 7).unwrap();
        assert_eq!(predictions.values, [1.0, 5.0, 9.0, 13.0, 17.0, 21.0, 25.0]);
        assert_eq!(*calls.lock().unwrap(), [3, 3, 2], "the last row stands there twice");
        let predictions = engine.predict(&[f32::NAN, f32::NAN, 1.0, f32::NAN], 2).unwrap();
        assert_eq!(predictions.status, [1, 2], "no input; an answer that is not finite");
    }

    #[test]
    fn a_stream_goes_on_from_its_state_and_others_beside_it_from_theirs() {
        let sizes = vec![Dim::BATCH, Dim::Fixed(2)];
        let (mut engine, _) = runner(vec![State { name: "s".to_owned(), next: 2, sizes }]);
        assert_eq!(engine.state(), 2);
        let (predictions, after) = engine.continue_stream(&[1.0, 2.0, 4.0, 8.0], &[0.0; 4], 2).unwrap();
        assert_eq!((predictions.values, after.clone()), (vec![3.0, 12.0], vec![7.0, 3.0, 7.0, 12.0]));
        let (predictions, _) = engine.continue_stream(&[1.0, 0.0, 1.0, 0.0], &after, 2).unwrap();
        assert_eq!(predictions.values, [4.0, 13.0]);
        assert_eq!(engine.predict(&[1.0, 0.0], 1).unwrap().values, [1.0]);
    }

    #[test]
    fn a_cell_that_training_never_saw_fails_no_row() {
        let (mut engine, _) = runner(Vec::new());
        engine.shape.blind = vec![true];
        assert_eq!(engine.predict(&[1.0, f32::NAN], 1).unwrap().status, [0]);
    }
}
