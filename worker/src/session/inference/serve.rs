//! Prediction of batches as they come: a worker without a run, asked on its standard input and answering on its standard output
//! (`enn_common::wire::serve`). It ends when its input does.
//!
//! **Invariant:** what a batch is answered depends on it and on the batches up to the first whose rows differ, by which the precision is settled.

use super::predict::{Predictor, fits};
use super::stream_state::StreamLayout;
use crate::data::View;
use crate::session::kernels::{KernelTask, Kernels};
use crate::session::{
    Own, SessionError, boot, checkpointing::saved_model::SavedModel, dataset::Dataset, report::Reporter,
};
use enn_common::wire::{
    client::ClientError,
    control::Phase,
    message::{FromWorker, PROTOCOL},
    serve::{ServeQuestion, ServeReply, ServeSetup, get, get_numbers, put, put_numbers},
};
use enn_model::block::StreamState;
use std::{
    io::{BufRead, Write},
    path::PathBuf,
};
use tch::Device;

/// A reporter that writes messages to the log.
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

/// Directory of exchanged files, removed on drop: the program that asked may have been killed.
pub(crate) struct Scratch(pub(crate) Option<PathBuf>);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(dir) = &self.0 {
            // It is gone already if the program that asked has ended well.
            let _gone = std::fs::remove_dir_all(dir);
        }
    }
}

/// Answers until `input` ends, with modules of the program's own.
pub fn serve(mut input: impl BufRead, mut output: impl Write, own: &Own) -> Result<(), SessionError> {
    let done = answer_all(&mut input, &mut output, own);
    if let Err(error) = &done {
        let error = error.sentence();
        put(&mut output, &ServeReply::Failed { error }).map_err(SessionError::Pipe)?;
    }
    done
}

fn answer_all(input: &mut impl BufRead, output: &mut impl Write, own: &Own) -> Result<(), SessionError> {
    let Some(begin) = get::<ServeSetup>(input).map_err(SessionError::Pipe)? else { return Ok(()) };
    if begin.protocol != PROTOCOL {
        let error = format!("enn speaks protocol {}, this worker {PROTOCOL}", begin.protocol);
        return Err(SessionError::Refused { error });
    }
    let _scratch = Scratch(begin.scratch);
    tch::set_num_threads(begin.threads.max(1).cast_signed());
    let device = boot::named_device(&begin.device, 0)?;
    let saved = SavedModel::open(&begin.checkpoint)?;
    let kernels = Kernels::new(&saved.config, &KernelTask::default(), &Log)?;
    let mut predictor = Predictor::new(&saved, &own.models, &kernels, device, begin.precision)?;
    let width = saved.meta.features.len();
    let layout = if begin.stream { Some(stream_layout(&predictor, width, device)?) } else { None };
    let ready =
        layout.as_ref().map_or(ServeReply::Ready, |layout| ServeReply::Streaming { state: layout.numbers() as u64 });
    put(output, &ready).map_err(SessionError::Pipe)?;
    let mut settled = false;
    while let Some(question) = get::<ServeQuestion>(input).map_err(SessionError::Pipe)? {
        let mut guard = |view: &View<'_>, output: &mut _| -> Result<(), SessionError> {
            if settled {
                return Ok(());
            }
            let guarded = predictor.guard(view, &Log)?;
            settled = guarded.settled;
            guarded
                .warning
                .map_or(Ok(()), |message| put(output, &ServeReply::Warned { message }).map_err(SessionError::Pipe))
        };
        match question {
            ServeQuestion::Staged { staged, out } => {
                let data = Dataset::open(&staged)?;
                fits(&staged, data.staged.0.meta(), &saved.meta)?;
                guard(&data.staged.inputs()?, output)?;
                let written = predictor.chunk(&data, 0..data.staged.0.rows() as u64, &out, &Log)?;
                let reply = ServeReply::Answered { path: written.path, blake3: written.blake3 };
                put(output, &reply).map_err(SessionError::Pipe)?;
            }
            ServeQuestion::Rows { rows } => {
                let (x, mask) = inputs(input, rows, width)?;
                let view = View::inputs(rows as usize, width, &x, &mask)?;
                guard(&view, output)?;
                let answers = predictor.answers(&view, 0..rows, &Log)?;
                let numbers = answers.values.len() as u64 / rows.max(1);
                put(output, &ServeReply::Predicted { rows, numbers }).map_err(SessionError::Pipe)?;
                put_numbers(output, &answers.values, &answers.status).map_err(SessionError::Pipe)?;
            }
            ServeQuestion::Stream { rows } => {
                let (x, mask) = inputs(input, rows, width)?;
                let no_streams = "rows of streams are asked for, and no streams were begun";
                let refused = || SessionError::Refused { error: no_streams.to_owned() };
                let layout = layout.as_ref().ok_or_else(refused)?;
                let state = layout.numbers();
                let before = get_numbers(input, rows.saturating_mul(state as u64)).map_err(SessionError::Pipe)?;
                let view = View::inputs(rows as usize, width, &x, &mask)?;
                let (answers, after) = predictor.streamed(&view, &layout.state(&before, rows as usize)?)?;
                let numbers = answers.values.len() as u64 / rows.max(1);
                put(output, &ServeReply::StreamPredicted { rows, numbers, state: state as u64 })
                    .map_err(SessionError::Pipe)?;
                let all = [answers.values, layout.numbers_of(&after)?].concat();
                put_numbers(output, &all, &answers.status).map_err(SessionError::Pipe)?;
            }
        }
    }
    Ok(())
}

/// The inputs that follow a question, and which of them are there.
fn inputs(input: &mut impl BufRead, rows: u64, width: usize) -> Result<(Vec<f32>, Vec<u8>), SessionError> {
    let x = get_numbers(input, rows.saturating_mul(width as u64)).map_err(SessionError::Pipe)?;
    let mask = x.iter().map(|value| u8::from(!value.is_nan())).collect();
    Ok((x, mask))
}

/// Finds the state of the model's streams, by a row without inputs.
fn stream_layout(predictor: &Predictor<'_>, width: usize, device: Device) -> Result<StreamLayout, SessionError> {
    let x = vec![f32::NAN; width];
    let mask = vec![0; width];
    let (_, after) = predictor.streamed(&View::inputs(1, width, &x, &mask)?, &StreamState::default())?;
    let layout = StreamLayout::of(&after, device);
    if layout.numbers() == 0 {
        let error = "the model carries nothing from call to call: no task of it is temporal".to_owned();
        return Err(SessionError::Refused { error });
    }
    Ok(layout)
}
