//! `predict`: stage foreign data as the model wants them, predict with elastic workers, gather what they wrote.

use super::{
    announce::Announcer,
    launch,
    train::{STAGED_DIR, exit_code, stage_data},
};
use crate::{
    Error,
    agent::{self, Durable, Ended, Job, Outcome},
    error::Usage,
    facts::Facts,
    gather::{self, Gathered, Header, Ledger, Request},
    run_dir::RunDir,
    ui::{Mode, Sink},
};
use enn_common::{
    artifact::{
        chunk::{self, Chunk},
        prediction::ModelDigest,
    },
    checkpoint::{Checkpoint, Draft, Manifest, name},
    config::RunConfig,
    event::What,
    fs::{atomic, mmap::bytes_of},
    staged::{Split, Staged, StagedMeta, npy},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Rows per chunk unless asked otherwise: small enough to spread, large enough to write at once.
pub const CHUNK_ROWS: u64 = 8192;
/// Staged rows up to which the test forecasts of a training run are kept for its report.
const REPORT_ROWS_MAX: u64 = 100_000;

/// What to predict, and where it goes.
#[derive(Debug, Clone)]
pub struct PredictOptions {
    /// Data in the form the model was trained on; targets may be absent.
    pub files: Vec<PathBuf>,
    /// `NAME.parquet`, or a name without extension for a directory of .npy.
    pub output: PathBuf,
    /// Whether an output that is there may be replaced.
    pub replace: bool,
    /// Rows per chunk, at least 1. An interrupted prediction is taken up by the same call with the same number.
    pub chunk_rows: u64,
    /// Workers; `None` takes as many as trained the model.
    pub workers: Option<u32>,
    /// How progress is shown.
    pub mode: Mode,
    /// Whether SIGINT and SIGTERM stop the prediction.
    pub handle_signals: bool,
}

/// A prediction that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct PredictedRows {
    /// Finished, or stopped by a signal; the chunks that are done are kept for the next call.
    pub ended: Ended,
    /// The artifact; `None` when stopped.
    pub gathered: Option<Gathered>,
}

/// Predicts every row of `options.files` with the best weights of the run's newest complete checkpoint, in the target's own
/// unit and the order of the source; row ids travel with the rows.
///
/// # Errors
/// Data that are not the model's (a missing column, another shape), no complete checkpoint, an output that exists, or
/// [`Error::Worker`] when a worker failed and no restart was left.
pub fn predict(run: &Path, facts: &Facts, options: &PredictOptions) -> Result<PredictedRows, Error> {
    let began = Instant::now();
    let output = facts.cwd.join(&options.output);
    gather::Format::of(&output)?;
    if output.exists() && !options.replace {
        return Err(gather::GatherError::Exists { path: output }.into());
    }
    let run = RunDir::open(run)?;
    let (checkpoint, manifest) = newest(&run)?;
    let (mut config, meta) = model_of(&checkpoint, &manifest)?;
    let data = config.data.as_mut().ok_or(Error::Usage(Usage::NoData))?;
    data.files = options.files.iter().map(|file| facts.cwd.join(file)).collect();
    if let Some(workers) = options.workers {
        config.cluster.nproc_per_node = enn_common::config::train::Nproc::Count(workers.max(1));
    }
    let announcer = Announcer::start(Sink::bare(options.mode));
    announcer.tell(What::RunStarted {
        run: run.id(),
        mode: "predict".into(),
        dir: run.path().to_owned(),
        host: facts.host.clone(),
        nproc: launch::world(&config),
        argv: facts.argv.clone(),
    });
    let staged_dir = run.path().parent().unwrap_or(run.path()).join(STAGED_DIR);
    let staged = stage_data(&config, Some(meta), &staged_dir, &announcer)?;
    let partial = gather::partial_dir(&output);
    let digest = digest(&checkpoint, &manifest)?;
    let header = Header {
        checkpoint: digest.blake3.clone(),
        data: staged.meta.digest.clone(),
        chunk_rows: options.chunk_rows.max(1),
    };
    let mut ledger = Ledger::open(&partial, &header)?;
    let job = Job::Predict {
        staged: staged.dir.clone(),
        checkpoint: checkpoint.dir().to_owned(),
        out: partial,
        chunk_rows: header.chunk_rows,
        rows: staged.meta.rows,
        done: ledger.done(),
    };
    let outcome = launch_job(&config, facts, &run, job, options.handle_signals, &announcer)?;
    for chunk in &outcome.chunks {
        ledger.record(chunk.start, chunk.end, &chunk.blake3)?;
    }
    match outcome.ended {
        Ended::Failed { cause } => return Err(Error::Worker(cause)),
        Ended::Stopped(_) => return Ok(PredictedRows { ended: outcome.ended, gathered: None }),
        Ended::Finished => {}
    }
    let request = Request {
        output: &output,
        replace: options.replace,
        staged: &staged.dir,
        checkpoint: digest,
        versions: versions(),
        wall_time: now(),
    };
    let gathered = gather::predictions(&request, &ledger, &mut |_| {})?;
    let (path, files, bytes) = (gathered.path.clone(), gathered.files, gathered.bytes);
    announcer.tell(What::Gathered { path, files, bytes });
    let (seconds, rounds) = (began.elapsed().as_secs_f64(), outcome.rounds);
    let code = exit_code(&outcome.ended) as u8;
    announcer.tell(What::RunEnded { code, seconds, restarts: outcome.restarts, rounds });
    Ok(PredictedRows { ended: outcome.ended, gathered: Some(gathered) })
}

