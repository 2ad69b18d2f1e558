//! The interface of engines: a worker process, or the runtime of an exported model.

use crossbeam_channel::Receiver;
use std::time::Duration;

/// The cause of an engine's failure, in a sentence.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Starts an engine; it has loaded the model when this returns.
pub type Start = dyn Fn() -> Result<Box<dyn Engine>, Failure> + Send + Sync;

/// Why an engine gave no answer. The engine is not used again.
#[derive(Debug)]
pub enum EngineError {
    /// The engine exceeded the time limit and may still be computing.
    Late(Duration),
    /// The engine has failed.
    Ended(Failure),
}

/// A loaded model, which stays on the thread that started it.
pub trait Engine {
    /// Predicts rows of inputs (rows, F) in staged form, NaN where missing.
    ///
    /// # Errors
    /// The engine gives no answer.
    fn answer(&mut self, x: &[f32], rows: usize) -> Result<Answers, EngineError>;

    /// Returns the number of values in the state of a stream; 0 where there are no streams.
    fn state(&self) -> usize {
        0
    }

    /// Predicts the next row of each stream, given the states (rows, numbers); returns the predictions and the states after them. The state
    /// before the first row is all zero.
    ///
    /// # Errors
    /// The engine gives no answer.
    fn answer_next(&mut self, x: &[f32], _states: &[f32], rows: usize) -> Result<(Answers, Vec<f32>), EngineError> {
        self.answer(x, rows).map(|answers| (answers, Vec::new()))
    }

    /// Returns a channel that is disconnected once the engine has ended by itself.
    fn ended(&self) -> Receiver<()>;
}

/// The predictions of some rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answers {
    /// Predicted numbers, row-major, in the user's units; NaN where there is none.
    pub values: Vec<f32>,
    /// The status of each row.
    pub status: Vec<u8>,
}

impl Answers {
    /// Removes and returns the answers of the first `rows`.
    pub(super) fn split(&mut self, rows: usize) -> Self {
        let numbers = self.values.len() / self.status.len().max(1);
        let values = self.values.split_off(rows * numbers);
        let status = self.status.split_off(rows);
        Self {
            values: std::mem::replace(&mut self.values, values),
            status: std::mem::replace(&mut self.status, status),
        }
    }

    pub(super) fn append(&mut self, mut others: Self) {
        self.values.append(&mut others.values);
        self.status.append(&mut others.status);
    }
}
