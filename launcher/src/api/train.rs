//! `train`: stage, start workers, keep them alive, and leave a run directory behind.

use super::{
    address,
    announce::{Announcer, Teller},
    card::Card,
    finished, forecast, launch, mirror, nodes,
    parent::{self, ParentOptions},
    sizes,
};
pub use crate::runs::STAGED_DIR;
use crate::{
    Error,
    agent::{self, Durable, Ended, Headship, Heritage, Job, Outcome},
    baselines::{self, Baselines, Effort},
    error::Usage,
    facts::Facts,
    gather::{self, RunInfo},
    process::Guard,
    rendezvous::{Rendezvous, Settings},
    run_dir::{RUNS_DIR, RunDir},
    stage::{self as stager, StageOptions, Staged},
    ui::{
        MetricsServer, Mode, Sink,
        report::{self, ReportError},
    },
};
use enn_common::{
    artifact::classes::ClassFigures,
    checkpoint::{Draft, name},
    config::{RunConfig, data::DataConfig},
    event::{SourceShare, What},
    exit::ExitCode,
    fs::private,
    metrics::Metrics,
    staged::{Split, StagedMeta, meta::SourceMeta, mix},
};
use std::{
    cell::Cell,
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Longest wait for a head that is out of reach to end, and to let go of the run's directory.
const HEAD_ENDS_MAX: Duration = Duration::from_secs(15);
/// Staging progress is told at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Where and how to train.
#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// Directory of runs, made when absent; or their address, where runs are kept while a copy below the user's cache is worked in.
    pub runs_dir: PathBuf,
    /// Run directory to go on with, from its newest checkpoint.
    pub resume: Option<PathBuf>,
    /// What to begin with; `None`: the run begins by itself, or goes on.
    pub parent: Option<ParentOptions>,
    /// Staged directory to train on; `None`: the configured data are staged.
    pub staged: Option<PathBuf>,
    /// How the run is shown.
    pub mode: Mode,
    /// Whether SIGINT and SIGTERM stop the run after a checkpoint. Say no in a program with handlers of its own.
    pub handle_signals: bool,
    /// Where OpenMetrics are served while the run lasts; `None`: nowhere.
    pub metrics_addr: Option<SocketAddr>,
    /// How several nodes meet; `None`: this one is alone.
    pub nodes: Option<Settings>,
    /// Baselines that are fitted beside training.
    pub baselines: Effort,
}

impl Default for TrainOptions {
    fn default() -> Self {
        let runs_dir = RUNS_DIR.into();
        let mode = Mode::Quiet;
        Self {
            runs_dir,
            resume: None,
            parent: None,
            staged: None,
            mode,
            handle_signals: false,
            metrics_addr: None,
            nodes: None,
            baselines: Effort::Full,
        }
    }
}

/// What training left behind.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainedRun {
    /// Run directory.
    pub dir: PathBuf,
    /// Finished, or stopped by a signal.
    pub ended: Ended,
    /// Errors of the best model per split in the target's unit; `None` when stopped.
    pub metrics: Option<BTreeMap<String, Metrics>>,
    /// The newest checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// Restarts used.
    pub restarts: u32,
    /// Rounds begun.
    pub rounds: u64,
    /// Whether this node led; another one knows the metrics.
    pub led: bool,
}

/// Stages the data, trains with the configured workers and returns when they are done or stopped.
///
/// Call it from a thread that lives until it returns. A run that is resumed goes on in its own directory with `config`; one that is
/// finished stays as it is.
///
/// # Errors
/// Wrong data, a machine that lacks something, or [`Error::Worker`] when a worker failed and no restart was left. The newest
/// checkpoint stands in every case.
pub fn train(config: &RunConfig, facts: &Facts, options: &TrainOptions) -> Result<TrainedRun, Error> {
    if let Some(run) = options.resume.as_deref().map(|run| finished::finished(config, run)).transpose()?.flatten() {
        return run.leave(config);
    }
    match &options.nodes {
        None => lead(config, facts, options, None),
        Some(settings) => nodes::meet(config, facts, options, settings),
    }
}

