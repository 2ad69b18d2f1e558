//! `predict`: stages new data by the model's description, predicts every row with the configured workers or an exported model's runtime,
//! and gathers the output.

mod engine;
mod options;
mod subject;
mod written;

use engine::EngineSpec;
pub use options::{Engine, PredictOptions};
pub(super) use subject::{SCRATCH, Subject, configured};
pub(super) use written::{write_answers, write_chunk};

use super::{
    announce::Announcer, checkpoints::ChunkRecorder, launch, loaded_model::LoadedModel, staging, stamp, trained_run,
    work_dir::WorkDir,
};
use crate::{Error, error::Usage, export::is_packed, facts::Facts};
use enn_checkpoint::gather::{self, Arrays, Gathered, Header, Ledger};
use enn_cluster::supervise::{self, RunEnd, RunJob};
use enn_common::{config::data::DataConfig, event::EventKind, staged::meta::CleaningReport};
use enn_data::stage::ROW_NAMES_MAX;
use enn_process::run_dir::RunDir;
use enn_ui::Sink;
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

/// Maximum number of rows that a loaded model predicts for one request.
const REQUEST_ROWS_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq)]
pub struct Predictions {
    pub ended: RunEnd,
    /// The output and its manifest; `None` when stopped.
    pub gathered: Option<Gathered>,
}

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
        let staged = &work.path.join(staging::STAGED_DIR);
        let place = PredictPlace { computer: Computer::Engine, staged, scratch: &work.path };
        return Ok(predict_into(&output, &subject, facts, options, place, &announcer)?.0);
    }
    let run = RunDir::create(&model.join("predictions"), "predict", time::OffsetDateTime::now_utc())?;
    run.write_config(&subject.config)?;
    let announcer = Announcer::of_run(&run, options.mode, None)?;
    announcer.begin(&run, "predict", launch::world(&subject.config), facts);
    let computer = if subject.engine.is_none() { Computer::Workers(&run) } else { Computer::Engine };
    let place = PredictPlace { computer, staged: &subject.runs.join(staging::STAGED_DIR), scratch: run.path() };
    let outcome = predict_into(&output, &subject, facts, options, place, &announcer);
    let (code, restarts, rounds) = match &outcome {
        Ok((predictions, restarts, rounds)) => (trained_run::exit_code(&predictions.ended), *restarts, *rounds),
        Err(error) => (error.exit_code(), 0, 0),
    };
    let seconds = began.elapsed().as_secs_f64();
    let cause = trained_run::cause(outcome.as_ref().map(|(predictions, ..)| &predictions.ended));
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

/// Predicts like [`predict`] with a model that is loaded, and leaves nothing but the output. Temporary files go into `scratch`.
pub(super) fn predict_loaded(
    model: &mut LoadedModel,
    subject: &Subject,
    output: &Path,
    facts: &Facts,
    options: &PredictOptions,
    scratch: &Path,
) -> Result<Gathered, Error> {
    let staged = &scratch.join(staging::STAGED_DIR);
    let announcer = Announcer::start(Sink::bare(options.mode));
    let place = PredictPlace { computer: Computer::Loaded(model), staged, scratch };
    let done = predict_into(output, subject, facts, options, place, &announcer);
    // The data of a request are not asked for again.
    let _none = std::fs::remove_dir_all(staged);
    done?.0.gathered.ok_or_else(|| Error::Worker("the prediction was stopped".to_owned()))
}

/// Where a prediction is computed, and where its temporary files go.
struct PredictPlace<'a> {
    computer: Computer<'a>,
    staged: &'a Path,
    scratch: &'a Path,
}

/// The processes that compute.
enum Computer<'a> {
    /// The workers of a run, which are started in this directory.
    Workers(&'a RunDir),
    /// The runtime of an exported model, which is started.
    Engine,
    Loaded(&'a mut LoadedModel),
}

impl Subject {
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

/// Returns the number of rows per chunk. It depends on the data alone, so that a resumed prediction finds its chunks.
fn chunk_rows(rows: u64, features: u64, cells: u64) -> u64 {
    let most = (CHUNK_CELLS_MAX / cells.max(1)).max(1);
    let least = (CHUNK_VALUES / (features + cells).max(1)).clamp(CHUNK_ROWS_MIN, CHUNK_ROWS_FEW);
    rows.div_ceil(CHUNKS_AIM).max(least).min(most)
}

/// How the computation ended, the number of restarts and the number of rounds.
type Computed = (RunEnd, u32, u64);

fn predict_into(
    output: &Path,
    subject: &Subject,
    facts: &Facts,
    options: &PredictOptions,
    place: PredictPlace<'_>,
    announcer: &Announcer,
) -> Result<(Predictions, u32, u64), Error> {
    let (levels, takes_point) = subject.levels(options.point)?;
    let staged = staging::stage_data(&subject.config, Some(subject.meta.clone()), place.staged, announcer)?;
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
    let mut ended = RunEnd::Finished;
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
        (ended, restarts, rounds) = match place.computer {
            Computer::Workers(run) => by_workers(subject, &chunks, facts, options, run, announcer, ledger.clone())?,
            Computer::Engine => by_engine(subject, &chunks, facts, options, place.scratch)?,
            Computer::Loaded(_) if rows > REQUEST_ROWS_MAX => {
                return Err(Error::Usage(Usage::LargeRequest { rows, most: REQUEST_ROWS_MAX }));
            }
            Computer::Loaded(model) => chunks.compute_with(model).map(|()| (RunEnd::Finished, 0, 1))?,
        };
    }
    match ended {
        RunEnd::Failed { cause } | RunEnd::CheckpointsUnusable { error: cause, .. } => {
            return Err(Error::Worker(cause));
        }
        RunEnd::Stopped(_) | RunEnd::HandedOff => return Ok((Predictions { ended, gathered: None }, restarts, rounds)),
        RunEnd::Finished => {}
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
    let mut versions = stamp::versions();
    versions.extend(subject.engine.iter().map(|packed| ("engine".to_owned(), packed.target.name().to_owned())));
    let checkpoint = subject.digest.clone();
    let wall_time = stamp::wall_time();
    let axes = subject.axes();
    let request = gather::Request { output, replace, staged, checkpoint, levels, point, axes, versions, wall_time };
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
    let job = RunJob::Predict {
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
    let outcome = supervise::run(&spec, Box::new(recorder), &mut |what| announcer.send(what))?;
    Ok((outcome.end, outcome.restarts, outcome.rounds))
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
    let Some(spec) = subject.engine_spec(world, facts, options, scratch)? else {
        return Err(Error::Worker("workers that predict need the directory of a run".to_owned()));
    };
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
