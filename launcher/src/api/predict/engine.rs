//! Prediction by an exported model in its own runtime, with the same chunks and ledger as workers but without an agent. A runtime that ends
//! or does not answer is restarted, as often as workers would be.
//!
//! **Invariant:** an answer counts only when it is in the ledger; a runtime is given the same inputs as workers.

use super::{
    super::export,
    options::{Engine, PredictOptions},
    subject::Subject,
    written::write_chunk,
};
use crate::{
    Error,
    api::{ExportOptions, announce::EventSender, launch, loaded_model::LoadedModel},
    error::Usage,
    export::{ArtifactRunner, Exported, Packed, Tools},
    facts::Facts,
};
use crossbeam_channel::{Receiver, Sender, bounded, select};
use enn_checkpoint::gather::Ledger;
use enn_cluster::supervise::{RunEnd, StopSignal};
use enn_common::{
    artifact::chunk::WrittenChunk,
    config::{RunConfig, train::Device},
    event::EventKind,
    staged::Staged,
};
use enn_export::{Batch, ExportError, Target};
use enn_process::{STOP_SIGNALS, Signals, next_signal, wait_ready};
use nix::{
    poll::{PollFd, PollFlags},
    sys::signal::Signal,
};
use std::{
    io,
    ops::{ControlFlow, Range},
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

/// Directory of the models exported for `--engine`, below a run's directory.
const ENGINES: &str = "engines";
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(600);
/// Maximum wait for the current computation after a signal.
const STOP_WAIT_MAX: Duration = Duration::from_secs(5);

/// Returns the exported model that replaces the run's workers: the given artifact, or an export of the run; `None` for workers.
pub(super) fn chosen(model: &Path, facts: &Facts, options: &PredictOptions) -> Result<Option<Packed>, Error> {
    let packed = if crate::export::is_packed(model) {
        let packed = Packed::open(model)?;
        let asked = options.engine.filter(|asked| *asked != Engine::Exported(packed.target));
        if let Some(asked) = asked {
            let found = packed.target.name();
            let asked = asked.name();
            return Err(Error::Usage(Usage::EngineOfArtifact { found, asked }));
        }
        packed
    } else {
        match options.engine {
            None | Some(Engine::Native) => return Ok(None),
            Some(Engine::Exported(target)) => cached_export(model, target, facts)?,
        }
    };
    packed.takes(options.precision)?;
    Ok(Some(packed))
}

/// Returns the newest checkpoint of a run in a format, which is exported and verified once.
fn cached_export(model: &Path, target: Target, facts: &Facts) -> Result<Packed, Error> {
    let trained = Subject::trained(model)?;
    let out = model.join(ENGINES);
    let path = out.join(target.file(&export::name_of(&trained.config.name)));
    if crate::export::is_packed(&path)
        && let Ok(packed) = Packed::open(&path)
        && packed.sidecar.model.checkpoint == trained.digest.blake3
        && packed.levels(false).is_ok()
    {
        return Ok(packed);
    }
    let options = ExportOptions {
        targets: vec![target],
        name: None,
        batch: Batch::default(),
        quantiles: !trained.config.train.quantile_levels().is_empty(),
        stream: false,
        unverified: false,
        precision: enn_export::Precision::Fp32,
        code_of: None,
        device: Device::Cpu,
    };
    let mut done = export::export(model, &out, facts, &options, &mut |exported| {
        tracing::info!("{}", crate::export::line(exported));
        ControlFlow::Continue(())
    })?;
    match done.pop() {
        Some(Exported { outcome: Ok((path, _)), .. }) => Packed::open(&path),
        Some(Exported { outcome: Err(error), .. }) => Err(error.into()),
        None => Err(Error::Usage(Usage::NothingToExport)),
    }
}

/// An artifact with the tools of this machine that run it.
#[derive(Debug)]
pub(in crate::api) struct EngineSpec {
    packed: Packed,
    tools: Tools,
    scratch: PathBuf,
    is_point: bool,
}

impl EngineSpec {
    /// Prepares one of `world` runtimes that share the machine.
    pub(in crate::api) fn new(
        packed: &Packed,
        config: &RunConfig,
        world: u32,
        facts: &Facts,
        scratch: &Path,
        is_point: bool,
    ) -> Result<Self, Error> {
        let tools = export::tools(launch::runtime_worker(packed, config, facts, world)?, facts);
        Ok(Self { packed: packed.clone(), tools, scratch: scratch.to_owned(), is_point })
    }

    pub(in crate::api) fn start(&self) -> Result<ArtifactRunner, ExportError> {
        let mut engine = ArtifactRunner::start(&self.packed, &self.tools, &self.scratch, self.is_point)?;
        engine.set_time(ANSWER_WAIT_MAX);
        Ok(engine)
    }
}

/// The chunks of a prediction, and where they are recorded.
pub(super) struct Chunks<'a> {
    pub(super) staged: &'a Path,
    pub(super) out: &'a Path,
    pub(super) chunk_rows: u64,
    pub(super) rows: u64,
    pub(super) levels: usize,
    pub(super) ledger: &'a Mutex<Ledger>,
    pub(super) events: Option<EventSender>,
}

