//! A client of a worker that loads a model once and then answers one prediction request at a time (`enn_common::wire::serve`).

use crate::Error;
use crossbeam_channel::Receiver;
use enn_common::{
    config::train::Precision,
    wire::{
        message::PROTOCOL,
        serve::{ServeQuestion, ServeReply, ServeSetup, get, get_bytes, get_numbers},
    },
};
use enn_process::{
    WorkerSpec,
    piped::{PipeError, Piped},
};
use enn_serve::Answers;
use std::{
    io::{self, BufReader},
    path::{Path, PathBuf},
    process::ChildStdout,
    time::Duration,
};

pub(super) struct PredictClient {
    worker: Piped<Response>,
    /// Numbers in the state of a stream; 0 without streams.
    state: usize,
}

/// A reply with the arrays that follow it.
struct Response {
    reply: ServeReply,
    numbers: Vec<f32>,
    status: Vec<u8>,
}

/// The owner of the directory of temporary files.
#[derive(Debug, Clone, Copy)]
pub(super) enum ScratchDir<'a> {
    /// The worker owns the directory and removes it when it ends.
    Own(&'a Path),
    /// Several workers share the directory.
    Shared(&'a Path),
}

impl PredictClient {
    /// Starts a worker and waits until the model is loaded; with `stream` it also predicts rows of streams.
    pub(super) fn start(
        worker: &WorkerSpec,
        checkpoint: &Path,
        precision: Precision,
        stream: bool,
        scratch: ScratchDir<'_>,
    ) -> Result<Self, Error> {
        let (dir, scratch) = match scratch {
            ScratchDir::Own(dir) => (dir, Some(dir.to_owned())),
            ScratchDir::Shared(dir) => (dir, None),
        };
        let piped = Piped::start_reading(worker, "--serve", dir, receive).map_err(|error| match error {
            PipeError::Start(source) => Error::Read { path: worker.program.clone(), source },
            other => worker_error(other),
        })?;
        let mut client = Self { worker: piped, state: 0 };
        let checkpoint = checkpoint.to_owned();
        let threads = worker.threads;
        let device = worker.device_name().to_owned();
        client.send(&ServeSetup { protocol: PROTOCOL, checkpoint, device, threads, precision, scratch, stream })?;
        match client.receive()?.reply {
            ServeReply::Ready if !stream => Ok(client),
            ServeReply::Streaming { state } if stream => Ok(Self { state: state as usize, ..client }),
            other => Err(Error::Worker(format!("the worker sent {other:?} before the first request"))),
        }
    }

    /// Predicts a staged set; returns the chunk of the answer below `out`, and its digest.
    pub(super) fn ask(&mut self, staged: &Path, out: &Path) -> Result<(PathBuf, String), Error> {
        self.send(&ServeQuestion::Staged { staged: staged.to_owned(), out: out.to_owned() })?;
        match self.receive()?.reply {
            ServeReply::Answered { path, blake3 } => Ok((path, blake3)),
            other => Err(Error::Worker(format!("the worker sent {other:?} instead of an answer"))),
        }
    }

    /// Predicts rows of inputs in staged form, NaN where missing; returns the predictions row by row and the status of each (`RowStatus`).
    pub(super) fn predict_rows(&mut self, x: &[f32], rows: usize) -> Result<Answers, Error> {
        self.send(&ServeQuestion::Rows { rows: rows as u64 })?;
        self.add(x)?;
        match self.receive()? {
            Response { reply: ServeReply::Predicted { rows: answered, .. }, numbers, status }
                if answered == rows as u64 =>
            {
                Ok(Answers { values: numbers, status })
            }
            Response { reply, .. } => {
                Err(Error::Worker(format!("the worker sent {reply:?} instead of {rows} answers")))
            }
        }
    }

    /// Numbers in the state of a stream; 0 without streams.
    pub(super) const fn state(&self) -> usize {
        self.state
    }

    pub(super) fn set_wait(&mut self, wait: Duration) {
        self.worker.set_wait(wait);
    }

    /// Predicts the next row of each stream, given the states (rows, numbers); returns the predictions, and the states after them.
    pub(super) fn predict_next_rows(
        &mut self,
        x: &[f32],
        states: &[f32],
        rows: usize,
    ) -> Result<(Answers, Vec<f32>), Error> {
        self.send(&ServeQuestion::Stream { rows: rows as u64 })?;
        self.add(x)?;
        self.add(states)?;
        match self.receive()? {
            Response {
                reply: ServeReply::StreamPredicted { rows: answered, numbers: each, state },
                mut numbers,
                status,
            } if answered == rows as u64 && state == self.state as u64 => {
                let after = numbers.split_off(rows * each as usize);
                Ok((Answers { values: numbers, status }, after))
            }
            Response { reply, .. } => {
                Err(Error::Worker(format!("the worker sent {reply:?} instead of {rows} answers")))
            }
        }
    }

    fn add(&mut self, numbers: &[f32]) -> Result<(), Error> {
        self.worker.add(numbers).map_err(|error| self.last_words(error))
    }

    /// Returns the error of a worker that takes no more input: its own message if it has ended.
    fn last_words(&mut self, error: PipeError) -> Error {
        match error {
            PipeError::Late(_) => worker_error(error),
            error => self.receive().err().unwrap_or_else(|| worker_error(error)),
        }
    }

    /// Returns a channel that is disconnected once the worker has ended.
    pub(super) fn ended(&self) -> &Receiver<()> {
        self.worker.ended()
    }

    pub(super) fn end(self) -> Result<(), Error> {
        self.worker.end().map_err(worker_error)
    }

    fn send<T: serde::Serialize>(&mut self, message: &T) -> Result<(), Error> {
        self.worker.say(message).map_err(|error| self.last_words(error))
    }

    /// Receives the next reply and logs the warnings before it.
    fn receive(&mut self) -> Result<Response, Error> {
        loop {
            match self.worker.receive().map_err(worker_error)? {
                Response { reply: ServeReply::Warned { message }, .. } => tracing::warn!("{message}"),
                Response { reply: ServeReply::Failed { error }, .. } => return Err(Error::Worker(error)),
                response => return Ok(response),
            }
        }
    }
}

fn worker_error(error: PipeError) -> Error {
    match error {
        PipeError::Late(time) => Error::Late(time),
        other => Error::Worker(other.to_string()),
    }
}

fn receive(output: &mut BufReader<ChildStdout>) -> io::Result<Option<Response>> {
    let Some(reply) = get::<ServeReply>(output)? else { return Ok(None) };
    let mut numbers = Vec::new();
    let mut status = Vec::new();
    let follows = match reply {
        ServeReply::Predicted { rows, numbers } => Some((rows, numbers)),
        ServeReply::StreamPredicted { rows, numbers, state } => Some((rows, numbers.saturating_add(state))),
        _ => None,
    };
    if let Some((rows, each)) = follows {
        numbers = get_numbers(output, rows.saturating_mul(each))?;
        status = get_bytes(output, rows)?;
    }
    Ok(Some(Response { reply, numbers, status }))
}