/// A node that leads others.
pub(super) struct Lead {
    /// Started before the rendezvous.
    pub(super) guard: Guard,
    /// Where they meet.
    pub(super) rendezvous: Rc<Rendezvous>,
    /// Nodes needed, and wanted.
    pub(super) nodes: (u32, u32),
    /// Its name among them.
    pub(super) host: String,
    /// What it has of the head before it, which is gone.
    pub(super) heritage: Option<Box<Heritage>>,
}

/// Writes what a run leaves besides its checkpoints; that something of it cannot be is told in the log. `kept`: whether its newest
/// checkpoint is where the run is kept.
fn conclude(
    config: &RunConfig,
    (run, code): (&RunDir, ExitCode),
    outcome: Result<(Outcome, Option<Baselines>), Error>,
    kept: Result<(), Error>,
) -> Result<TrainedRun, Error> {
    let outcome = outcome.map(|(outcome, baselines)| {
        let inputs = report::ReportInputs::read(run.path(), baselines);
        if let Err(error) = inputs.map_err(ReportError::from).and_then(|inputs| report::write(run.path(), &inputs)) {
            tracing::warn!("no report: {error}");
        }
        outcome
    });
    if outcome.is_ok() || !name::list(&run.checkpoints()).is_empty() {
        let info = RunInfo { run: run.id(), code: code as u8, versions: versions(), wall_time: wall_time() };
        if let Err(error) = gather::run_manifest(run.path(), info) {
            tracing::warn!("no manifest of the run: {error}");
        }
    }
    let kept = kept.and(mirror::end(config, run));
    let outcome = outcome.and_then(|mut outcome| match (outcome.unsaved.take(), &outcome.ended) {
        (Some(cause), _) => Err(Error::Unsaved(cause)),
        (None, Ended::Failed { cause }) => Err(Error::Worker(cause.clone())),
        (None, _) => Ok(outcome),
    });
    let outcome = match (outcome, kept) {
        (Ok(outcome), kept) => kept.map(|()| outcome)?,
        (Err(error), kept) => {
            // What went wrong first is the error.
            kept.unwrap_or_else(|kept| tracing::warn!("{kept}"));
            return Err(error);
        }
    };
    Ok(TrainedRun {
        dir: run.path().to_owned(),
        ended: outcome.ended,
        metrics: outcome.metrics,
        checkpoint: outcome.checkpoint.map(|(_, path)| path),
        restarts: outcome.restarts,
        rounds: outcome.rounds,
        led: true,
    })
}

/// The run, from its directory to its report; `others`: on several nodes.
pub(super) fn lead(
    config: &RunConfig,
    facts: &Facts,
    options: &TrainOptions,
    others: Option<Lead>,
) -> Result<TrainedRun, Error> {
    let began = Instant::now();
    // Before anything is made: the address may be taken.
    let metrics = options.metrics_addr.map(MetricsServer::start).transpose()?;
    let run = match (&others, &options.resume) {
        (Some(Lead { heritage: Some(heritage), .. }), _) => RunDir::inherit(&heritage.work.run_dir, HEAD_ENDS_MAX)?,
        (_, Some(path)) => RunDir::open(path)?,
        (_, None) => {
            RunDir::create(&address::local(&options.runs_dir, facts)?, &config.name, time::OffsetDateTime::now_utc())?
        }
    };
    let config = &match &options.resume {
        Some(_) => parent::carried(config, run.path())?,
        None => config.clone(),
    };
    run.withdraw_manifest()?;
    let config_before = run.config_text();
    run.write_config(config)?;
    mirror::begin(config, &run)?;
    let announcer = Announcer::of_run(run.path(), options.mode, metrics)?;
    announcer.tell(What::RunStarted {
        run: run.id(),
        mode: "train".into(),
        dir: run.path().to_owned(),
        host: facts.host.clone(),
        nproc: launch::world(config),
        argv: facts.argv.clone(),
    });
    facts.crowd(launch::world(config)).into_iter().for_each(|message| announcer.tell(What::Warned { message }));
    let is_at_work = Cell::new(false);
    let outcome = work(config, facts, (options, others), (&run, &announcer, &is_at_work));
    if let Ok((Outcome { handed_over: true, restarts, rounds, .. }, _)) = outcome {
        // The next head waits for the directory.
        let dir = run.path().to_owned();
        drop(run);
        let ended = Ended::Finished;
        let metrics = None;
        let checkpoint = None;
        return Ok(TrainedRun { dir, ended, metrics, checkpoint, restarts, rounds, led: false });
    }
    let seconds = began.elapsed().as_secs_f64();
    if !run.is_held() {
        // Journal, report and manifest are another head's now.
        return Err(superseded(outcome.map(|(outcome, _)| outcome.ended), &run));
    }
    if let (Some(before), false) = (config_before, is_at_work.get()) {
        // No worker took up the run with this configuration: its checkpoints are of the one before, which the next resume goes by.
        run.restore_config(&before)?;
    }
    let kept = if outcome.is_ok() { mirror::settle(&run) } else { Ok(()) };
    let (code, ended) = told_end(&outcome, &kept, seconds);
    announcer.tell(ended);
    // The report reads the journal: it must be complete.
    drop(announcer);
    conclude(config, (&run, code), outcome, kept)
}

