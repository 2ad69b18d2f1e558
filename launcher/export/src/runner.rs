//! The interface of a runtime with an artifact.

use crate::ExportError;
use crossbeam_channel::{Receiver, never};
use std::time::Duration;

/// An input or output of a model: f32, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

impl Tensor {
    /// Finds the input of a name.
    ///
    /// # Errors
    /// It was not given; the error says so.
    pub fn named<'t>(inputs: &'t [Self], name: &str) -> Result<&'t Self, String> {
        inputs.iter().find(|input| input.name == name).ok_or_else(|| format!("input {name} was not given"))
    }
}

/// Names of the inputs and outputs of an artifact, in the graph's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports {
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
}

/// A loaded artifact.
pub trait Runner {
    /// Returns the name and version of the runtime, e.g. `onnxruntime 1.31.1`.
    fn version(&self) -> String;

    /// Sets the longest time of later calls: a longer one is [`ExportError::Late`], after which the runner must not be used. A runtime
    /// in this process ignores the limit.
    fn set_time(&mut self, _time: Duration) {}

    /// Returns a channel that is disconnected once the runtime has ended by itself, which one in this process never does.
    fn ended(&self) -> Receiver<()> {
        never()
    }

    /// Returns the outputs, in the graph's order, for inputs that have the names of the graph's.
    ///
    /// # Errors
    /// Any error of the runtime.
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError>;
}
