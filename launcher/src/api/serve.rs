//! `serve`: serves a run's model by HTTP with worker processes, or an exported model with its own runtime.

mod artifact;
mod options;

pub use options::ServeOptions;

use super::{
    launch,
    predict::{PredictOptions, Subject},
    predict_client::{PredictClient, ScratchDir},
    work_dir::WorkDir,
};
use crate::{
    Error,
    error::Usage,
    export::{Packed, is_packed},
    facts::Facts,
};
use crossbeam_channel::Receiver;
use enn_process::{STOP_SIGNALS, Signals, next_signal};
use enn_serve::{Answers, Drained, Engine, EngineError, Failure, ServeError, Server, Settings, Start, Token};
use nix::sys::signal::Signal;
use std::{io, path::Path};

/// Directory of temporary files of requests for exported models, below the user's cache directory.
const SCRATCH: &str = "serve";

/// The end of a server: its signal and requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    pub signal: Signal,
    /// The number of open requests that were finished or cancelled.
    pub drained: Drained,
}

/// Serves the newest checkpoint of the run directory `model` (its best weights), or the exported model `model`, until a signal ends it;
/// `ready` is called once the server listens and the first worker is ready.
///
/// # Errors
/// There is no complete checkpoint, the address is taken, or a worker does not start.
pub fn serve(
    model: &Path,
    facts: &Facts,
    options: &ServeOptions,
    ready: &mut dyn FnMut(&Server) -> Result<(), Error>,
) -> Result<Served, Error> {
    let token = options.token_file.as_ref().map(|path| Token::read(&facts.cwd.join(path)));
    let token = token.transpose().map_err(ServeError::from)?;
    let system = |what| move |source| Error::Serve(ServeError::System { what, source });
    // Signals are handled before anything is started that must not be left running.
    let signals = Signals::install(&STOP_SIGNALS).map_err(system("handle signals"))?;
    let packed = is_packed(model).then(|| Packed::open(model)).transpose()?;
    let work = match &packed {
        Some(_) => WorkDir::create(&facts.cache_dir.join(SCRATCH))?,
        None => WorkDir::create(&model.join("predictions"))?,
    };
    let (subject, start) = match packed {
        Some(packed) => artifact::prepared(packed, facts, options, &work.path)?,
        None => of_run(model, facts, options, &work.path)?,
    };
    let settings =
        Settings { address: options.address, token, limits: options.limits.clone(), workers: options.workers as usize };
    let Some(mut signals) = signals else {
        return Err(system("handle signals")(io::Error::other("another part of this process does")));
    };
    let (started, end) = io::pipe().map_err(system("make a pipe"))?;
    let starting = std::thread::spawn(move || {
        let server = Server::start(subject, start, settings);
        drop(end);
        server
    });
    // A model that is still being loaded is not waited for: the process that loads it ends with this one.
    if let Some(signal) = next_signal(&mut signals, Some(&started)).map_err(system("wait for a signal"))? {
        return Ok(Served { signal, drained: Drained { finished: 0, cut: 0 } });
    }
    let mut server = starting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    ready(&server)?;
    let signal = next_signal(&mut signals, None).map_err(system("wait for a signal"))?.unwrap_or(Signal::SIGTERM);
    let cancel_grace = server.cancel_grace();
    let (ended, end) = io::pipe().map_err(system("make a pipe"))?;
    let grace = options.grace;
    let stopping = std::thread::spawn(move || {
        let drained = server.stop(grace);
        drop(end);
        drained
    });
    // A second signal cancels the wait.
    if let (Ok(Some(_)), Some(cancel_grace)) = (next_signal(&mut signals, Some(&ended)), cancel_grace) {
        cancel_grace.cancel();
    }
    let drained = stopping.join().unwrap_or(Drained { finished: 0, cut: 0 });
    Ok(Served { signal, drained })
}

/// Serves the newest checkpoint of a run with workers.
fn of_run(
    model: &Path,
    facts: &Facts,
    options: &ServeOptions,
    scratch: &Path,
) -> Result<(enn_serve::Subject, Box<Start>), Error> {
    let predict = PredictOptions { overrides: options.overrides.clone(), ..PredictOptions::default() };
    let subject = Subject::of(model, &[scratch.to_owned()], facts, &predict)?;
    let worker = launch::worker(&subject.config, facts, options.workers.max(1))?;
    let checkpoint = subject.checkpoint.clone();
    let precision = options.precision;
    let stream = options.stream;
    let shared = scratch.to_owned();
    let time = options.limits.answer_wait;
    let start = move || -> Result<Box<dyn Engine>, Failure> {
        let mut client = PredictClient::start(&worker, &checkpoint, precision, stream, ScratchDir::Shared(&shared))?;
        client.set_wait(time);
        Ok(Box::new(Worker(client)))
    };
    let subject = enn_serve::Subject {
        run: subject.digest.run.clone(),
        step: subject.digest.step,
        levels: subject.config.train.quantile_levels().to_vec(),
        data: subject.config.data.ok_or(Error::Usage(Usage::NoData))?,
        meta: subject.meta,
        scratch: scratch.to_owned(),
    };
    Ok((subject, Box::new(start)))
}

/// A worker process as an engine of the server.
struct Worker(PredictClient);

impl Engine for Worker {
    fn answer(&mut self, x: &[f32], rows: usize) -> Result<Answers, EngineError> {
        self.0.predict_rows(x, rows).map_err(lost)
    }

    fn state(&self) -> usize {
        self.0.state()
    }

    fn answer_next(&mut self, x: &[f32], states: &[f32], rows: usize) -> Result<(Answers, Vec<f32>), EngineError> {
        self.0.predict_next_rows(x, states, rows).map_err(lost)
    }

    fn ended(&self) -> Receiver<()> {
        self.0.ended().clone()
    }
}

fn lost(error: Error) -> EngineError {
    match error {
        Error::Late(time) => EngineError::Late(time),
        other => EngineError::Ended(other.into()),
    }
}
