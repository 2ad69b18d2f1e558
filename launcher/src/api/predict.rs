//! `predict`: stages new data by the model's description, predicts every row with the configured workers or an exported model's runtime,
//! and gathers the output.

mod engine;

pub use engine::Engine;
use engine::EngineSpec;
pub(super) use engine::{configured, write_chunk};

use super::{
    announce::Announcer,
    checkpoints::{ChunkRecorder, sound_checkpoint},
    launch,
    stream::WorkDir,
    train,
};
use crate::{
    Error,
    error::Usage,
    export::{Packed, is_packed},
    facts::Facts,
};
use enn_checkpoint::gather::{self, Arrays, Gathered, Header, Ledger};
use enn_cluster::agent::{self, Ended, Job};
use enn_common::{
    artifact::prediction::ModelDigest,
    checkpoint::{Checkpoint, name},
    config::{
        RunConfig,
        data::{DataConfig, Layout},
        train::Precision,
    },
    event::EventKind,
    staged::{StagedMeta, meta::CleaningReport},
};
use enn_data::stage::{CategoryCoverage, ROW_NAMES_MAX, StageError, check_classes};
use enn_process::run_dir::{self, RunDir};
use enn_ui::{Mode, Sink};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Target number of chunks, enough for any number of workers to end at the same time.
const CHUNKS_AIM: u64 = 64;
/// Maximum number of cells of a chunk (64 MiB).
const CHUNK_CELLS_MAX: u64 = 16 << 20;
/// Target number of values of a chunk, inputs and cells together, within the limits of rows below: each chunk costs files and a message,
/// and a GPU computes as many rows at once as there are.
const CHUNK_VALUES: u64 = 1 << 20;
const CHUNK_ROWS_MIN: u64 = 64;
const CHUNK_ROWS_FEW: u64 = 4096;

#[derive(Debug, Clone)]
pub struct PredictOptions {
    /// How the progress is shown.
    pub mode: Mode,
    /// Whether SIGINT and SIGTERM stop the prediction. Finished chunks are kept and not predicted again.
    pub handle_signals: bool,
    pub replace: bool,
    /// The number format of the encoder; the heads always compute in f32.
    pub precision: Precision,
    /// The engine that computes; `None`: an artifact's own runtime, or the run's workers.
    pub engine: Option<Engine>,
    /// Whether only point predictions are written, without quantiles.
    pub point: bool,
    /// Whether a column is accepted although the model does not know most of its values.
    pub allow_unseen: bool,
    /// Whether targets are evaluated, so that the model must know all of their classes.
    pub is_judged: bool,
    /// Changes to the run's configuration, such as the number of workers.
    pub overrides: Vec<super::Override>,
}

