//! `train`: stages data, starts workers, keeps them running, and writes a run directory.

use super::{
    address,
    announce::{Announcer, EventSender},
    finished, forecast, launch, mirror,
    model_card::ModelCard,
    nodes,
    pretrained::{self, FinetuneOptions},
    sizes,
};
use crate::{Error, error::Usage, facts::Facts};
use enn_checkpoint::gather::{self, RunInfo};
use enn_cluster::{
    agent::{self, Durable, Ended, Headship, Heritage, Job, Outcome},
    rendezvous::{Rendezvous, Settings},
};
use enn_common::{
    artifact::classes::ClassFigures,
    checkpoint::{Draft, name},
    config::{RunConfig, data::DataConfig},
    event::{EventKind, SourceShare},
    exit::ExitCode,
    fs::private,
    metrics::Metrics,
    staged::{Split, StagedMeta, meta::SourceMeta, mix},
};
use enn_data::{
    baselines::{self, Baselines, Effort},
    stage::{self as stager, StageOptions, Staged},
};
use enn_process::{
    Guard,
    run_dir::{RUNS_DIR, RunDir},
};
pub use enn_ui::runs::STAGED_DIR;
use enn_ui::{
    MetricsServer, Mode, Sink,
    report::{self, ReportError},
};
use std::{
    cell::Cell,
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Maximum wait for an unreachable leader to end and to release the lock of the run directory.
const LEADER_ENDS_MAX: Duration = Duration::from_secs(15);
/// Staging progress is reported at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// The directory of runs, which is made when absent; or the address of runs in an object store, in which case training works in a copy
    /// below the user's cache.
    pub runs_dir: PathBuf,
    /// The run directory to resume from its newest checkpoint.
    pub resume: Option<PathBuf>,
    /// The pretrained model to fine-tune; `None`: the run starts from initial weights, or is resumed.
    pub finetune: Option<FinetuneOptions>,
    /// A staged directory to train on; `None`: the configured data are staged.
    pub staged: Option<PathBuf>,
    pub mode: Mode,
    /// Whether SIGINT and SIGTERM stop the run after a checkpoint. Set it to false in a program with its own handlers.
    pub handle_signals: bool,
    /// The address at which OpenMetrics are served while the run lasts; `None`: they are not served.
    pub metrics_addr: Option<SocketAddr>,
    /// The rendezvous of several nodes; `None`: training runs on this node only.
    pub nodes: Option<Settings>,
    pub baselines: Effort,
}

