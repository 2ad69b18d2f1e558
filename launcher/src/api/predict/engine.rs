//! Prediction by an exported model in its own runtime: the same chunks, the same ledger, no agent. A runtime that ends or does not
//! answer is started again, as often as workers would be.
//!
//! **Invariant:** an answer is in the ledger or does not count; what a runtime is given is what workers are given.

use super::{super::export, PredictOptions, Subject};
use crate::{
    Error,
    agent::{self, Ended},
    api::{ExportOptions, announce::Teller, launch},
    error::Usage,
    export::{AtWork, Exported, Packed, Tools},
    facts::Facts,
    gather::Ledger,
    process::{STOP_SIGNALS, Signals, next_signal, wait_ready},
};
use crossbeam_channel::{Receiver, Sender, bounded, select};
use enn_common::{
    artifact::chunk::{self, Extent, Written},
    config::{
        RunConfig,
        train::{ClusterConfig, Device, TrainConfig},
    },
    event::What,
    staged::Staged,
};
use enn_export::{Batch, ExportError, Target};
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

/// Below a run's directory: the models that `--engine` has exported.
const ENGINES: &str = "engines";
/// Rows that a runtime is given at once, so that an answer is not long in coming.
const CALL_ROWS_MAX: usize = 4096;
/// Longest time for an answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(600);
/// Longest wait for what is computed when a signal comes.
const STOP_WAIT_MAX: Duration = Duration::from_secs(5);

/// What is used instead of a run's workers: what was named, or what is made of the run; `None`: they themselves.
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
            Some(Engine::Exported(target)) => kept(model, target, facts)?,
        }
    };
    packed.takes(options.precision)?;
    Ok(Some(packed))
}

/// Who computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// The run's own workers.
    Native,
    /// An exported model in its own runtime.
    Exported(Target),
}

impl Engine {
    /// As the command line names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Exported(target) => target.name(),
        }
    }
}

impl std::str::FromStr for Engine {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let target = name.parse::<Target>().ok().filter(|target| *target != Target::Coreml);
        match target {
            Some(target) => Ok(Self::Exported(target)),
            None if name == "native" => Ok(Self::Native),
            None => {
                let runs = Target::ALL.into_iter().filter(|target| *target != Target::Coreml);
                let names: Vec<&str> = std::iter::once("native").chain(runs.map(Target::name)).collect();
                Err(format!("{name} is no engine, expected one of {}", names.join(", ")))
            }
        }
    }
}

/// The newest checkpoint of a run in a format, exported and checked once.
fn kept(model: &Path, target: Target, facts: &Facts) -> Result<Packed, Error> {
    let trained = Subject::trained(model)?;
    let out = model.join(ENGINES);
    let path = out.join(target.file(&export::name_of(&trained.config.name)));
    if crate::export::is_packed(&path)
        && let Ok(packed) = Packed::open(&path)
        && packed.said.model.checkpoint == trained.digest.blake3
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
    let mut done = export::export(model, &out, (facts, &options), &mut |exported| {
        tracing::info!("{}", crate::export::line(exported));
        ControlFlow::Continue(())
    })?;
    match done.pop() {
        Some(Exported { outcome: Ok((path, _)), .. }) => Packed::open(&path),
        Some(Exported { outcome: Err(error), .. }) => Err(error.into()),
        None => Err(Error::Usage(Usage::NothingToExport)),
    }
}

/// What is configured for an artifact without a run: nothing but its data.
pub(in crate::api) fn configured(packed: &Packed) -> RunConfig {
    RunConfig {
        version: 1,
        name: packed.said.model.run.clone(),
        seed: 0,
        data: Some(packed.data.clone()),
        model: enn_common::config::model::ModelConfig::default(),
        train: TrainConfig::default(),
        cluster: ClusterConfig::default(),
        kernels: std::collections::BTreeMap::new(),
        parent: None,
    }
}

/// Where an artifact runs with what this machine has.
#[derive(Debug)]
pub(in crate::api) struct Spot {
    packed: Packed,
    tools: Tools,
    scratch: PathBuf,
    is_point: bool,
}

