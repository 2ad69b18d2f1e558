//! An exported model behind HTTP: what lies beside it says how its rows are read, and its own runtime computes.

use super::{
    super::{export::tools, launch, predict::configured},
    ServeOptions,
};
use crate::{
    Error,
    export::{AtWork, Packed, Said},
    facts::Facts,
    serve::{self, Answers, Engine, Failure, Lost, Start},
};
use crossbeam_channel::Receiver;
use enn_export::ExportError;
use std::path::Path;

/// The model, and how to start its runtime.
pub(super) fn prepared(
    packed: Packed,
    (facts, options): (&Facts, &ServeOptions),
    scratch: &Path,
) -> Result<(serve::Subject, Box<Start>), Error> {
    packed.takes(options.precision)?;
    let config = super::super::change_config(&configured(&packed), &options.overrides, facts)?;
    let tools = tools(launch::runtime_worker(&packed, &config, facts, options.workers.max(1))?, facts);
    let subject = serve::Subject {
        run: packed.said.model.run.clone(),
        step: packed.said.model.step,
        data: packed.data.clone(),
        meta: packed.said.staged.clone(),
        levels: packed.said.levels.clone(),
        scratch: scratch.to_owned(),
    };
    let place = scratch.to_owned();
    let time = options.limits.answer_wait;
    let wants_streams = options.stream;
    let start = move || -> Result<Box<dyn Engine>, Failure> {
        let mut engine = AtWork::start(&packed, &tools, &place, false)?;
        if wants_streams && engine.state() == 0 {
            let why = "no state of a stream goes in and comes out\nhint: export it with --stream".to_owned();
            return Err(ExportError::Refused { what: "enn", path: packed.path.clone(), why }.into());
        }
        engine.set_time(time);
        Ok(Box::new(Runtime(engine)))
    };
    Ok((subject, Box::new(start)))
}

/// An artifact at work.
struct Runtime(AtWork);

impl Engine for Runtime {
    fn answer(&mut self, x: &[f32], rows: usize) -> Result<Answers, Lost> {
        self.0.answer(x, rows).map(answers).map_err(lost)
    }

    fn state(&self) -> usize {
        self.0.state()
    }

    fn go_on(&mut self, x: &[f32], states: &[f32], rows: usize) -> Result<(Answers, Vec<f32>), Lost> {
        self.0.go_on(x, states, rows).map(|(said, after)| (answers(said), after)).map_err(lost)
    }

    fn ended(&self) -> Receiver<()> {
        self.0.ended()
    }
}

fn answers(Said { values, status }: Said) -> Answers {
    Answers { values, status }
}

fn lost(error: ExportError) -> Lost {
    match error {
        ExportError::Late { time, .. } => Lost::Late(time),
        other => Lost::Ended(other.into()),
    }
}
