//! One request's rows on their way through the engines, as a whole or in parts.

use super::{budget::Share, engine::Answers, problem::Problem, streams::Turn};
use std::time::Instant;

/// Who waits for an answer.
pub(super) trait Reply: Send {
    /// Whether somebody still does.
    fn is_wanted(&self) -> bool;
    /// Tells it, and hands over the bytes that are held for it.
    fn tell(self: Box<Self>, answer: Result<(Answers, Share), Problem>);
}

/// Rows to be computed for somebody.
pub(super) struct EngineJob {
    /// Inputs (rows, F).
    x: Vec<f32>,
    rows: usize,
    pub(super) reply: Box<dyn Reply>,
    /// The bytes that it holds, those of its answers among them.
    share: Share,
    /// The stream whose next rows these are; without one each row stands alone.
    turn: Option<Turn>,
    /// The state of the stream after the rows that are done.
    pub(super) state: Vec<f32>,
    /// The answers that are there.
    pub(super) done: Answers,
    /// Rows that are computed next.
    pub(super) part: usize,
}

impl EngineJob {
    pub(super) fn new(x: Vec<f32>, rows: usize, reply: Box<dyn Reply>, share: Share, turn: Option<Turn>) -> Self {
        let state = turn.as_ref().map_or_else(Vec::new, |turn| turn.state().to_vec());
        Self { x, rows, reply, share, turn, state, done: Answers::default(), part: 0 }
    }

    pub(super) const fn is_stream(&self) -> bool {
        self.turn.is_some()
    }

    /// Rows that are not computed yet.
    pub(super) fn left(&self) -> usize {
        self.rows - self.done.status.len()
    }

    /// Inputs of the next rows.
    fn inputs(&self, rows: usize) -> &[f32] {
        let width = self.x.len() / self.rows.max(1);
        let first = self.done.status.len();
        &self.x[first * width..(first + rows) * width]
    }

    /// Inputs of the rows that are computed next.
    pub(super) fn part_inputs(&self) -> &[f32] {
        self.inputs(self.part)
    }

    /// Inputs of the next row.
    pub(super) fn next_row(&self) -> &[f32] {
        self.inputs(1)
    }

    /// Tells the answers, which are all there. A stream goes on from the state after them if somebody hears them.
    pub(super) fn finish(self) {
        if let Some(turn) = self.turn {
            if !self.reply.is_wanted() {
                self.reply.tell(Err(Problem::Closing));
                return;
            }
            turn.done(self.state, self.rows as u64, Instant::now());
        }
        self.reply.tell(Ok((self.done, self.share)));
    }

    /// Tells why there is no answer; a stream is as it was before.
    pub(super) fn refuse(self, why: Problem) {
        self.reply.tell(Err(why));
    }
}