impl Default for PredictOptions {
    fn default() -> Self {
        Self {
            mode: Mode::Quiet,
            handle_signals: false,
            replace: false,
            precision: Precision::Fp32,
            engine: None,
            point: false,
            allow_unseen: false,
            is_judged: false,
            overrides: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Predictions {
    pub ended: Ended,
    /// The output and its manifest; `None` when stopped.
    pub gathered: Option<Gathered>,
}

/// Directory of temporary files of predictions by artifacts, below the user's cache directory.
pub(super) const SCRATCH: &str = "predict";

/// Predicts every row of `data` with the newest checkpoint of the run directory `model` (its best weights), or with the exported model
/// `model`, and writes `output`: `NAME.parquet`, `.arrow` or `.csv`, or without extension a directory of .npy files. Values are in the target's own unit;
/// rows keep their identity and the order of the source.
///
/// # Errors
/// No complete checkpoint, data that do not fit the model, an output that is there, or [`Error::Worker`].
pub fn predict(
    model: &Path,
    data: &[PathBuf],
    output: &Path,
    facts: &Facts,
    options: &PredictOptions,
) -> Result<Predictions, Error> {
    let began = Instant::now();
    let output = facts.cwd.join(output);
    let inputs: Vec<PathBuf> = data.iter().map(|file| facts.cwd.join(file)).collect();
    gather::writable(&output, options.replace, &inputs)?;
    let options = &PredictOptions { replace: options.replace || output.exists(), ..options.clone() };
    let subject = Subject::of(model, data, facts, options)?;
    if subject.engine.is_none() {
        facts.libtorch.begin();
    }
    if subject.is_alone {
        // An artifact alone has no run directory to use.
        let work = WorkDir::create(&subject.runs)?;
        let announcer = Announcer::start(Sink::bare(options.mode));
        let dirs = PredictDirs { run: None, staged: &work.path.join(train::STAGED_DIR), scratch: &work.path };
        return Ok(predict_into(&output, &subject, facts, options, &dirs, &announcer)?.0);
    }
    let run = RunDir::create(&model.join("predictions"), "predict", time::OffsetDateTime::now_utc())?;
    run.write_config(&subject.config)?;
    let announcer = Announcer::of_run(run.path(), options.mode, None)?;
    announcer.begin(&run, "predict", launch::world(&subject.config), facts);
    let dirs = PredictDirs { run: Some(&run), staged: &subject.runs.join(train::STAGED_DIR), scratch: run.path() };
    let outcome = predict_into(&output, &subject, facts, options, &dirs, &announcer);
    let (code, restarts, rounds) = match &outcome {
        Ok((predictions, restarts, rounds)) => (train::exit_code(&predictions.ended), *restarts, *rounds),
        Err(error) => (error.exit_code(), 0, 0),
    };
    let seconds = began.elapsed().as_secs_f64();
    let cause = train::cause(outcome.as_ref().map(|(predictions, ..)| &predictions.ended));
    announcer.send(EventKind::RunEnded { code: code as u8, seconds, restarts, rounds, cause });
    Ok(outcome?.0)
}

/// Predicts into memory like [`predict`], without leaving an output on the disk; `None` when stopped.
///
/// # Errors
/// The errors of [`predict`].
pub fn predict_arrays(
    model: &Path,
    data: &[PathBuf],
    facts: &Facts,
    options: &PredictOptions,
) -> Result<Option<Arrays>, Error> {
    let work = WorkDir::create(&facts.cache_dir.join(SCRATCH))?;
    let output = work.path.join("predictions");
    let done = predict(model, data, &output, facts, options)?;
    Ok(done.gathered.map(|_| Arrays::read(&output)).transpose()?)
}

struct PredictDirs<'a> {
    /// `None` for an artifact without a run.
    run: Option<&'a RunDir>,
    staged: &'a Path,
    scratch: &'a Path,
}

/// A model with the configuration and the data that it predicts.
pub(super) struct Subject {
    pub(super) runs: PathBuf,
    pub(super) checkpoint: PathBuf,
    pub(super) digest: ModelDigest,
    pub(super) config: RunConfig,
    pub(super) meta: StagedMeta,
    /// The exported model that is used instead of workers.
    pub(super) engine: Option<Packed>,
    /// Whether the exported model is used without a run.
    is_alone: bool,
}

impl Subject {
    /// Opens the newest sound checkpoint of a run directory. A warning is logged when it is not the newest checkpoint, or when the run has
    /// not ended.
    pub(super) fn trained(model: &Path) -> Result<Self, Error> {
        let found = sound_checkpoint(model)?;
        if let Some(note) = found.manifest().and_then(|manifest| unfinished(model, manifest.step)) {
            tracing::warn!("{note}");
        }
        let checkpoint = std::path::absolute(found.dir()).unwrap_or_else(|_| found.dir().to_owned());
        let manifest = found.manifest().ok_or_else(|| Error::NoManifest { path: checkpoint.clone() })?;
        let json = |source| Error::Json { path: checkpoint.join(name::MANIFEST), source };
        let config: RunConfig = serde_json::from_value(manifest.config.clone()).map_err(json)?;
        let meta: StagedMeta = serde_json::from_value(manifest.meta.clone()).map_err(json)?;
        let digest = ModelDigest { run: manifest.run.clone(), step: manifest.step, blake3: manifest_digest(&found)? };
        let runs = model.parent().unwrap_or(model).to_owned();
        Ok(Self { runs, checkpoint, digest, config, meta, engine: None, is_alone: false })
    }

    /// Describes an exported model by its sidecar file.
    fn packed(packed: Packed, facts: &Facts) -> Self {
        let origin = &packed.sidecar.model;
        let digest = ModelDigest { run: origin.run.clone(), step: origin.step, blake3: origin.checkpoint.clone() };
        Self {
            runs: facts.cache_dir.join(SCRATCH),
            checkpoint: packed.path.clone(),
            digest,
            config: engine::configured(&packed),
            meta: packed.sidecar.staged.clone(),
            engine: Some(packed),
            is_alone: true,
        }
    }

    /// Describes a run or an exported model with new data and changes to its configuration.
    pub(super) fn of(model: &Path, data: &[PathBuf], facts: &Facts, options: &PredictOptions) -> Result<Self, Error> {
        let engine = engine::chosen(model, facts, options)?;
        let trained = match engine {
            Some(packed) if is_packed(model) => Self::packed(packed, facts),
            engine => Self { engine, ..Self::trained(model)? },
        };
        let mut config = super::change_config(&trained.config, &options.overrides, facts)?;
        config.data = Some(new_data(config.data.take().ok_or(Error::Usage(Usage::NoData))?, data, facts)?);
        Ok(Self { config, ..trained })
    }

    /// Returns an error when the rows have columns or classes that the model was not trained on.
    fn check_known(&self, staged: &StagedMeta, options: &PredictOptions) -> Result<(), StageError> {
        let targets = self.targets();
        if options.is_judged && staged.has_classes {
            let classes = staged.out_labels.first().map_or(&[][..], Vec::as_slice);
            targets.iter().try_for_each(|target| check_classes(&staged.report, target, classes))?;
        }
        let mut words = CategoryCoverage::default();
        words.add(&staged.report, targets);
        if options.allow_unseen { Ok(()) } else { Ok(words.check()?) }
    }

    /// Returns the target columns; none for windows.
    pub(super) fn targets(&self) -> &[String] {
        match self.config.data.as_ref().map(|data| &data.layout) {
            Some(Layout::Rows(rows)) => &rows.targets,
            _ => &[],
        }
    }

    /// Returns the quantile levels computed for each cell, and whether only the point prediction is written.
    pub(super) fn levels(&self, is_point: bool) -> Result<(Vec<f64>, bool), Error> {
        match &self.engine {
            Some(packed) => Ok((packed.levels(is_point)?, false)),
            None => Ok((self.config.train.quantile_levels().to_vec(), is_point)),
        }
    }

    /// Prepares the runtime of the exported model, one of `world` on this machine; `None` for workers.
    pub(super) fn engine_spec(
        &self,
        world: u32,
        facts: &Facts,
        options: &PredictOptions,
        scratch: &Path,
    ) -> Result<Option<EngineSpec>, Error> {
        let spec = |packed| EngineSpec::new(packed, &self.config, world, facts, scratch, options.point);
        self.engine.as_ref().map(spec).transpose()
    }
}

/// Returns the description of the training data with other files.
fn new_data(data: DataConfig, files: &[PathBuf], facts: &Facts) -> Result<DataConfig, Error> {
    if files.is_empty() {
        return Err(Error::Usage(Usage::NothingToPredict));
    }
    let files: Vec<PathBuf> = files.iter().map(|file| facts.cwd.join(file)).collect();
    let extension = |files: &[PathBuf]| files.first().and_then(|file| file.extension().map(ToOwned::to_owned));
    // A format declared for the training files applies to files with the same extension.
    let format = data.format.filter(|_| extension(&files) == extension(&data.files));
    // New rows do not belong to the training sources: all are predicted, in their own order.
    Ok(DataConfig { files, sources: Vec::new(), format, ..data })
}

/// Returns a warning when the run is still training.
fn unfinished(model: &Path, step: u64) -> Option<String> {
    // The path may be the directory of a checkpoint.
    let run = model.ancestors().take(3).find(|dir| run_dir::is_run(dir))?;
    let run = run_dir::is_living(run).then_some(run)?;
    Some(format!(
        "{} is still training; its checkpoint of step {step} is used, and later ones may be better\n  hint: `enn status {}` shows the \
         progress",
        run.display(),
        run.display()
    ))
}

fn manifest_digest(checkpoint: &Checkpoint) -> Result<String, Error> {
    let path = checkpoint.dir().join(name::MANIFEST);
    let bytes = std::fs::read(&path).map_err(|source| Error::Read { path, source })?;
    Ok(blake3::hash(&bytes).to_hex().to_string())
}

/// Returns the number of rows per chunk. It depends on the data alone, so that a resumed prediction finds its chunks.
fn chunk_rows(rows: u64, features: u64, cells: u64) -> u64 {
    let most = (CHUNK_CELLS_MAX / cells.max(1)).max(1);
    let least = (CHUNK_VALUES / (features + cells).max(1)).clamp(CHUNK_ROWS_MIN, CHUNK_ROWS_FEW);
    rows.div_ceil(CHUNKS_AIM).max(least).min(most)
}

/// How the computation ended, the number of restarts and the number of rounds.
type Computed = (Ended, u32, u64);

fn predict_into(
    output: &Path,
    subject: &Subject,
    facts: &Facts,
    options: &PredictOptions,
    dirs: &PredictDirs<'_>,
    announcer: &Announcer,
) -> Result<(Predictions, u32, u64), Error> {
    let (levels, takes_point) = subject.levels(options.point)?;
    let staged = train::stage_data(&subject.config, Some(subject.meta.clone()), dirs.staged, announcer)?;
    subject.check_known(&staged.meta, options)?;
    for message in lost(&staged.meta.report) {
        announcer.send(EventKind::Warned { message });
    }
    let rows = staged.meta.rows;
    let cells = staged.meta.out_shape.iter().map(|size| *size as u64).product();
    let chunk_rows = chunk_rows(rows, staged.meta.features.len() as u64, cells);
    let partial = gather::partial_dir(output);
    // Chunks of another engine or with other levels do not belong to this prediction.
    let checkpoint = match &subject.engine {
        None => subject.digest.blake3.clone(),
        Some(packed) => format!("{} {} levels", packed.sidecar.blake3, levels.len()),
    };
    let header = Header { checkpoint, data: staged.meta.digest.clone(), chunk_rows, precision: options.precision };
    let ledger = Ledger::open(&partial, &header)?;
    let done = ledger.done();
    let complete = done.iter().map(|(start, end)| end - start).sum::<u64>() == rows;
    let ledger = Arc::new(Mutex::new(ledger));
    let mut ended = Ended::Finished;
    let mut restarts = 0;
    let mut rounds = 0;
    if !complete {
        let events = announcer.sender();
        let chunks = engine::Chunks {
            staged: &staged.dir,
            out: &partial,
            chunk_rows,
            rows,
            levels: levels.len(),
            ledger: &ledger,
            events,
        };
        (ended, restarts, rounds) = match dirs.run.filter(|_| subject.engine.is_none()) {
            Some(run) => by_workers(subject, &chunks, facts, options, run, announcer, ledger.clone())?,
            None => by_engine(subject, &chunks, facts, options, dirs.scratch)?,
        };
    }
    match ended {
        Ended::Failed { cause } => return Err(Error::Worker(cause)),
        Ended::Stopped(_) => return Ok((Predictions { ended, gathered: None }, restarts, rounds)),
        Ended::Finished => {}
    }
    let ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
    let gathered = gather_output(subject, &staged.dir, output, &ledger, &levels, takes_point, options.replace)?;
    for (reason, rows) in &gathered.failed {
        announcer.send(EventKind::Warned {
            message: format!("{rows} of {} rows have no prediction: {reason}", gathered.rows),
        });
    }
    let path = gathered.path.clone();
    let files = gathered.files;
    let bytes = gathered.bytes;
    announcer.send(EventKind::Gathered { path, files, bytes });
    Ok((Predictions { ended, gathered: Some(gathered) }, restarts, rounds))
}

/// Returns warnings about rows of the file that have no prediction or lose their names.
fn lost(report: &CleaningReport) -> Vec<String> {
    let mut lost = Vec::new();
    if let (Some(line), wrong) = (report.wrong_width_line, report.wrong_width) {
        lost.push(format!(
            "{wrong} lines of a wrong number of fields have no prediction, and rows are numbered without them; the first is line {line}"
        ));
    }
    if report.nameless > 0 {
        lost.push(format!(
            "{} rows are too many to keep their names, which is done for {ROW_NAMES_MAX}: predictions have numbers in reading order \
             instead, not the texts that the file has as row ids; predict it in parts for these",
            report.nameless
        ));
    }
    lost
}

fn gather_output(
    subject: &Subject,
    staged: &Path,
    output: &Path,
    ledger: &Ledger,
    levels: &[f64],
    point: bool,
    replace: bool,
) -> Result<Gathered, Error> {
    let mut versions = train::versions();
    versions.extend(subject.engine.iter().map(|packed| ("engine".to_owned(), packed.target.name().to_owned())));
    let checkpoint = subject.digest.clone();
    let wall_time = train::wall_time();
    let request = gather::Request { output, replace, staged, checkpoint, levels, point, versions, wall_time };
    Ok(gather::predictions(&request, ledger, &mut |_| {})?)
}

/// Predicts the missing chunks with the run's workers.
fn by_workers(
    subject: &Subject,
    chunks: &engine::Chunks<'_>,
    facts: &Facts,
    options: &PredictOptions,
    run: &RunDir,
    announcer: &Announcer,
    ledger: Arc<Mutex<Ledger>>,
) -> Result<Computed, Error> {
    let done = ledger.lock().unwrap_or_else(PoisonError::into_inner).done();
    let job = Job::Predict {
        staged: chunks.staged.to_owned(),
        checkpoint: subject.checkpoint.clone(),
        out: chunks.out.to_owned(),
        chunk_rows: chunks.chunk_rows,
        rows: chunks.rows,
        done,
        precision: options.precision,
    };
    let spec = launch::agent_spec(&subject.config, facts, run, job, options.handle_signals)?;
    let recorder = ChunkRecorder { ledger: Some(ledger), events: announcer.sender() };
    let outcome = agent::run(&spec, Box::new(recorder), &mut |what| announcer.send(what))?;
    Ok((outcome.ended, outcome.restarts, outcome.rounds))
}

/// Predicts the missing chunks with an exported model's runtime.
fn by_engine(
    subject: &Subject,
    chunks: &engine::Chunks<'_>,
    facts: &Facts,
    options: &PredictOptions,
    scratch: &Path,
) -> Result<Computed, Error> {
    let world = launch::world(&subject.config);
    let Some(spec) = subject.engine_spec(world, facts, options, scratch)? else { return Err(Error::NoWorker) };
    let max_restarts = subject.config.cluster.max_restarts;
    let (ended, restarts) = engine::compute(chunks, spec, world, max_restarts, options.handle_signals)?;
    Ok((ended, restarts, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_depend_on_the_data_and_fit_memory() {
        assert_eq!(chunk_rows(100, 8, 72), 4096);
        assert_eq!(chunk_rows(100, 2048, 2048), 256);
        assert_eq!(chunk_rows(100, 1 << 20, 72), 64);
        assert_eq!(chunk_rows(1_000_000, 8, 72), 15_625);
        assert_eq!(chunk_rows(1_000_000, 8, 16 << 20), 1);
        assert!(chunk_rows(1 << 40, 8, 936) * 936 <= CHUNK_CELLS_MAX);
    }
}