/// Predicts the test rows of a finished training run into `predictions/test`, for its report; large data are left out.
pub(super) fn test_forecasts(
    config: &RunConfig,
    facts: &Facts,
    run: &RunDir,
    checkpoint: &Path,
    staged: &Path,
) -> Result<(), Error> {
    let data = Staged::open(staged)?;
    let rows: Vec<usize> = data.rows_of(Split::Test).collect();
    if rows.is_empty() || data.meta().rows > REPORT_ROWS_MAX {
        return Ok(());
    }
    let out = run.path().join("predictions").join(".test.partial");
    let job = Job::Predict {
        staged: staged.to_owned(),
        checkpoint: checkpoint.to_owned(),
        out: out.clone(),
        chunk_rows: CHUNK_ROWS,
        rows: data.meta().rows,
        done: Vec::new(),
    };
    // One worker: its start costs more than these rows.
    let one = RunConfig {
        cluster: enn_common::config::train::ClusterConfig {
            nproc_per_node: enn_common::config::train::Nproc::Count(1),
            ..config.cluster.clone()
        },
        ..config.clone()
    };
    let silent = Announcer::start(Sink::bare(Mode::Quiet));
    let outcome = launch_job(&one, facts, run, job, false, &silent)?;
    if let Ended::Failed { cause } = outcome.ended {
        return Err(Error::Worker(cause));
    }
    let mut values: Vec<f32> = Vec::with_capacity(rows.len() * data.outputs());
    let mut wanted = rows.iter().copied().peekable();
    for found in &outcome.chunks {
        let open = Chunk::open(&chunk::path(&out, found.start, found.end), Some(&found.blake3))
            .map_err(gather::GatherError::from)?;
        let predictions = open.predictions().map_err(gather::GatherError::from)?;
        while let Some(row) = wanted.next_if(|&row| (row as u64) < found.end) {
            let at = (row - found.start as usize) * data.outputs();
            values.extend_from_slice(&predictions[at..at + data.outputs()]);
        }
    }
    let mut shape = vec![rows.len() as u64];
    shape.extend(data.meta().out_shape.iter().map(|&size| size as u64));
    let ids: Vec<i64> = rows.iter().map(|&row| row as i64).collect();
    let dir = run.path().join("predictions").join("test");
    std::fs::create_dir_all(&dir).map_err(|source| Error::Read { path: dir.clone(), source })?;
    write_array(&dir.join("pred.npy"), npy::Element::F32, &shape, bytes_of(&values))?;
    write_array(&dir.join("rows.npy"), npy::Element::I64, &shape[..1], bytes_of(&ids))?;
    std::fs::remove_dir_all(&out).map_err(|source| Error::Read { path: out, source })
}

fn write_array(path: &Path, element: npy::Element, shape: &[u64], data: &[u8]) -> Result<(), Error> {
    let offset = npy::Header::roomy_offset(element, &shape[1..]);
    let mut bytes = npy::Header::write(element, shape, offset).unwrap_or_default();
    bytes.extend_from_slice(data);
    Ok(atomic::write(path, &bytes)?)
}

fn launch_job(
    config: &RunConfig,
    facts: &Facts,
    run: &RunDir,
    job: Job,
    handle_signals: bool,
    announcer: &Announcer,
) -> Result<Outcome, Error> {
    let spec = launch::agent_spec(config, facts, run, job, handle_signals)?;
    // A prediction writes no checkpoint; the store only finds that out.
    let durable = Durable::new(run.checkpoints(), usize::MAX, Draft::default(), Box::new(|_| {}));
    Ok(agent::run(&spec, Box::new(durable), &mut |what| announcer.tell(what))?)
}

/// The newest complete checkpoint of a run.
fn newest(run: &RunDir) -> Result<(Checkpoint, Manifest), Error> {
    let none = || Error::NoCheckpoint { run: run.path().to_owned() };
    let found = enn_common::checkpoint::latest(&run.checkpoints()).found.ok_or_else(none)?;
    let manifest = found.manifest().cloned().ok_or_else(none)?;
    Ok((found, manifest))
}

/// What the manifest says of the model: the configuration and the data it was trained on.
fn model_of(checkpoint: &Checkpoint, manifest: &Manifest) -> Result<(RunConfig, StagedMeta), Error> {
    let json = |source| Error::Json { path: checkpoint.dir().join(name::MANIFEST), source };
    let config = serde_json::from_value(manifest.config.clone()).map_err(json)?;
    let meta = serde_json::from_value(manifest.meta.clone()).map_err(json)?;
    Ok((config, meta))
}

fn digest(checkpoint: &Checkpoint, manifest: &Manifest) -> Result<ModelDigest, Error> {
    let path = checkpoint.dir().join(name::MANIFEST);
    let bytes = std::fs::read(&path).map_err(|source| Error::Read { path, source })?;
    Ok(ModelDigest {
        run: manifest.run.clone(),
        step: manifest.step,
        blake3: blake3::hash(&bytes).to_hex().to_string(),
    })
}

/// Names and versions of what writes artifacts.
pub(super) fn versions() -> BTreeMap<String, String> {
    BTreeMap::from([("enn".to_owned(), env!("CARGO_PKG_VERSION").to_owned())])
}

/// Seconds since the Unix epoch.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
