//! Who computes answers: a worker process, or a runtime that holds an exported model.

use crossbeam_channel::Receiver;
use std::time::Duration;

/// Why an engine cannot go on, in a sentence.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Starts another engine of the same kind; it has loaded the model when this returns.
pub type Start = dyn Fn() -> Result<Box<dyn Engine>, Failure> + Send + Sync;

/// Why there is no answer. The engine is not asked again.
#[derive(Debug)]
pub enum Lost {
    /// It took longer than it may, and may compute still.
    Late(Duration),
    /// It cannot go on.
    Ended(Failure),
}

/// A loaded model. It stays on the thread that has started it.
pub trait Engine {
    /// What is said of rows of inputs (rows, F), as they are staged, NaN where missing.
    ///
    /// # Errors
    /// Why there is no answer.
    fn answer(&mut self, x: &[f32], rows: usize) -> Result<Answers, Lost>;

    /// Numbers that a stream carries from row to row; 0 where there are no streams.
    fn state(&self) -> usize {
        0
    }

    /// What is said of the next row of as many streams, with their states (rows, numbers) before it, and their states after it. All zero
    /// is the state before the first row.
    ///
    /// # Errors
    /// Why there is no answer.
    fn go_on(&mut self, x: &[f32], _states: &[f32], rows: usize) -> Result<(Answers, Vec<f32>), Lost> {
        self.answer(x, rows).map(|answers| (answers, Vec::new()))
    }

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
    /// Those of the first `rows`, taken off.
    pub(super) fn split(&mut self, rows: usize) -> Self {
        let numbers = self.values.len() / self.status.len().max(1);
        let values = self.values.split_off(rows * numbers);
        let status = self.status.split_off(rows);
        Self {
            values: std::mem::replace(&mut self.values, values),
            status: std::mem::replace(&mut self.status, status),
        }
    }

    /// Others behind them.
    pub(super) fn append(&mut self, mut others: Self) {
        self.values.append(&mut others.values);
        self.status.append(&mut others.status);
    }
}