/// The exit code of a run, and what its journal says of its end. `kept`: whether what it wrote is where the run is kept.
fn told_end(
    outcome: &Result<(Outcome, Option<Baselines>), Error>,
    kept: &Result<(), Error>,
    seconds: f64,
) -> (ExitCode, What) {
    let (code, restarts, rounds, cause) = match outcome {
        Ok((Outcome { unsaved, ended, restarts, rounds, .. }, _)) => {
            let code = match exit_code(ended) {
                ExitCode::WorkerFailed if unsaved.is_none() => ExitCode::WorkerFailed,
                _ if unsaved.is_some() || kept.is_err() => ExitCode::Machine,
                code => code,
            };
            let not_kept = || kept.as_ref().err().map(ToString::to_string);
            let cause = unsaved.clone().or_else(|| cause(Ok(ended))).or_else(not_kept);
            (code, *restarts, *rounds, cause)
        }
        Err(error) => (error.exit_code(), 0, 0, cause(Err(error))),
    };
    (code, What::RunEnded { code: code as u8, seconds, restarts, rounds, cause })
}

/// How this run ended here, while another node leads it.
fn superseded(ended: Result<Ended, Error>, run: &RunDir) -> Error {
    match ended {
        Err(error) => error,
        Ok(Ended::Failed { cause }) => Error::Worker(cause),
        Ok(_) => Error::Nodes(format!("another node leads the run in {}", run.path().display())),
    }
}

