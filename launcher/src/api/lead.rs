//! Leads a training: from its run directory through its workers to its report.

use super::{
    address,
    announce::{Announcer, EventSender},
    doubts::doubts,
    forecast, launch, mirror,
    model_card::ModelCard,
    pretrained, sizes,
    staging::{STAGED_DIR, open_staged, quietly_staged, staged_event},
    stamp::{versions, wall_time},
    train_options::TrainOptions,
    trained_run::{TrainedRun, cause, exit_code},
};
use crate::{Error, facts::Facts};
use enn_checkpoint::gather::{self, RunInfo};
use enn_cluster::supervise::{self, CheckpointStore, Membership, RunEnd, RunJob, RunOutcome, TakeOver};
use enn_common::{
    artifact::classes::ClassFigures,
    checkpoint::{Draft, name},
    config::RunConfig,
    event::EventKind,
    exit::ExitCode,
    fs::atomic,
    staged::StagedMeta,
};
use enn_data::baselines::{self, Baselines, Effort};
use enn_process::run_dir::RunDir;
use enn_ui::{
    MetricsServer,
    report::{self, ReportError},
};
use std::{
    cell::Cell,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Maximum wait for an unreachable leader to end and to release the lock of the run directory.
const LEADER_ENDS_MAX: Duration = Duration::from_secs(15);

/// The configuration that was made for a table, in the directory of a run.
const CONFIG_TOML: &str = "config.toml";

/// The lead of a run over several nodes.
pub(super) struct Lead {
    /// The name of this node in the rendezvous.
    pub(super) host: String,
    pub(super) term: Term,
}

/// How a node came to lead.
pub(super) enum Term {
    /// It leads from the beginning.
    First(Membership),
    /// The previous leader is gone.
    Next(TakeOver),
}

/// Writes the report and the manifest of a run; failures to write them are logged. `kept` says whether the newest checkpoint has been
/// uploaded to where the run is kept.
fn conclude(
    config: &RunConfig,
    run: &RunDir,
    code: ExitCode,
    outcome: Result<(RunOutcome, Option<Baselines>), Error>,
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
    let outcome = outcome.and_then(|outcome| match (unsaved(&outcome), &outcome.end) {
        (Some(cause), _) => Err(Error::Unsaved(cause.clone())),
        (None, RunEnd::Failed { cause }) => Err(Error::Worker(cause.clone())),
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
        ..TrainedRun::new(run.path().to_owned(), outcome.end)
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
        (Some(Lead { term: Term::Next(order), .. }), _) => RunDir::take_over(&order.facts.run_dir, LEADER_ENDS_MAX)?,
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
    if let Some(text) = &options.config_text {
        atomic::write(&run.path().join(CONFIG_TOML), text.as_bytes())?;
    }
    mirror::begin(config, &run)?;
    let announcer = Announcer::of_run(&run, options.mode, metrics)?;
    announcer.begin(&run, "train", launch::world(config), facts);
    if let Some(message) = facts.oversubscription(launch::world(config)) {
        announcer.send(EventKind::Warned { message });
    }
    let is_at_work = Cell::new(false);
    let outcome = work(config, facts, options, others, &run, &announcer, &is_at_work);
    if let Ok((RunOutcome { end: RunEnd::HandedOff, restarts, rounds, .. }, _)) = outcome {
        // The next leader waits for the directory.
        let dir = run.path().to_owned();
        drop(run);
        return Ok(TrainedRun { restarts, rounds, led: false, ..TrainedRun::new(dir, RunEnd::Finished) });
    }
    let seconds = began.elapsed().as_secs_f64();
    if !run.is_held() {
        // The journal, report and manifest belong to another leader now.
        return Err(superseded(outcome.map(|(outcome, _)| outcome.end), &run));
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

/// Returns why the last state of a training that ended by itself is in no checkpoint. After a stop that is no error.
fn unsaved(outcome: &RunOutcome) -> Option<&String> {
    outcome.unsaved.as_ref().filter(|_| outcome.end == RunEnd::Finished)
}

/// Returns the exit code of a run and the last event of its journal. `kept` says whether the checkpoints were uploaded to where the run is
/// kept.
fn end_event(
    outcome: &Result<(RunOutcome, Option<Baselines>), Error>,
    kept: &Result<(), Error>,
    seconds: f64,
) -> (ExitCode, EventKind) {
    let (code, restarts, rounds, cause) = match outcome {
        Ok((outcome, _)) => {
            let RunOutcome { end: ended, restarts, rounds, .. } = outcome;
            let unsaved = unsaved(outcome);
            let code = match exit_code(ended) {
                ExitCode::WorkerFailed if unsaved.is_none() => ExitCode::WorkerFailed,
                _ if unsaved.is_some() || kept.is_err() => ExitCode::Machine,
                code => code,
            };
            let not_kept = || kept.as_ref().err().map(ToString::to_string);
            let cause = unsaved.cloned().or_else(|| cause(Ok(ended))).or_else(not_kept);
            (code, *restarts, *rounds, cause)
        }
        Err(error) => (error.exit_code(), 0, 0, cause(Err(error))),
    };
    (code, EventKind::RunEnded { code: code as u8, seconds, restarts, rounds, cause })
}

/// Returns the error of a node whose run is now led by another node.
fn superseded(ended: Result<RunEnd, Error>, run: &RunDir) -> Error {
    match ended {
        Err(error) => error,
        Ok(RunEnd::Failed { cause }) => Error::Worker(cause),
        Ok(_) => Error::Nodes(format!("another node leads the run in {}", run.path().display())),
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
) -> Result<(RunOutcome, Option<Baselines>), Error> {
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
    for message in doubts(&staged.meta, config.data.as_ref()) {
        announcer.send(EventKind::Warned { message });
    }
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
    let job = RunJob::Train { staged: staged.dir.clone(), init: None, config: run.config_digest()? };
    let mut spec = launch::agent_spec(config, facts, run, job, options.handle_signals)?;
    let card = ModelCard::default();
    let baselines = announcer
        .sender()
        .map(|events| compute_baselines(staged.dir.clone(), options.baselines, weights, events, card.clone()));
    let draft = draft(&run.id(), config, &staged.meta)?;
    let mut store =
        Box::new(CheckpointStore::new(run.checkpoints(), &config.train, draft, Box::new(announcer.warner())));
    store.known = Some(card.reader());
    store.then = mirror::of_run(config, run, announcer)?;
    let mut emit = |what| {
        card.note(&what);
        is_at_work.set(is_at_work.get() || matches!(what, EventKind::WorkerReady { .. }));
        announcer.send(what);
    };
    let outcome = match others {
        None => supervise::run(&spec, store, &mut emit),
        Some(Lead { host, term }) => {
            spec.node.host = host;
            match term {
                Term::First(membership) => supervise::lead(&spec, store, &mut emit, membership),
                Term::Next(order) => supervise::succeed(&spec, store, &mut emit, order),
            }
        }
    };
    if let Ok(outcome @ RunOutcome { end: RunEnd::HandedOff, .. }) = outcome {
        return Ok((outcome, None));
    }
    let baselines = baselines.and_then(|thread| thread.join().ok().flatten());
    let outcome = outcome?;
    if let (RunEnd::Finished, None, Some((_, checkpoint))) = (&outcome.end, &outcome.unsaved, &outcome.checkpoint) {
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
