//! Who computes answers: a worker process, or a runtime that holds an exported model.

use crossbeam_channel::Receiver;
use enn_common::artifact::chunk::RowStatus;

/// Why an engine cannot go on, in a sentence.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Starts another engine of the same kind; it has loaded the model when this returns.
pub type Start = dyn Fn() -> Result<Box<dyn Engine>, Failure> + Send + Sync;

/// A loaded model. It stays on the thread that has started it.
pub trait Engine {
    /// What is said of rows of inputs (rows, F), as they are staged, NaN where missing.
    ///
    /// # Errors
    /// Why there is no answer. The engine is not asked again.
    fn answer(&mut self, x: &[f32], rows: usize) -> Result<Answers, Failure>;

    /// Is disconnected once the engine has ended by itself.
    fn ended(&self) -> Receiver<()>;
}

/// What is said of some rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answers {
    /// Row-major, the user's units; NaN where there is none.
    pub values: Vec<f32>,
    /// What became of each row.
    pub status: Vec<u8>,
}

impl Answers {
    /// By the inputs and the outputs of a runtime that knows nothing of rows: one without any input has no answer.
    pub fn judged(x: &[f32], mut values: Vec<f32>, rows: usize) -> Self {
        let width = |all: usize| all / rows.max(1);
        let (inputs, outputs) = (width(x.len()).max(1), width(values.len()).max(1));
        let judge = |(x, values): (&[f32], &mut [f32])| {
            if x.iter().all(|value| !value.is_finite()) {
                values.fill(f32::NAN);
                RowStatus::NoInput as u8
            } else if values.iter().all(|value| value.is_finite()) {
                RowStatus::Predicted as u8
            } else {
                RowStatus::NotFinite as u8
            }
        };
        let status = x.chunks(inputs).zip(values.chunks_mut(outputs)).map(judge).collect();
        Self { values, status }
    }

    /// Those of the first `rows`, taken off.
    pub(super) fn split(&mut self, rows: usize) -> Self {
        let numbers = self.values.len() / self.status.len().max(1);
        let (values, status) = (self.values.split_off(rows * numbers), self.status.split_off(rows));
        Self {
            values: std::mem::replace(&mut self.values, values),
            status: std::mem::replace(&mut self.status, status),
        }
    }
}
