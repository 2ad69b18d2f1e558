//! `serve`: a run's model behind HTTP, by workers that are asked over pipes.

use super::{
    launch,
    oracle::Oracle,
    predict::{PredictOptions, Subject},
    stream::WorkDir,
};
use crate::{
    Error,
    error::Usage,
    facts::Facts,
    process::{self, STOP_SIGNALS, Signals},
    serve::{self, Answers, Drained, Engine, Failure, Limits, ServeError, Server, Settings, Token},
};
use crossbeam_channel::Receiver;
use enn_common::config::train::Precision;
use nix::{
    poll::{PollFd, PollFlags},
    sys::signal::Signal,
};
use std::{
    io::{self, PipeReader},
    net::SocketAddr,
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::Duration,
};

/// How to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Where.
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

/// Serves the newest checkpoint of the run directory `model` (its best weights) until a signal ends it; `ready` is called once it
/// listens and the first worker is up.
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
    let work = WorkDir::create(&model.join("predictions"))?;
    let predict = PredictOptions { overrides: options.overrides.clone(), ..PredictOptions::default() };
    let subject = Subject::of(model, std::slice::from_ref(&work.path), facts, &predict)?;
    let workers = options.workers.max(1);
    let worker = launch::worker(&subject.config, facts, workers)?;
    let (checkpoint, precision) = (subject.checkpoint.clone(), options.precision);
    let start = move || -> Result<Box<dyn Engine>, Failure> {
        Ok(Box::new(Worker(Oracle::start(&worker, &checkpoint, precision, None)?)))
    };
    let settings =
        Settings { address: options.address, token, limits: options.limits.clone(), workers: workers as usize };
    let subject = serve::Subject {
        run: subject.digest.run.clone(),
        step: subject.digest.step,
        levels: subject.config.train.quantile_levels().to_vec(),
        data: subject.config.data.ok_or(Error::Usage(Usage::NoData))?,
        meta: subject.meta,
        scratch: work.path.clone(),
    };
    let mut server = Server::start(subject, Box::new(start), settings)?;
    ready(&server)?;
    let Some(mut signals) = signals else {
        return Err(system("handle signals")(io::Error::other("another part of this process does")));
    };
    let signal = wait(&mut signals, None).map_err(system("wait for a signal"))?.unwrap_or(Signal::SIGTERM);
    let hurry = server.hurry();
    let (ended, end) = io::pipe().map_err(system("make a pipe"))?;
    let grace = options.grace;
    let stopping = std::thread::spawn(move || {
        let drained = server.stop(grace);
        drop(end);
        drained
    });
    // Asked twice, it does not wait.
    if let (Ok(Some(_)), Some(hurry)) = (wait(&mut signals, Some(&ended)), hurry) {
        hurry.now();
    }
    let drained = stopping.join().unwrap_or(Drained { finished: 0, cut: 0 });
    Ok(Served { signal, drained })
}

/// The next signal; `None` when the other end of a pipe was closed before.
fn wait(signals: &mut Signals, pipe: Option<&PipeReader>) -> io::Result<Option<Signal>> {
    loop {
        let mut fds = vec![PollFd::new(signals.fd(), PollFlags::POLLIN)];
        fds.extend(pipe.map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
        process::wait_ready(&mut fds, None)?;
        let closed = fds.get(1).is_some_and(|fd| fd.any().unwrap_or(true));
        if let Some(signal) = signals.take().first() {
            return Ok(Some(*signal));
        }
        if closed {
            return Ok(None);
        }
    }
}

/// A worker process.
struct Worker(Oracle);

impl Engine for Worker {
    fn answer(&mut self, x: &[f32], rows: usize) -> Result<Answers, Failure> {
        let (values, status) = self.0.tell(x, rows)?;
        Ok(Answers { values, status })
    }

    fn ended(&self) -> Receiver<()> {
        self.0.ended().clone()
    }
}
