//! The rows of one request in the queue of the engines, as a whole or in parts.

use super::{budget::Share, engine::Answers, problem::Problem, streams::StreamLease};
use std::time::Instant;

/// The receiver of an answer.
pub(super) trait Reply: Send {
    /// Returns whether the client still waits.
    fn is_waiting(&self) -> bool;
    /// Sends the answer with the bytes that are reserved for it.
    fn send(self: Box<Self>, answer: Result<(Answers, Share), Problem>);
}

/// Rows that are computed for a request.
pub(super) struct EngineJob {
    /// The inputs (rows, F).
    x: Vec<f32>,
    rows: usize,
    pub(super) reply: Box<dyn Reply>,
    /// The reserved bytes of inputs and answers.
    share: Share,
    /// The stream that the rows continue; `None` for independent rows.
    lease: Option<StreamLease>,
    /// The state of the stream after the finished rows.
    pub(super) state: Vec<f32>,
    /// The answers so far.
    pub(super) done: Answers,
    /// The number of rows that are computed next.
    pub(super) part: usize,
}

impl EngineJob {
    pub(super) fn new(
        x: Vec<f32>,
        rows: usize,
        reply: Box<dyn Reply>,
        share: Share,
        lease: Option<StreamLease>,
    ) -> Self {
        let state = lease.as_ref().map_or_else(Vec::new, |lease| lease.state().to_vec());
        Self { x, rows, reply, share, lease, state, done: Answers::default(), part: 0 }
    }

    pub(super) const fn is_stream(&self) -> bool {
        self.lease.is_some()
    }

    /// Returns the number of rows that are not computed yet.
    pub(super) fn left(&self) -> usize {
        self.rows - self.done.status.len()
    }

    /// Returns the inputs of the next rows.
    pub(super) fn inputs(&self, rows: usize) -> &[f32] {
        let width = self.x.len() / self.rows.max(1);
        let first = self.done.status.len();
        &self.x[first * width..(first + rows) * width]
    }

    /// Sends the complete answers. A stream continues from the new state if the client still waits.
    pub(super) fn finish(self) {
        if let Some(lease) = self.lease {
            if !self.reply.is_waiting() {
                self.reply.send(Err(Problem::Closing));
                return;
            }
            lease.done(self.state, self.rows as u64, Instant::now());
        }
        self.reply.send(Ok((self.done, self.share)));
    }

    /// Sends an error; a stream keeps its previous state.
    pub(super) fn refuse(self, why: Problem) {
        self.reply.send(Err(why));
    }
}
