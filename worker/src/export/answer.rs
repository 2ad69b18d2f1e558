//! The function of an exported model: for each row the prediction in the user's units, as of `enn predict`, and the
//! requested extra outputs.

use super::{
    ExportError, Screen,
    trace::{self, BATCHES, Recording},
};
use enn_common::{graph::Graph, staged::Histories};
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    params::Params,
};
use enn_model::{
    block::stream::StreamState,
    model::{Answer, Model, Output},
};
use std::collections::{BTreeMap, BTreeSet};
use tch::{Device, Kind, Tensor as Raw};

/// Name of the input: (batch, features) f32 in the user's units, NaN where missing, categories by number.
pub const X: &str = "x";
/// Name of the prediction: (batch, *output shape) f32.
const Y: &str = "y";
/// Name of the quantiles: (batch, levels, *output shape) f32.
const QUANTILES: &str = "quantiles";
/// Names of the outputs per row, besides states.
pub const ANSWERS: [&str; 2] = [Y, QUANTILES];
/// Prefix of an output that is the next call's input.
const NEXT: &str = "next_";

/// Extra outputs of an exported model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extras {
    /// Quantiles of the loss.
    pub quantiles: bool,
    /// State of a stream, as inputs and as outputs.
    pub stream: bool,
}

/// A model with the settings of its export.
#[derive(Debug)]
pub struct ExportedModel<'a> {
    /// Model, with buffers on the CPU.
    pub model: &'a Model,
    /// Weights on the CPU.
    pub params: &'a Params,
    pub out_shape: &'a [usize],
    /// Cells (O) without any training target; their outputs are NaN.
    pub blind: Option<Raw>,
    pub extras: Extras,
    /// Rules for valid numbers of the input; without rules all finite numbers are valid.
    pub screen: Option<Screen>,
    /// Inputs that are the history of each series; the outputs of a series without history are NaN.
    pub histories: Option<&'a Histories>,
}

/// Converts the function of a model to a graph.
///
/// # Errors
/// When the model lacks the requested outputs, or an operation cannot be exported.
pub fn graph(answered: &ExportedModel<'_>) -> Result<Graph, ExportError> {
    let recordings = [answered.recorded(BATCHES[0])?, answered.recorded(BATCHES[1])?];
    trace::graph(&recordings, answered.params)
}

