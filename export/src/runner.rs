//! An artifact at work in its runtime.

use crate::ExportError;
use crossbeam_channel::{Receiver, never};
use std::time::Duration;

/// An input or output of a model: f32, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Of the port.
    pub name: String,
    pub shape: Vec<usize>,
    /// Elements.
    pub values: Vec<f32>,
}

/// A loaded artifact.
pub trait Runner {
    /// The runtime and its version, e.g. `onnxruntime 1.31.1`.
    fn version(&self) -> String;

    /// Longest time for an answer from now on: what takes longer is [`ExportError::Late`], and then is not to be asked again. A runtime
    /// in this process takes the time it takes.
    fn set_time(&mut self, _time: Duration) {}

    /// Is disconnected once the runtime has ended by itself, which one in this process never does.
    fn ended(&self) -> Receiver<()> {
        never()
    }

    /// The outputs, in the graph's order, for inputs that have the names of the graph's.
    ///
    /// # Errors
    /// What the runtime says.
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError>;
}
