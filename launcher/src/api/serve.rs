//! `serve`: a run's model behind HTTP, by workers that are asked over pipes; or an exported one, in its own runtime.

mod artifact;

use super::{
    launch,
    oracle::{Oracle, Scratch},
    predict::{PredictOptions, Subject},
    stream::WorkDir,
};
use crate::{
    Error,
    error::Usage,
    export::{Packed, is_packed},
    facts::Facts,
    process::{STOP_SIGNALS, Signals, next_signal},
    serve::{self, Answers, Drained, Engine, Failure, Limits, Lost, ServeError, Server, Settings, Start, Token},
};
use crossbeam_channel::Receiver;
use enn_common::config::train::Precision;
use nix::sys::signal::Signal;
use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// Below the user's cache directory: what requests for an exported model leave for a moment.
const SCRATCH: &str = "serve";

/// How to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    pub address: SocketAddr,
    /// File of what clients must know.
    pub token_file: Option<PathBuf>,
    /// Bounds on what is asked.
    pub limits: Limits,
    /// Worker processes.
    pub workers: u32,
    /// Time for requests that are there when it is told to end.
    pub grace: Duration,
    /// What the encoder computes in.
    pub precision: Precision,
    /// Whether clients have streams, from row to row of which the model carries what it knows; an artifact that was exported with the
    /// state of a stream serves them anyway.
    pub stream: bool,
    /// Changes to the run's configuration.
    pub overrides: Vec<super::Override>,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// The signal that ended it.
    pub signal: Signal,
    /// What became of the requests that were there.
    pub drained: Drained,
}

/// Serves the newest checkpoint of the run directory `model` (its best weights), or the exported model `model`, until a signal ends it;
/// `ready` is called once it listens and the first worker is up.
///
/// # Errors
/// No complete checkpoint, an address that is taken, or a worker that does not start.
pub fn serve(
    model: &Path,
    facts: &Facts,
    options: &ServeOptions,
    ready: &mut dyn FnMut(&Server) -> Result<(), Error>,
) -> Result<Served, Error> {
    let token = options.token_file.as_ref().map(|path| Token::read(&facts.cwd.join(path)));
    let token = token.transpose().map_err(ServeError::from)?;
    let system = |what| move |source| Error::Serve(ServeError::System { what, source });
    // Before anything is started that must not be left behind.
    let signals = Signals::install(&STOP_SIGNALS).map_err(system("handle signals"))?;
    let packed = is_packed(model).then(|| Packed::open(model)).transpose()?;
    let work = match &packed {
        Some(_) => WorkDir::create(&facts.cache_dir.join(SCRATCH))?,
        None => WorkDir::create(&model.join("predictions"))?,
    };
    let (subject, start) = match packed {
        Some(packed) => artifact::prepared(packed, (facts, options), &work.path)?,
        None => of_run(model, (facts, options), &work.path)?,
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
    // A model that is still being loaded is not waited for: whoever loads it ends with this process.
    if let Some(signal) = next_signal(&mut signals, Some(&started)).map_err(system("wait for a signal"))? {
        return Ok(Served { signal, drained: Drained { finished: 0, cut: 0 } });
    }
    let mut server = starting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    ready(&server)?;
    let signal = next_signal(&mut signals, None).map_err(system("wait for a signal"))?.unwrap_or(Signal::SIGTERM);
    let hurry = server.hurry();
    let (ended, end) = io::pipe().map_err(system("make a pipe"))?;
    let grace = options.grace;
    let stopping = std::thread::spawn(move || {
        let drained = server.stop(grace);
        drop(end);
        drained
    });
    // Asked twice, it does not wait.
    if let (Ok(Some(_)), Some(hurry)) = (next_signal(&mut signals, Some(&ended)), hurry) {
        hurry.now();
    }
    let drained = stopping.join().unwrap_or(Drained { finished: 0, cut: 0 });
    Ok(Served { signal, drained })
}

/// The newest checkpoint of a run, by workers.
fn of_run(
    model: &Path,
    (facts, options): (&Facts, &ServeOptions),
    scratch: &Path,
) -> Result<(serve::Subject, Box<Start>), Error> {
    let predict = PredictOptions { overrides: options.overrides.clone(), ..PredictOptions::default() };
    let subject = Subject::of(model, &[scratch.to_owned()], facts, &predict)?;
    let worker = launch::worker(&subject.config, facts, options.workers.max(1))?;
    let checkpoint = subject.checkpoint.clone();
    let mode = (options.precision, options.stream);
    let shared = scratch.to_owned();
    let time = options.limits.answer_wait;
    let start = move || -> Result<Box<dyn Engine>, Failure> {
        let mut oracle = Oracle::start(&worker, &checkpoint, mode, Scratch::Shared(&shared))?;
        oracle.set_wait(time);
        Ok(Box::new(Worker(oracle)))
    };
    let subject = serve::Subject {
        run: subject.digest.run.clone(),
        step: subject.digest.step,
        levels: subject.config.train.quantile_levels().to_vec(),
        data: subject.config.data.ok_or(Error::Usage(Usage::NoData))?,
        meta: subject.meta,
        scratch: scratch.to_owned(),
    };
    Ok((subject, Box::new(start)))
}

/// A worker process.
struct Worker(Oracle);

impl Engine for Worker {
    fn answer(&mut self, x: &[f32], rows: usize) -> Result<Answers, Lost> {
        let (values, status) = self.0.tell(x, rows).map_err(lost)?;
        Ok(Answers { values, status })
    }

    fn state(&self) -> usize {
        self.0.state()
    }

    fn go_on(&mut self, x: &[f32], states: &[f32], rows: usize) -> Result<(Answers, Vec<f32>), Lost> {
        let ((values, status), after) = self.0.carry(x, states, rows).map_err(lost)?;
        Ok((Answers { values, status }, after))
    }

    fn ended(&self) -> Receiver<()> {
        self.0.ended().clone()
    }
}

fn lost(error: Error) -> Lost {
    match error {
        Error::Late(time) => Lost::Late(time),
        other => Lost::Ended(other.into()),
    }
}