/// What went wrong, in a sentence, where something did.
pub(super) fn cause(ended: Result<&Ended, &Error>) -> Option<String> {
    match ended {
        Ok(Ended::Failed { cause }) => Some(cause.clone()),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// The exit code that goes with an end.
pub fn exit_code(ended: &Ended) -> ExitCode {
    match ended {
        Ended::Finished => ExitCode::Success,
        Ended::Stopped(agent::Signal::Interrupt) => ExitCode::Interrupted,
        Ended::Stopped(agent::Signal::Terminate | agent::Signal::TimeLimit) => ExitCode::Terminated,
        Ended::Failed { .. } => ExitCode::WorkerFailed,
    }
}

fn work(
    config: &RunConfig,
    facts: &Facts,
    (options, others): (&TrainOptions, Option<Lead>),
    (run, announcer, is_at_work): (&RunDir, &Announcer, &Cell<bool>),
) -> Result<(Outcome, Option<Baselines>), Error> {
    facts.libtorch.begin();
    let runs = run.path().parent().unwrap_or(run.path());
    let (staged, seconds) = match &options.staged {
        Some(dir) => (open_staged(dir)?, 0.0),
        None => quietly_staged(config, None, &runs.join(STAGED_DIR), announcer)?,
    };
    if options.resume.is_some() {
        parent::goes_on(config, run.path(), &staged.meta)?;
    }
    announcer.tell(staged_event(&staged, config, seconds));
    run.link_staged(&staged.dir)?;
    let config = &match &options.parent {
        Some(wanted) => {
            let config = parent::adopt(config, wanted, (run, &staged.meta))?;
            run.write_config(&config)?;
            config
        }
        // Weights have their sizes.
        None if options.resume.is_some() && !name::list(&run.checkpoints()).is_empty() => config.clone(),
        None => sizes::settled(config, run, &staged.meta, |what| announcer.tell(what))?,
    };
    let weights = config.train.cell_weights.of_grid(&staged.meta.out_shape)?;
    let job = Job::Train { staged: staged.dir.clone(), init: None };
    let mut spec = launch::agent_spec(config, facts, run, job, options.handle_signals)?;
    let card = Card::default();
    let baselines = announcer
        .teller()
        .map(|teller| compute_baselines((staged.dir.clone(), options.baselines), weights, teller, card.clone()));
    let draft = draft(&run.id(), config, &staged.meta)?;
    let teller = announcer.teller();
    let warn = move |message| {
        if let Some(teller) = &teller {
            teller.tell(What::Warned { message });
        }
    };
    let durable = Durable::new(run.checkpoints(), &config.train, draft, Box::new(warn));
    let durable = durable.knowing(card.teller()).telling(mirror::of_run(config, run, announcer)?);
    let durable = Box::new(durable);
    let mut emit = |what| {
        card.note(&what);
        is_at_work.set(is_at_work.get() || matches!(what, What::WorkerReady { .. }));
        announcer.tell(what);
    };
    let outcome = match others {
        None => agent::run(&spec, durable, &mut emit),
        Some(Lead { guard, rendezvous, nodes, host, heritage }) => {
            spec.host = host;
            let headship = Headship { guard, rendezvous, work: nodes::work(run, &staged.dir)?, nodes };
            match heritage {
                None => agent::lead(&spec, durable, &mut emit, headship),
                Some(heritage) => agent::inherit(&spec, durable, &mut emit, (headship, *heritage)),
            }
        }
    };
    if let Ok(outcome @ Outcome { handed_over: true, .. }) = outcome {
        return Ok((outcome, None));
    }
    let baselines = baselines.and_then(|thread| thread.join().ok().flatten());
    let outcome = outcome?;
    if let (Ended::Finished, None, Some((_, checkpoint))) = (&outcome.ended, &outcome.unsaved, &outcome.checkpoint) {
        let told = forecast::of_test_rows(config, facts, run, checkpoint, &staged.dir);
        tell_classes(told.and_then(|()| forecast::classes(run, &staged.dir)), announcer);
    }
    Ok((outcome, baselines))
}

/// Tells what the forecasts of the test rows are worth, where they are of classes, or why there are none.
fn tell_classes(found: Result<Option<ClassFigures>, Error>, announcer: &Announcer) {
    match found {
        Ok(Some(classes)) => {
            announcer.tell(What::ClassesJudged { split: "test".to_owned(), classes: Box::new(classes) });
        }
        Ok(None) => {}
        Err(error) => announcer.tell(What::Warned { message: format!("the report shows no forecasts: {error}") }),
    }
}

/// Stages the configured data under `out` without training; returns the staged directory and what it holds.
///
/// # Errors
/// Wrong data, or a disk that is too small.
pub fn stage(config: &RunConfig, out: &Path, mode: Mode) -> Result<Staged, Error> {
    let announcer = Announcer::start(Sink::bare(mode));
    stage_data(config, None, out, &announcer)
}

/// Stages the configured data, telling how far it is.
pub(super) fn stage_data(
    config: &RunConfig,
    for_prediction: Option<StagedMeta>,
    out: &Path,
    announcer: &Announcer,
) -> Result<Staged, Error> {
    let (staged, seconds) = quietly_staged(config, for_prediction, out, announcer)?;
    announcer.tell(staged_event(&staged, config, seconds));
    Ok(staged)
}

/// As [`stage_data`], without telling what was staged; and the seconds it took.
fn quietly_staged(
    config: &RunConfig,
    for_prediction: Option<StagedMeta>,
    out: &Path,
    announcer: &Announcer,
) -> Result<(Staged, f64), Error> {
    if out.file_name().is_some_and(|name| name == STAGED_DIR) {
        // It lies between runs, which are their user's alone, and holds the same data.
        private::close_dir(out)?;
    }
    let data = config.data.as_ref().ok_or(Error::Usage(Usage::NoData))?;
    let began = Instant::now();
    let options = StageOptions { out: out.to_owned(), threads: 0, for_prediction };
    let mut told: Option<Instant> = None;
    let staged = stager::stage(data, &options, &mut |progress| {
        if told.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL) {
            told = Some(Instant::now());
            let stager::Progress { rows, bytes, bytes_total } = progress;
            announcer.tell(What::StageProgressed { rows, bytes, bytes_total });
        }
    })?;
    Ok((staged, began.elapsed().as_secs_f64()))
}

/// Data that are staged already.
fn open_staged(dir: &Path) -> Result<Staged, Error> {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let meta = enn_common::staged::Staged::open(&dir)?.meta().clone();
    Ok(Staged { dir, meta, reused: true, resumed_rows: 0 })
}

fn staged_event(staged: &Staged, config: &RunConfig, seconds: f64) -> What {
    let meta = &staged.meta;
    What::Staged {
        dir: staged.dir.clone(),
        rows: meta.rows,
        features: meta.features.len() as u64,
        out_shape: meta.out_shape.clone(),
        split_rows: meta.split_rows,
        sources: source_shares(meta, config),
        units: meta.units.clone(),
        reused: staged.reused,
        resumed_rows: staged.resumed_rows,
        seconds,
        report: meta.report.clone(),
    }
}

/// The sources of the data and what training draws of them.
fn source_shares(meta: &StagedMeta, config: &RunConfig) -> Vec<SourceShare> {
    let rows: Vec<u64> = meta.sources.iter().map(|source| source.split_rows[Split::Train as usize]).collect();
    let weights = config.data.as_ref().and_then(DataConfig::source_weights);
    let draws = weights.as_ref().map_or_else(|| rows.clone(), |weights| mix::draws(&rows, weights));
    let share = |(index, (source, draws)): (usize, (&SourceMeta, u64))| SourceShare {
        name: source.name.clone(),
        split_rows: source.split_rows,
        weight: weights.as_ref().and_then(|weights| weights.get(index).copied()),
        draws,
    };
    meta.sources.iter().zip(draws).enumerate().map(share).collect()
}

/// Baselines need nothing of the workers and are computed beside them.
fn compute_baselines(
    (staged, effort): (PathBuf, Effort),
    weights: Option<Vec<f64>>,
    teller: Teller,
    card: Card,
) -> std::thread::JoinHandle<Option<Baselines>> {
    std::thread::spawn(move || match baselines::compute(&staged, effort) {
        Ok(mut found) => {
            if let Some(weights) = weights {
                found.weigh(&weights);
            }
            let computed = What::BaselinesComputed { split: found.split.clone(), notes: found.notes.clone() };
            card.note(&computed);
            teller.tell(computed);
            Some(found)
        }
        Err(error) => {
            teller.tell(What::Warned { message: format!("no baselines: {error}") });
            None
        }
    })
}

/// What every checkpoint of the run says in its manifest.
pub(super) fn draft(run: &str, config: &RunConfig, meta: &StagedMeta) -> Result<Draft, Error> {
    let json = |source| Error::Json { path: run.into(), source };
    let meta = StagedMeta { row_names: Vec::new(), ..meta.clone() };
    Ok(Draft {
        run: run.to_owned(),
        config: serde_json::to_value(config).map_err(json)?,
        meta: serde_json::to_value(&meta).map_err(json)?,
        versions: versions(),
        ..Draft::default()
    })
}

/// What writes artifacts.
pub(super) fn versions() -> BTreeMap<String, String> {
    BTreeMap::from([("enn".to_owned(), env!("CARGO_PKG_VERSION").to_owned())])
}

/// Seconds since the Unix epoch.
pub(super) fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
