//! Prediction of batches as they come: a worker without a run, asked on its standard input and answering on its standard output
//! (`enn_common::wire::serve`). It ends when its input does.
//!
//! **Invariant:** what a batch is answered depends on it and on the first batch only, by which the precision is settled.

use super::{
    Own, SessionError, boot,
    dataset::Dataset,
    kernels::{KernelTask, Kernels},
    predict::{Predictor, fits},
    report::Reporter,
    saved::SavedModel,
};
use crate::data::{View, prefetch::Arrays};
use enn_common::wire::{
    client::ClientError,
    control::Phase,
    message::{FromWorker, PROTOCOL},
    serve::{Begin, Question, Reply, get, get_numbers, put, put_numbers},
};
use std::{
    io::{BufRead, Write},
    path::PathBuf,
};

/// Nobody hears what is told; the log does.
struct Log;

impl Reporter for Log {
    fn send(&self, message: FromWorker) -> Result<(), ClientError> {
        tracing::debug!(?message, "told");
        Ok(())
    }

    fn mark(&self, _phase: Phase, _step: u64) {}

    fn stop_requested(&self) -> bool {
        false
    }
}

/// Directory of what is exchanged, gone when it is dropped: whoever asked may have been killed.
pub(super) struct Scratch(pub(super) Option<PathBuf>);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(dir) = &self.0 {
            // It is gone already when whoever asked has ended well.
            let _gone = std::fs::remove_dir_all(dir);
        }
    }
}

/// Answers until `input` ends, with modules of the program's own.
///
/// # Errors
/// What ended it early; whoever asks has been told.
pub fn serve(mut input: impl BufRead, mut output: impl Write, own: &Own) -> Result<(), SessionError> {
    let done = answer_all(&mut input, &mut output, own);
    if let Err(error) = &done {
        let error = error.sentence();
        put(&mut output, &Reply::Failed { error }).map_err(SessionError::Pipe)?;
    }
    done
}

fn answer_all(input: &mut impl BufRead, output: &mut impl Write, own: &Own) -> Result<(), SessionError> {
    let Some(begin) = get::<Begin>(input).map_err(SessionError::Pipe)? else { return Ok(()) };
    if begin.protocol != PROTOCOL {
        let error = format!("enn speaks protocol {}, this worker {PROTOCOL}", begin.protocol);
        return Err(SessionError::Refused { error });
    }
    let _scratch = Scratch(begin.scratch);
    tch::set_num_threads(begin.threads.max(1).cast_signed());
    let device = boot::named_device(&begin.device, 0)?;
    let saved = SavedModel::open(&begin.checkpoint)?;
    let kernels = Kernels::new(&saved.config, &KernelTask::default(), &Log)?;
    let mut predictor = Predictor::new((&saved, &own.models), &kernels, device, begin.precision)?;
    put(output, &Reply::Ready).map_err(SessionError::Pipe)?;
    let mut guarded = false;
    while let Some(question) = get::<Question>(input).map_err(SessionError::Pipe)? {
        let mut guard = |view: &View<'_>, output: &mut _| -> Result<(), SessionError> {
            if !guarded && let Some(message) = predictor.guard(view)? {
                put(output, &Reply::Warned { message }).map_err(SessionError::Pipe)?;
            }
            guarded = true;
            Ok(())
        };
        match question {
            Question::Staged { staged, out } => {
                let data = Dataset::open(&staged)?;
                fits(&staged, data.staged.0.meta(), &saved.meta)?;
                guard(&data.staged.view()?, output)?;
                let written = predictor.chunk(&data, 0..data.staged.0.rows() as u64, &out, &Log)?;
                let reply = Reply::Answered { path: written.path, blake3: written.blake3 };
                put(output, &reply).map_err(SessionError::Pipe)?;
            }
            Question::Rows { rows } => {
                let width = saved.meta.features.len();
                let x = get_numbers(input, rows.saturating_mul(width as u64)).map_err(SessionError::Pipe)?;
                let mask: Vec<u8> = x.iter().map(|value| u8::from(!value.is_nan())).collect();
                let view = View::inputs(rows as usize, width, &x, &mask)?;
                guard(&view, output)?;
                let told = predictor.answers(&view, 0..rows, &Log)?;
                let numbers = told.values.len() as u64 / rows.max(1);
                put(output, &Reply::Told { rows, numbers }).map_err(SessionError::Pipe)?;
                put_numbers(output, &told.values, &told.status).map_err(SessionError::Pipe)?;
            }
        }
    }
    Ok(())
}