/// The shared state of the threads that compute chunks. They hold nothing else, so that a thread whose runtime does not answer can be left
/// behind at the end.
struct ChunkThreads {
    spec: EngineSpec,
    staged: PathBuf,
    out: PathBuf,
    levels: usize,
    todo: Mutex<std::vec::IntoIter<Range<usize>>>,
    stop: AtomicBool,
    restarts: AtomicU32,
    max_restarts: u32,
}

enum ChunkResult {
    Chunk(Range<usize>, WrittenChunk),
    Restarted(String),
    Failed(Error),
}

/// Predicts the chunks that are not in the ledger; returns how that ended, and the number of restarts of runtimes.
pub(super) fn compute(
    chunks: &Chunks<'_>,
    spec: EngineSpec,
    world: u32,
    max_restarts: u32,
    handle_signals: bool,
) -> Result<(RunEnd, u32), Error> {
    let system = |source| Error::Read { path: chunks.out.to_owned(), source };
    let mut signals = if handle_signals { Signals::install(&STOP_SIGNALS).map_err(system)? } else { None };
    let (ended, end) = io::pipe().map_err(system)?;
    let shared = Arc::new(ChunkThreads {
        spec,
        staged: chunks.staged.to_owned(),
        out: chunks.out.to_owned(),
        levels: chunks.levels,
        todo: Mutex::new(chunks.todo().into_iter()),
        stop: AtomicBool::new(false),
        restarts: AtomicU32::new(0),
        max_restarts,
    });
    let (results, done) = bounded(0);
    for number in 0..world.max(1) {
        let shared = Arc::clone(&shared);
        let results = results.clone();
        let thread = std::thread::Builder::new().name(format!("enn-engine-{number}"));
        thread.spawn(move || shared.work(&results)).map_err(system)?;
    }
    drop(results);
    let (halt, halted) = bounded::<()>(0);
    std::thread::scope(|scope| {
        let recording = scope.spawn(|| {
            let _end = end;
            chunks.record_results(&done, &halted)
        });
        let signal = match &mut signals {
            Some(signals) => next_signal(signals, Some(&ended)).map_err(system)?,
            None => None,
        };
        if let (Some(_), Some(signals)) = (signal, &signals) {
            shared.stop.store(true, SeqCst);
            // The current chunks are finished, unless they take long or a second signal comes.
            let mut fds = [signals.fd(), ended.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            wait_ready(&mut fds, Some(Instant::now() + STOP_WAIT_MAX)).map_err(system)?;
            drop(halt);
        }
        let recorded = recording.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let restarts = shared.restarts.load(SeqCst);
        // All chunks may have been finished when the signal came.
        let is_whole = chunks.todo().is_empty();
        match signal.filter(|_| !is_whole) {
            Some(Signal::SIGINT) => Ok((RunEnd::Stopped(StopSignal::Interrupt), restarts)),
            Some(_) => Ok((RunEnd::Stopped(StopSignal::Terminate), restarts)),
            None => recorded.map(|()| (RunEnd::Finished, restarts)),
        }
    })
}

impl Chunks<'_> {
    /// Predicts the missing chunks with a model that is loaded.
    pub(super) fn compute_with(&self, model: &mut LoadedModel) -> Result<(), Error> {
        let staged = Staged::open(self.staged)?;
        for rows in self.todo() {
            let written = model.write_chunk(&staged, rows.clone(), self.out)?;
            self.record(&rows, &written)?;
        }
        Ok(())
    }

    fn todo(&self) -> Vec<Range<usize>> {
        let done = self.ledger.lock().unwrap_or_else(PoisonError::into_inner).done();
        let starts = (0..self.rows).step_by(self.chunk_rows.max(1) as usize);
        let all = starts.map(|start| (start, (start + self.chunk_rows).min(self.rows)));
        all.filter(|chunk| !done.contains(chunk)).map(|(start, end)| start as usize..end as usize).collect()
    }

    /// Records results until all threads have ended, one has failed, or `halted`.
    fn record_results(&self, done: &Receiver<ChunkResult>, halted: &Receiver<()>) -> Result<(), Error> {
        loop {
            let next = select! {
                recv(done) -> next => next.ok(),
                recv(halted) -> _ => None,
            };
            match next {
                Some(ChunkResult::Chunk(rows, written)) => self.record(&rows, &written)?,
                Some(ChunkResult::Restarted(message)) => self.send_event(EventKind::Warned { message }),
                Some(ChunkResult::Failed(error)) => return Err(error),
                None => return Ok(()),
            }
        }
    }

    fn record(&self, rows: &Range<usize>, written: &WrittenChunk) -> Result<(), Error> {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.record(rows.start as u64, rows.end as u64, &written.blake3)?;
        let done = ledger.done().iter().map(|(start, end)| end - start).sum();
        self.send_event(EventKind::Predicted { rows: done, rows_total: self.rows });
        Ok(())
    }

    fn send_event(&self, what: EventKind) {
        if let Some(events) = &self.events {
            events.send(what);
        }
    }
}