impl Spot {
    /// One of `world` that share the machine.
    pub(in crate::api) fn new(
        packed: &Packed,
        (config, world): (&RunConfig, u32),
        facts: &Facts,
        (scratch, is_point): (&Path, bool),
    ) -> Result<Self, Error> {
        let tools = export::tools(launch::runtime_worker(packed, config, facts, world)?, facts);
        Ok(Self { packed: packed.clone(), tools, scratch: scratch.to_owned(), is_point })
    }

    /// A runtime with the artifact loaded.
    pub(in crate::api) fn start(&self) -> Result<AtWork, ExportError> {
        let mut engine = AtWork::start(&self.packed, &self.tools, &self.scratch, self.is_point)?;
        engine.set_time(ANSWER_WAIT_MAX);
        Ok(engine)
    }
}

/// Writes the answers to some staged rows below `out`, as a worker does; `levels` are told of each cell.
pub(in crate::api) fn write_chunk(
    engine: &mut AtWork,
    staged: &Staged,
    (rows, out): (Range<usize>, &Path),
    levels: usize,
) -> Result<Written, Error> {
    let width = staged.features();
    let mut values = Vec::new();
    let mut status = Vec::new();
    for first in rows.clone().step_by(CALL_ROWS_MAX) {
        let last = rows.end.min(first + CALL_ROWS_MAX);
        let said = engine.answer(&staged.x()[first * width..last * width], last - first)?;
        values.extend(said.values);
        status.extend(said.status);
    }
    let grid = staged.meta().out_shape.iter().copied();
    let shape: Vec<usize> = (levels > 0).then_some(levels).into_iter().chain(grid).collect();
    let extent = Extent { start: rows.start as u64, end: rows.end as u64, out_shape: &shape };
    let content = chunk::Rows { values: &values, ids: &staged.row_id()[rows], status: &status };
    chunk::write(out, extent, content).map_err(|error| Error::Gather(error.into()))
}

/// All chunks of a prediction.
pub(super) struct Chunks<'a> {
    pub(super) staged: &'a Path,
    pub(super) out: &'a Path,
    pub(super) chunk_rows: u64,
    pub(super) rows: u64,
    pub(super) levels: usize,
    pub(super) ledger: &'a Mutex<Ledger>,
    pub(super) teller: Option<Teller>,
}

/// What hands share. They hold nothing else: one whose runtime does not answer is left behind when all are told to end.
struct Hands {
    spot: Spot,
    staged: PathBuf,
    out: PathBuf,
    levels: usize,
    todo: Mutex<std::vec::IntoIter<Range<usize>>>,
    stop: AtomicBool,
    restarts: AtomicU32,
    max_restarts: u32,
}

/// What a hand has done.
enum Done {
    Chunk(Range<usize>, Written),
    Restarted(String),
    Failed(Error),
}