impl ExportedModel<'_> {
    /// Returns the inputs by name for rows `x` (rows, F), with a zero state where the model streams.
    pub fn inputs(&self, x: &Raw) -> Result<BTreeMap<String, Raw>, ExportError> {
        let named = ports(&self.empty_past(x)?).into_iter().map(|(port, _, raw)| (port, raw));
        Ok(named.chain([(X.to_owned(), x.shallow_clone())]).collect())
    }

    /// Runs the model itself on inputs by name and returns the outputs by name.
    pub fn run(&self, inputs: &BTreeMap<String, Raw>) -> Result<BTreeMap<String, Raw>, ExportError> {
        let cx = Cx::eval(self.params);
        let x = &inputs[X];
        let past = ports(&self.empty_past(x)?).into_iter();
        let past = past.map(|(port, name, _)| (name, inputs[&port].shallow_clone())).collect();
        let state = StreamState::restore(&past).expect("names that a state gave itself");
        let outputs = self.answer(&cx, x, &state)?.1;
        Ok(outputs.into_iter().map(|(name, value)| (name, value.raw().shallow_clone())).collect())
    }

    fn recorded(&self, batch: i64) -> Result<Recording<'_>, ExportError> {
        let mut cx = Cx::eval(self.params);
        cx.keep_leaves();
        let x = Raw::f_zeros([batch, self.model.columns()], (Kind::Float, Device::Cpu))?;
        let state = self.empty_past(&x)?;
        let (input, outputs) = self.answer(&cx, &x, &state)?;
        let leaves = cx.kept_leaves();
        let place = |raw: &Raw| leaves.iter().find(|(_, leaf)| leaf.data_ptr() == raw.data_ptr()).map(|(val, _)| *val);
        let mut inputs = vec![(X.to_owned(), input.val())];
        inputs.extend(ports(&state).into_iter().filter_map(|(port, _, raw)| Some((port, place(&raw)?))));
        let outputs = outputs.into_iter().map(|(name, value)| (name, value.val())).collect();
        Ok(Recording { cx, inputs, outputs })
    }

    /// Returns the zero state for as many rows as `x` has; empty where the model does not stream.
    fn empty_past(&self, x: &Raw) -> Result<StreamState, ExportError> {
        if !self.extras.stream {
            return Ok(StreamState::default());
        }
        let cx = Cx::eval(self.params);
        let x = cx.input(x.shallow_clone());
        let valid = functional::is_finite(&cx, &x)?;
        let (_, after) = self.model.forward_stream(&cx, &x, &valid, &StreamState::default())?;
        let zero = |(name, raw): (String, Raw)| Ok::<_, tch::TchError>((name, raw.f_zeros_like()?));
        let zeros = after.named().into_iter().map(zero).collect::<Result<_, _>>()?;
        Ok(StreamState::restore(&zeros).expect("names that a state gave itself"))
    }

    /// Returns the input as a value, and the outputs by name.
    fn answer(
        &self,
        cx: &Cx<'_>,
        x: &Raw,
        state: &StreamState,
    ) -> Result<(Tensor, Vec<(String, Tensor)>), ExportError> {
        let input = cx.input(x.shallow_clone());
        let (x, valid) = match &self.screen {
            Some(screen) => screen.admitted(cx, &input)?,
            None => (input.clone(), functional::is_finite(cx, &input)?),
        };
        let (output, states) = self.forward(cx, &x, &valid, state)?;
        let answer = self.model.answer(cx, &output)?;
        let mut outputs = self.outputs(cx, &answer, &valid)?;
        outputs.extend(states);
        Ok((input, outputs))
    }

    fn forward(
        &self,
        cx: &Cx<'_>,
        x: &Tensor,
        valid: &Tensor,
        state: &StreamState,
    ) -> Result<(Output, Vec<(String, Tensor)>), ExportError> {
        if !self.extras.stream {
            return Ok((self.model.forward(cx, x, valid)?, Vec::new()));
        }
        let (output, after, values) = self.model.streamed(cx, x, valid, state)?;
        // Blocks are computed in the order of the forest; states are named in the order of their tasks.
        let find = |raw: &Raw| values.iter().find(|value| value.raw().data_ptr() == raw.data_ptr()).cloned();
        let named = ports(&after).into_iter().filter_map(|(port, _, raw)| Some((next(&port), find(&raw)?)));
        Ok((output, named.collect()))
    }

    /// Returns a mask (B, S, 1) of the series that have a history; `None` where there are no series.
    fn series_known(&self, cx: &Cx<'_>, valid: &Tensor) -> Result<Option<Tensor>, OpError> {
        let Some(columns) = self.histories.map(Histories::columns) else { return Ok(None) };
        // Each series gets the same number of inputs; a repeated input changes nothing.
        let most = columns.iter().map(Vec::len).max().unwrap_or(0);
        if most == 0 || columns.iter().any(Vec::is_empty) {
            return Ok(None);
        }
        let even = |own: &Vec<usize>| (0..most).map(|at| own[at % own.len()] as i64).collect::<Vec<i64>>();
        let places: Vec<i64> = columns.iter().flat_map(even).collect();
        let places = cx.constant(Raw::from_slice(&places));
        let own = functional::index_select(cx, &functional::cast(cx, valid, Kind::Float)?, 1, &places)?;
        let own = functional::reshape(cx, &own, &[valid.dim(0), columns.len() as i64, most as i64])?;
        functional::at_least(cx, &functional::max_dim(cx, &own, 2, true)?, 0.5).map(Some)
    }

    /// Names the outputs and sets them to NaN for rows without any input, series without history, and cells without
    /// training targets.
    fn outputs(&self, cx: &Cx<'_>, answer: &Answer, valid: &Tensor) -> Result<Vec<(String, Tensor)>, OpError> {
        let rows = valid.dim(0);
        let any = functional::max_dim(cx, &functional::cast(cx, valid, Kind::Float)?, 1, true)?;
        let known = functional::at_least(cx, &any, 0.5)?;
        let series = self.series_known(cx, valid)?;
        let nothing = cx.constant(Raw::from(f32::NAN));
        let shape: Vec<i64> = self.out_shape.iter().map(|size| *size as i64).collect();
        let cells: i64 = shape.iter().product();
        let masked = |value: &Tensor, levels: &[i64]| {
            let ones: Vec<i64> = levels.iter().map(|_| 1).collect();
            let mut value = value.clone();
            if let Some(blind) = &self.blind {
                value = functional::where_(cx, &cx.constant(blind.shallow_clone()), &nothing, &value)?;
            }
            let known = functional::reshape(cx, &known, &[&[rows], ones.as_slice(), &[1]].concat())?;
            let value = functional::reshape(cx, &value, &[&[rows], levels, &[cells]].concat())?;
            let value = functional::where_(cx, &known, &value, &nothing)?;
            let value = functional::reshape(cx, &value, &[&[rows], levels, shape.as_slice()].concat())?;
            let Some(series) = &series else { return Ok(value) };
            let series = functional::reshape(cx, series, &[&[rows], ones.as_slice(), &[series.dim(1), 1]].concat())?;
            functional::where_(cx, &series, &value, &nothing)
        };
        let mut outputs = vec![(Y.to_owned(), masked(&answer.point, &[])?)];
        if self.extras.quantiles && !answer.quantiles.is_empty() {
            let levels = answer.quantiles.len() as i64;
            let all = functional::stack(cx, &answer.quantiles.iter().collect::<Vec<_>>(), 1)?;
            outputs.push((QUANTILES.to_owned(), masked(&all, &[levels])?));
        }
        Ok(outputs)
    }
}

/// Returns the name of the output that is the next call's input `name`.
pub fn next(name: &str) -> String {
    format!("{NEXT}{name}")
}

/// Returns the states of a stream: port name, own name, values. Port names have ASCII letters, digits and underscores
/// only; a later name that would be equal gets a number as suffix.
fn ports(state: &StreamState) -> Vec<(String, String, Raw)> {
    let mut taken = BTreeSet::new();
    let mut port = |name: &str| {
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let numbered = (2..).map(|number| format!("{plain}_{number}"));
        let mut names = std::iter::once(plain.clone()).chain(numbered);
        names.find(|name| taken.insert(name.clone())).expect("numbers do not end")
    };
    state.named().into_iter().map(|(name, raw)| (port(&name), name, raw)).collect()
}
