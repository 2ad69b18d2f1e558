//! Serves an exported model by HTTP: its sidecar file says how rows are read, and its own runtime computes.

use super::{
    super::{export::tools, launch, predict::configured},
    ServeOptions,
};
use crate::{
    Error,
    export::{ArtifactRunner, Packed, Predictions},
    facts::Facts,
};
use crossbeam_channel::Receiver;
use enn_export::ExportError;
use enn_serve::{Answers, Engine, EngineError, Failure, Start};
use std::path::Path;

/// Returns the model, and a function that starts its runtime.
pub(super) fn prepared(
    packed: Packed,
    facts: &Facts,
    options: &ServeOptions,
    scratch: &Path,
) -> Result<(enn_serve::Subject, Box<Start>), Error> {
    packed.takes(options.precision)?;
    let config = super::super::change_config(&configured(&packed), &options.overrides, facts)?;
    let tools = tools(launch::runtime_worker(&packed, &config, facts, options.workers.max(1))?, facts);
    let subject = enn_serve::Subject {
        run: packed.sidecar.model.run.clone(),
        step: packed.sidecar.model.step,
        data: packed.data.clone(),
        meta: packed.sidecar.staged.clone(),
        levels: packed.sidecar.levels.clone(),
        scratch: scratch.to_owned(),
    };
    let place = scratch.to_owned();
    let time = options.limits.answer_wait;
    let wants_streams = options.stream;
    let start = move || -> Result<Box<dyn Engine>, Failure> {
        let mut engine = ArtifactRunner::start(&packed, &tools, &place, false)?;
        if wants_streams && engine.state() == 0 {
            let why = "no state of a stream goes in and comes out\nhint: export it with --stream".to_owned();
            return Err(ExportError::Refused { what: "enn", path: packed.path.clone(), why }.into());
        }
        engine.set_time(time);
        Ok(Box::new(Runtime(engine)))
    };
    Ok((subject, Box::new(start)))
}

/// A running artifact as an engine of the server.
struct Runtime(ArtifactRunner);

impl Engine for Runtime {
    fn answer(&mut self, x: &[f32], rows: usize) -> Result<Answers, EngineError> {
        self.0.predict(x, rows).map(answers).map_err(lost)
    }

    fn state(&self) -> usize {
        self.0.state()
    }

    fn answer_next(&mut self, x: &[f32], states: &[f32], rows: usize) -> Result<(Answers, Vec<f32>), EngineError> {
        self.0.continue_stream(x, states, rows).map(|(predictions, after)| (answers(predictions), after)).map_err(lost)
    }

    fn ended(&self) -> Receiver<()> {
        self.0.ended()
    }
}

fn answers(predictions: Predictions) -> Answers {
    Answers { values: predictions.values, status: predictions.status }
}

fn lost(error: ExportError) -> EngineError {
    match error {
        ExportError::Late { time, .. } => EngineError::Late(time),
        other => EngineError::Ended(other.into()),
    }
}