/// Predicts what is not in the ledger; how that ended, and how often a runtime was started again.
pub(super) fn compute(
    chunks: &Chunks<'_>,
    spot: Spot,
    (world, max_restarts): (u32, u32),
    handle_signals: bool,
) -> Result<(Ended, u32), Error> {
    let system = |source| Error::Read { path: chunks.out.to_owned(), source };
    let mut signals = if handle_signals { Signals::install(&STOP_SIGNALS).map_err(system)? } else { None };
    let (ended, end) = io::pipe().map_err(system)?;
    let hands = Arc::new(Hands {
        spot,
        staged: chunks.staged.to_owned(),
        out: chunks.out.to_owned(),
        levels: chunks.levels,
        todo: Mutex::new(chunks.todo().into_iter()),
        stop: AtomicBool::new(false),
        restarts: AtomicU32::new(0),
        max_restarts,
    });
    let (tell, done) = bounded(0);
    for number in 0..world.max(1) {
        let hands = Arc::clone(&hands);
        let tell = tell.clone();
        let thread = std::thread::Builder::new().name(format!("enn-engine-{number}"));
        thread.spawn(move || hands.work(&tell)).map_err(system)?;
    }
    drop(tell);
    let (halt, halted) = bounded::<()>(0);
    std::thread::scope(|scope| {
        let noting = scope.spawn(|| {
            let _end = end;
            chunks.noted(&done, &halted)
        });
        let signal = match &mut signals {
            Some(signals) => next_signal(signals, Some(&ended)).map_err(system)?,
            None => None,
        };
        if let (Some(_), Some(signals)) = (signal, &signals) {
            hands.stop.store(true, SeqCst);
            // What is computed now is kept, unless it takes long, or a second signal comes.
            let mut fds = [signals.fd(), ended.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            wait_ready(&mut fds, Some(Instant::now() + STOP_WAIT_MAX)).map_err(system)?;
            drop(halt);
        }
        let noted = noting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let restarts = hands.restarts.load(SeqCst);
        // All may have been done when it came.
        let is_whole = chunks.todo().is_empty();
        match signal.filter(|_| !is_whole) {
            Some(Signal::SIGINT) => Ok((Ended::Stopped(agent::Signal::Interrupt), restarts)),
            Some(_) => Ok((Ended::Stopped(agent::Signal::Terminate), restarts)),
            None => noted.map(|()| (Ended::Finished, restarts)),
        }
    })
}

impl Chunks<'_> {
    /// What is not in the ledger.
    fn todo(&self) -> Vec<Range<usize>> {
        let done = self.ledger.lock().unwrap_or_else(PoisonError::into_inner).done();
        let starts = (0..self.rows).step_by(self.chunk_rows.max(1) as usize);
        let all = starts.map(|start| (start, (start + self.chunk_rows).min(self.rows)));
        all.filter(|chunk| !done.contains(chunk)).map(|(start, end)| start as usize..end as usize).collect()
    }

    /// Notes what hands have done, until all have ended, one has failed, or `halted`.
    fn noted(&self, done: &Receiver<Done>, halted: &Receiver<()>) -> Result<(), Error> {
        loop {
            let next = select! {
                recv(done) -> next => next.ok(),
                recv(halted) -> _ => None,
            };
            match next {
                Some(Done::Chunk(rows, written)) => self.note(&rows, &written)?,
                Some(Done::Restarted(message)) => self.tell(What::Warned { message }),
                Some(Done::Failed(error)) => return Err(error),
                None => return Ok(()),
            }
        }
    }

    fn note(&self, rows: &Range<usize>, written: &Written) -> Result<(), Error> {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.record(rows.start as u64, rows.end as u64, &written.blake3)?;
        let done = ledger.done().iter().map(|(start, end)| end - start).sum();
        self.tell(What::Predicted { rows: done, rows_total: self.rows });
        Ok(())
    }

    fn tell(&self, what: What) {
        if let Some(teller) = &self.teller {
            teller.tell(what);
        }
    }
}

impl Hands {
    /// Does chunks until there are none left, or nobody listens.
    fn work(&self, tell: &Sender<Done>) {
        if let Err(error) = self.all(tell) {
            self.stop.store(true, SeqCst);
            let _unheard = tell.send(Done::Failed(error));
        }
    }

    fn all(&self, tell: &Sender<Done>) -> Result<(), Error> {
        let staged = Staged::open(&self.staged)?;
        let mut engine = None;
        while !self.stop.load(SeqCst) {
            let next = self.todo.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(rows) = next else { return Ok(()) };
            let written = self.written(&mut engine, (&staged, &rows), tell)?;
            if tell.send(Done::Chunk(rows, written)).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A chunk, by as many runtimes as it takes.
    fn written(
        &self,
        engine: &mut Option<AtWork>,
        (staged, rows): (&Staged, &Range<usize>),
        tell: &Sender<Done>,
    ) -> Result<Written, Error> {
        loop {
            let error = match engine.take().map_or_else(|| self.spot.start(), Ok) {
                Ok(mut at_work) => match write_chunk(&mut at_work, staged, (rows.clone(), &self.out), self.levels) {
                    Ok(written) => {
                        *engine = Some(at_work);
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
            let message = format!("rows {}..{}: {error}; it is started again", rows.start, rows.end);
            let _unheard = tell.send(Done::Restarted(message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_have_the_names_of_formats_that_run() {
        assert_eq!("native".parse::<Engine>().unwrap(), Engine::Native);
        assert_eq!("onnx".parse::<Engine>().unwrap(), Engine::Exported(Target::Onnx));
        for name in ["coreml", "onxx"] {
            let said = name.parse::<Engine>().unwrap_err();
            assert!(said.contains("expected one of native, onnx, ort, pt2, aoti"), "{said}");
        }
    }
}