impl Default for TrainOptions {
    fn default() -> Self {
        let runs_dir = RUNS_DIR.into();
        let mode = Mode::Quiet;
        Self {
            runs_dir,
            resume: None,
            finetune: None,
            staged: None,
            mode,
            handle_signals: false,
            metrics_addr: None,
            nodes: None,
            baselines: Effort::Full,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct TrainedRun {
    pub dir: PathBuf,
    pub ended: Ended,
    /// Errors of the best model for each split, in the target's unit; `None` when stopped.
    pub metrics: Option<BTreeMap<String, Metrics>>,
    pub checkpoint: Option<PathBuf>,
    pub restarts: u32,
    pub rounds: u64,
    /// Whether this node led the run; the metrics are known to the leader only.
    pub led: bool,
}

impl TrainedRun {
    /// Makes the result of a training led by this node that did nothing.
    pub(super) fn new(dir: PathBuf, ended: Ended) -> Self {
        Self { dir, ended, metrics: None, checkpoint: None, restarts: 0, rounds: 0, led: true }
    }
}

/// Stages the data, trains with the configured workers and returns when they have finished or were stopped.
///
/// Call it from a thread that lives until it returns. A resumed run continues in its own directory with `config`; a finished run is not
/// changed.
///
/// # Errors
/// Wrong data, a machine that lacks something, or [`Error::Worker`] when a worker failed and no restart was left. The newest checkpoint is
/// kept in every case.
pub fn train(config: &RunConfig, facts: &Facts, options: &TrainOptions) -> Result<TrainedRun, Error> {
    if let Some(run) = options.resume.as_deref().map(|run| finished::finished(config, run)).transpose()?.flatten() {
        return run.leave(config);
    }
    match &options.nodes {
        None => lead(config, facts, options, None),
        Some(settings) => nodes::meet(config, facts, options, settings),
    }
}

/// The means of a node to lead the others.
pub(super) struct Lead {
    /// The guard process, started before the rendezvous.
    pub(super) guard: Guard,
    pub(super) rendezvous: Rc<Rendezvous>,
    /// The minimum and maximum number of nodes.
    pub(super) nodes: (u32, u32),
    /// The name of this node in the rendezvous.
    pub(super) host: String,
    /// The state of the previous leader, which is gone; `None` on the first leader.
    pub(super) takeover: Option<Box<Heritage>>,
}

/// Writes the report and the manifest of a run; failures to write them are logged. `kept` says whether the newest checkpoint has been
/// uploaded to where the run is kept.
fn conclude(
    config: &RunConfig,
    run: &RunDir,
    code: ExitCode,
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
            // The first failure is the error.
            kept.unwrap_or_else(|kept| tracing::warn!("{kept}"));
            return Err(error);
        }
    };
    Ok(TrainedRun {
        metrics: outcome.metrics,
        checkpoint: outcome.checkpoint.map(|(_, path)| path),
        restarts: outcome.restarts,
        rounds: outcome.rounds,
        ..TrainedRun::new(run.path().to_owned(), outcome.ended)
    })
}

/// Runs a training from its directory to its report; `others` is set on several nodes.
pub(super) fn lead(
    config: &RunConfig,
    facts: &Facts,
    options: &TrainOptions,
    others: Option<Lead>,
) -> Result<TrainedRun, Error> {
    let began = Instant::now();
    // This comes before anything is made, because the address may be taken.
    let metrics = options.metrics_addr.map(MetricsServer::start).transpose()?;
    let run = match (&others, &options.resume) {
        (Some(Lead { takeover: Some(takeover), .. }), _) => RunDir::take_over(&takeover.work.run_dir, LEADER_ENDS_MAX)?,
        (_, Some(path)) => RunDir::open(path)?,
        (_, None) => {
            RunDir::create(&address::local(&options.runs_dir, facts)?, &config.name, time::OffsetDateTime::now_utc())?
        }
    };
    let config = &match &options.resume {
        Some(_) => pretrained::resumed_config(config, run.path())?,
        None => config.clone(),
    };
    run.withdraw_manifest()?;
    let config_before = run.config_text();
    run.write_config(config)?;
    mirror::begin(config, &run)?;
    let announcer = Announcer::of_run(run.path(), options.mode, metrics)?;
    announcer.begin(&run, "train", launch::world(config), facts);
    if let Some(message) = facts.oversubscription(launch::world(config)) {
        announcer.send(EventKind::Warned { message });
    }
    let is_at_work = Cell::new(false);
    let outcome = work(config, facts, options, others, &run, &announcer, &is_at_work);
    if let Ok((Outcome { handed_over: true, restarts, rounds, .. }, _)) = outcome {
        // The next leader waits for the directory.
        let dir = run.path().to_owned();
        drop(run);
        return Ok(TrainedRun { restarts, rounds, led: false, ..TrainedRun::new(dir, Ended::Finished) });
    }
    let seconds = began.elapsed().as_secs_f64();
    if !run.is_held() {
        // The journal, report and manifest belong to another leader now.
        return Err(superseded(outcome.map(|(outcome, _)| outcome.ended), &run));
    }
    if let (Some(before), false) = (config_before, is_at_work.get()) {
        // No worker started with this configuration: the checkpoints belong to the previous one, which the next resume uses.
        run.restore_config(&before)?;
    }
    let kept = if outcome.is_ok() { mirror::settle(&run) } else { Ok(()) };
    let (code, ended) = end_event(&outcome, &kept, seconds);
    announcer.send(ended);
    // The report reads the journal: it must be complete.
    drop(announcer);
    conclude(config, &run, code, outcome, kept)
}

/// Returns the exit code of a run and the last event of its journal. `kept` says whether the checkpoints were uploaded to where the run is
/// kept.
fn end_event(
    outcome: &Result<(Outcome, Option<Baselines>), Error>,
    kept: &Result<(), Error>,
    seconds: f64,
) -> (ExitCode, EventKind) {
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
    (code, EventKind::RunEnded { code: code as u8, seconds, restarts, rounds, cause })
}

/// Returns the error of a node whose run is now led by another node.
fn superseded(ended: Result<Ended, Error>, run: &RunDir) -> Error {
    match ended {
        Err(error) => error,
        Ok(Ended::Failed { cause }) => Error::Worker(cause),
        Ok(_) => Error::Nodes(format!("another node leads the run in {}", run.path().display())),
    }
}

/// Returns the cause of a failure as one sentence; `None` when nothing failed.
pub(super) fn cause(ended: Result<&Ended, &Error>) -> Option<String> {
    match ended {
        Ok(Ended::Failed { cause }) => Some(cause.clone()),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// Returns the exit code for the given end of a run.
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
    options: &TrainOptions,
    others: Option<Lead>,
    run: &RunDir,
    announcer: &Announcer,
    is_at_work: &Cell<bool>,
) -> Result<(Outcome, Option<Baselines>), Error> {
    facts.libtorch.begin();
    let runs = run.path().parent().unwrap_or(run.path());
    let (staged, seconds) = match &options.staged {
        Some(dir) => (open_staged(dir)?, 0.0),
        None => quietly_staged(config, None, &runs.join(STAGED_DIR), announcer)?,
    };
    if options.resume.is_some() {
        pretrained::check_resumable(config, run.path(), &staged.meta)?;
    }
    announcer.send(staged_event(&staged, config, seconds));
    run.link_staged(&staged.dir)?;
    let config = &match &options.finetune {
        Some(finetune) => {
            let config = pretrained::finetuned_config(config, finetune, run, &staged.meta)?;
            run.write_config(&config)?;
            config
        }
        // The sizes of existing weights are fixed.
        None if options.resume.is_some() && !name::list(&run.checkpoints()).is_empty() => config.clone(),
        None => sizes::settled(config, run, &staged.meta, |what| announcer.send(what))?,
    };
    let weights = config.train.cell_weights.of_grid(&staged.meta.out_shape)?;
    let job = Job::Train { staged: staged.dir.clone(), init: None };
    let mut spec = launch::agent_spec(config, facts, run, job, options.handle_signals)?;
    let card = ModelCard::default();
    let baselines = announcer
        .sender()
        .map(|events| compute_baselines(staged.dir.clone(), options.baselines, weights, events, card.clone()));
    let draft = draft(&run.id(), config, &staged.meta)?;
    let durable = Durable::new(run.checkpoints(), &config.train, draft, Box::new(announcer.warner()));
    let durable = durable.knowing(card.reader()).telling(mirror::of_run(config, run, announcer)?);
    let durable = Box::new(durable);
    let mut emit = |what| {
        card.note(&what);
        is_at_work.set(is_at_work.get() || matches!(what, EventKind::WorkerReady { .. }));
        announcer.send(what);
    };
    let outcome = match others {
        None => agent::run(&spec, durable, &mut emit),
        Some(Lead { guard, rendezvous, nodes, host, takeover }) => {
            spec.host = host;
            let headship = Headship { guard, rendezvous, work: nodes::work(run, &staged.dir)?, nodes };
            match takeover {
                None => agent::lead(&spec, durable, &mut emit, headship),
                Some(takeover) => agent::inherit(&spec, durable, &mut emit, (headship, *takeover)),
            }
        }
    };
    if let Ok(outcome @ Outcome { handed_over: true, .. }) = outcome {
        return Ok((outcome, None));
    }
    let baselines = baselines.and_then(|thread| thread.join().ok().flatten());
    let outcome = outcome?;
    if let (Ended::Finished, None, Some((_, checkpoint))) = (&outcome.ended, &outcome.unsaved, &outcome.checkpoint) {
        let predicted = forecast::of_test_rows(config, facts, run, checkpoint, &staged.dir);
        send_classes(predicted.and_then(|()| forecast::classes(run, &staged.dir)), announcer);
    }
    Ok((outcome, baselines))
}

/// Reports the class metrics of the test rows, or why they are missing.
fn send_classes(found: Result<Option<ClassFigures>, Error>, announcer: &Announcer) {
    match found {
        Ok(Some(classes)) => {
            announcer.send(EventKind::ClassesJudged { split: "test".to_owned(), classes: Box::new(classes) });
        }
        Ok(None) => {}
        Err(error) => announcer.send(EventKind::Warned { message: format!("the report shows no forecasts: {error}") }),
    }
}

/// Stages the configured data under `out` without training; returns the staged directory and its description.
///
/// # Errors
/// The data are wrong, or the disk is too small.
pub fn stage(config: &RunConfig, out: &Path, mode: Mode) -> Result<Staged, Error> {
    let announcer = Announcer::start(Sink::bare(mode));
    stage_data(config, None, out, &announcer)
}

/// Stages the configured data and reports the progress.
pub(super) fn stage_data(
    config: &RunConfig,
    for_prediction: Option<StagedMeta>,
    out: &Path,
    announcer: &Announcer,
) -> Result<Staged, Error> {
    let (staged, seconds) = quietly_staged(config, for_prediction, out, announcer)?;
    announcer.send(staged_event(&staged, config, seconds));
    Ok(staged)
}

/// Stages the configured data like [`stage_data`] without the final event; returns the staged data and the seconds it took.
fn quietly_staged(
    config: &RunConfig,
    for_prediction: Option<StagedMeta>,
    out: &Path,
    announcer: &Announcer,
) -> Result<(Staged, f64), Error> {
    if out.file_name().is_some_and(|name| name == STAGED_DIR) {
        // The directory lies among the runs, which only their user may read, and holds the same data.
        private::close_dir(out)?;
    }
    let data = config.data.as_ref().ok_or(Error::Usage(Usage::NoData))?;
    let began = Instant::now();
    let options = StageOptions { out: out.to_owned(), threads: 0, for_prediction };
    let mut reported: Option<Instant> = None;
    let staged = stager::stage(data, &options, &mut |progress| {
        if reported.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL) {
            reported = Some(Instant::now());
            let stager::Progress { rows, bytes, bytes_total } = progress;
            announcer.send(EventKind::StageProgressed { rows, bytes, bytes_total });
        }
    })?;
    Ok((staged, began.elapsed().as_secs_f64()))
}

fn open_staged(dir: &Path) -> Result<Staged, Error> {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let meta = enn_common::staged::Staged::open(&dir)?.meta().clone();
    Ok(Staged { dir, meta, reused: true, resumed_rows: 0 })
}

fn staged_event(staged: &Staged, config: &RunConfig, seconds: f64) -> EventKind {
    let meta = &staged.meta;
    EventKind::Staged {
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

/// Returns the sources of the data and the number of rows that training draws from each.
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

/// Starts a thread that fits the baselines while the workers train.
fn compute_baselines(
    staged: PathBuf,
    effort: Effort,
    weights: Option<Vec<f64>>,
    events: EventSender,
    card: ModelCard,
) -> std::thread::JoinHandle<Option<Baselines>> {
    std::thread::spawn(move || match baselines::compute(&staged, effort) {
        Ok(mut found) => {
            if let Some(weights) = weights {
                found.weigh(&weights);
            }
            let computed = EventKind::BaselinesComputed { split: found.split.clone(), notes: found.notes.clone() };
            card.note(&computed);
            events.send(computed);
            Some(found)
        }
        Err(error) => {
            events.send(EventKind::Warned { message: format!("no baselines: {error}") });
            None
        }
    })
}

/// Returns the parts of the checkpoint manifest that are the same for all checkpoints of the run.
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

/// Returns the versions of the programs that write artifacts.
pub(super) fn versions() -> BTreeMap<String, String> {
    BTreeMap::from([("enn".to_owned(), env!("CARGO_PKG_VERSION").to_owned())])
}

/// Returns the current time in seconds since the Unix epoch.
pub(super) fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
