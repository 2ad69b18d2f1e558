//! A worker that predicts what it is asked (`enn_common::wire::serve`): loaded once, then a question at a time.

use super::piped::{PipeError, Piped, device};
use crate::{Error, agent::WorkerSpec};
use enn_common::{
    config::train::Precision,
    wire::{
        message::PROTOCOL,
        serve::{Begin, Question, Reply},
    },
};
use std::path::{Path, PathBuf};

/// The worker.
pub(super) struct Oracle(Piped<Reply>);

impl Oracle {
    /// Starts a worker and waits until the model is loaded. What is in `scratch` goes when it ends.
    pub(super) fn start(
        worker: &WorkerSpec,
        checkpoint: &Path,
        precision: Precision,
        scratch: &Path,
    ) -> Result<Self, Error> {
        let mut oracle = Self(Piped::start(worker, "--serve", scratch).map_err(|error| match error {
            PipeError::Start(source) => Error::Read { path: worker.program.clone(), source },
            other => told(other),
        })?);
        let (checkpoint, threads) = (checkpoint.to_owned(), worker.threads);
        let scratch = Some(scratch.to_owned());
        oracle.say(&Begin { protocol: PROTOCOL, checkpoint, device: device(worker), threads, precision, scratch })?;
        match oracle.hear()? {
            Reply::Ready => Ok(oracle),
            other => Err(Error::Worker(format!("the worker said {other:?} before it was asked"))),
        }
    }

    /// Asks for predictions of a staged set; the chunk of the answer below `out`, and its digest.
    pub(super) fn ask(&mut self, staged: &Path, out: &Path) -> Result<(PathBuf, String), Error> {
        self.say(&Question { staged: staged.to_owned(), out: out.to_owned() })?;
        match self.hear()? {
            Reply::Answered { path, blake3 } => Ok((path, blake3)),
            other => Err(Error::Worker(format!("the worker said {other:?} instead of an answer"))),
        }
    }

    /// Lets the worker end.
    pub(super) fn end(self) -> Result<(), Error> {
        self.0.end().map_err(told)
    }

    fn say<T: serde::Serialize>(&mut self, line: &T) -> Result<(), Error> {
        match self.0.say(line) {
            // It has ended: its last words say why.
            Err(error) => Err(self.hear().err().unwrap_or_else(|| told(error))),
            Ok(()) => Ok(()),
        }
    }

    /// The next reply that is no warning.
    fn hear(&mut self) -> Result<Reply, Error> {
        loop {
            match self.0.hear().map_err(told)? {
                Reply::Warned { message } => tracing::warn!("{message}"),
                Reply::Failed { error } => return Err(Error::Worker(error)),
                reply => return Ok(reply),
            }
        }
    }
}

fn told(error: PipeError) -> Error {
    Error::Worker(error.to_string())
}