impl ChunkThreads {
    /// Computes chunks until none is left or the receiver is gone.
    fn work(&self, results: &Sender<ChunkResult>) {
        if let Err(error) = self.all(results) {
            self.stop.store(true, SeqCst);
            let _unheard = results.send(ChunkResult::Failed(error));
        }
    }

    fn all(&self, results: &Sender<ChunkResult>) -> Result<(), Error> {
        let staged = Staged::open(&self.staged)?;
        let mut engine = None;
        while !self.stop.load(SeqCst) {
            let next = self.todo.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(rows) = next else { return Ok(()) };
            let written = self.write_with_restarts(&mut engine, &staged, &rows, results)?;
            if results.send(ChunkResult::Chunk(rows, written)).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Computes one chunk, restarting the runtime when it is lost.
    fn write_with_restarts(
        &self,
        engine: &mut Option<ArtifactRunner>,
        staged: &Staged,
        rows: &Range<usize>,
        results: &Sender<ChunkResult>,
    ) -> Result<WrittenChunk, Error> {
        loop {
            let error = match engine.take().map_or_else(|| self.spec.start(), Ok) {
                Ok(mut running) => match write_chunk(&mut running, staged, rows.clone(), &self.out, self.levels) {
                    Ok(written) => {
                        *engine = Some(running);
                        return Ok(written);
                    }
                    Err(error) => error,
                },
                Err(error) => error.into(),
            };
            let is_lost = matches!(
                &error,
                Error::Export(ExportError::Refused { .. } | ExportError::Failed { .. } | ExportError::Late { .. })
            );
            let is_over = self.stop.load(SeqCst);
            if !is_lost || is_over || self.restarts.fetch_add(1, SeqCst) >= self.max_restarts {
                return Err(error);
            }
            let message = format!("rows {}..{}: {error}; it is restarted", rows.start, rows.end);
            let _unheard = results.send(ChunkResult::Restarted(message));
        }
    }
}
