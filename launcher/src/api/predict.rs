//! `predict`: stage new data as the model knows them, predict every row with the configured workers or an exported model's runtime,
//! gather.

mod engine;

pub use engine::Engine;
use engine::Spot;
pub(super) use engine::{configured, write_chunk};

use super::{announce::Announcer, launch, stream::WorkDir, train};
use crate::{
    Error,
    agent::{self, Checkpoints, Chunk, Committed, Ended, Job, ShardSet},
    error::Usage,
    export::{Packed, is_packed},
    facts::Facts,
    gather::{self, Arrays, Gathered, Header, Ledger},
    run_dir::{self, RunDir},
    stage::{Acquaintance, ROW_NAMES_MAX, StageError, judge_classes},
    ui::{Mode, Sink},
};
use enn_common::{
    artifact::prediction::ModelDigest,
    checkpoint::{Checkpoint, Extent, find_sound, name},
    config::{
        RunConfig,
        data::{DataConfig, Layout},
        train::Precision,
    },
    event::What,
    staged::{StagedMeta, meta::CleaningReport},
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Chunks that a set of rows is cut into, about: enough for any number of workers to end at the same time.
const CHUNKS_AIM: u64 = 64;
/// Cells of a chunk at most (64 MiB).
const CHUNK_CELLS_MAX: u64 = 16 << 20;
/// A chunk has so many values, inputs and cells together, as far as that is between these numbers of rows: each costs files and a
/// message, and a GPU computes as many rows at once as there are.
const CHUNK_VALUES: u64 = 1 << 20;
const CHUNK_ROWS_MIN: u64 = 64;
const CHUNK_ROWS_FEW: u64 = 4096;

/// How to predict.
#[derive(Debug, Clone)]
pub struct PredictOptions {
    /// How it is shown.
    pub mode: Mode,
    /// Whether SIGINT and SIGTERM stop it. What is predicted by then is kept and not predicted again.
    pub handle_signals: bool,
    /// Whether an output that is there is replaced.
    pub replace: bool,
    /// What the encoder computes in; the heads always compute in f32.
    pub precision: Precision,
    /// Who computes; without, an artifact's own runtime or the run's workers.
    pub engine: Option<Engine>,
    /// Whether the predictions alone are told, without the quantiles beside them.
    pub point: bool,
    /// Whether a column of which the model does not know most is predicted all the same.
    pub allow_unseen: bool,
    /// Whether targets are judged, so that each must be one that the model can predict.
    pub is_judged: bool,
    /// Changes to the run's configuration, e.g. of the number of workers.
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

/// What prediction left behind.
#[derive(Debug, Clone, PartialEq)]
pub struct Predictions {
    /// Finished, or stopped by a signal.
    pub ended: Ended,
    /// The output and its manifest; `None` when stopped.
    pub gathered: Option<Gathered>,
}

/// Below the user's cache directory: what a prediction by an artifact leaves for a moment.
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
        // There is no run that it could be part of.
        let work = WorkDir::create(&subject.runs)?;
        let announcer = Announcer::start(Sink::bare(options.mode));
        let place = Place { run: None, staged: &work.path.join(train::STAGED_DIR), scratch: &work.path };
        return Ok(work_on(&subject, &output, (facts, options), (&place, &announcer))?.0);
    }
    let run = RunDir::create(&model.join("predictions"), "predict", time::OffsetDateTime::now_utc())?;
    run.write_config(&subject.config)?;
    let announcer = Announcer::of_run(run.path(), options.mode, None)?;
    announcer.tell(What::RunStarted {
        run: run.id(),
        mode: "predict".into(),
        dir: run.path().to_owned(),
        host: facts.host.clone(),
        nproc: launch::world(&subject.config),
        argv: facts.argv.clone(),
    });
    let place = Place { run: Some(&run), staged: &subject.runs.join(train::STAGED_DIR), scratch: run.path() };
    let outcome = work_on(&subject, &output, (facts, options), (&place, &announcer));
    let (code, restarts, rounds) = match &outcome {
        Ok((predictions, restarts, rounds)) => (train::exit_code(&predictions.ended), *restarts, *rounds),
        Err(error) => (error.exit_code(), 0, 0),
    };
    let seconds = began.elapsed().as_secs_f64();
    let cause = train::cause(outcome.as_ref().map(|(predictions, ..)| &predictions.ended));
    announcer.tell(What::RunEnded { code: code as u8, seconds, restarts, rounds, cause });
    Ok(outcome?.0)
}

/// As [`predict`], into memory: no output is left on the disk. `None` when stopped.
///
/// # Errors
/// As there.
pub fn predict_arrays(
    model: &Path,
    data: &[PathBuf],
    facts: &Facts,
    options: &PredictOptions,
) -> Result<Option<Arrays>, Error> {
    let work = WorkDir::create(&facts.cache_dir.join(SCRATCH))?;
    let output = work.path.join("told");
    let done = predict(model, data, &output, facts, options)?;
    Ok(done.gathered.map(|_| Arrays::read(&output)).transpose()?)
}

/// Where a prediction has its files.
struct Place<'a> {
    /// `None` for an artifact without a run.
    run: Option<&'a RunDir>,
    staged: &'a Path,
    scratch: &'a Path,
}

/// What predicts, and what it predicts.
pub(super) struct Subject {
    pub(super) runs: PathBuf,
    pub(super) checkpoint: PathBuf,
    pub(super) digest: ModelDigest,
    pub(super) config: RunConfig,
    pub(super) meta: StagedMeta,
    /// The exported model that is used instead of workers.
    pub(super) engine: Option<Packed>,
    /// Whether there is nothing but the exported model.
    is_alone: bool,
}

impl Subject {
    /// The newest sound checkpoint of a run directory, as it was configured. That it is not the newest, or that the run is not over, is
    /// told: the answers are those of a model that is not what its name promises.
    pub(super) fn trained(model: &Path) -> Result<Self, Error> {
        let found = find_sound(model, Extent::Weights)?;
        found.notes().iter().for_each(|note| tracing::warn!("{note}"));
        let found = found.checkpoint;
        if let Some(note) = found.manifest().and_then(|manifest| unfinished(model, manifest.step)) {
            tracing::warn!("{note}");
        }
        let checkpoint = std::path::absolute(found.dir()).unwrap_or_else(|_| found.dir().to_owned());
        let manifest = found.manifest().ok_or_else(|| Error::NoCard { path: checkpoint.clone() })?;
        let json = |source| Error::Json { path: checkpoint.join(name::MANIFEST), source };
        let config: RunConfig = serde_json::from_value(manifest.config.clone()).map_err(json)?;
        let meta: StagedMeta = serde_json::from_value(manifest.meta.clone()).map_err(json)?;
        let digest = ModelDigest { run: manifest.run.clone(), step: manifest.step, blake3: manifest_digest(&found)? };
        let runs = model.parent().unwrap_or(model).to_owned();
        Ok(Self { runs, checkpoint, digest, config, meta, engine: None, is_alone: false })
    }

    /// An exported model, with what is said beside it.
    fn packed(packed: Packed, facts: &Facts) -> Self {
        let said = &packed.said.model;
        let digest = ModelDigest { run: said.run.clone(), step: said.step, blake3: said.checkpoint.clone() };
        Self {
            runs: facts.cache_dir.join(SCRATCH),
            checkpoint: packed.path.clone(),
            digest,
            config: engine::configured(&packed),
            meta: packed.said.staged.clone(),
            engine: Some(packed),
            is_alone: true,
        }
    }

    /// A run or an exported model with new data, and with changes to its configuration.
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

    /// Refuses rows that the model was not trained on.
    fn judge_words(&self, staged: &StagedMeta, options: &PredictOptions) -> Result<(), StageError> {
        let targets = self.targets();
        if options.is_judged && staged.has_classes {
            let classes = staged.out_labels.first().map_or(&[][..], Vec::as_slice);
            targets.iter().try_for_each(|target| judge_classes(&staged.report, target, classes))?;
        }
        let mut words = Acquaintance::default();
        words.add(&staged.report, targets);
        if options.allow_unseen { Ok(()) } else { Ok(words.judge()?) }
    }

    /// Target columns of rows.
    pub(super) fn targets(&self) -> &[String] {
        match self.config.data.as_ref().map(|data| &data.layout) {
            Some(Layout::Rows(rows)) => &rows.targets,
            _ => &[],
        }
    }

    /// Levels that are computed of each cell, and whether no more than the point of them is told.
    pub(super) fn levels(&self, is_point: bool) -> Result<(Vec<f64>, bool), Error> {
        match &self.engine {
            Some(packed) => Ok((packed.levels(is_point)?, false)),
            None => Ok((self.config.train.quantile_levels().to_vec(), is_point)),
        }
    }

    /// Where its exported model runs, one of `world` on this machine.
    pub(super) fn spot(
        &self,
        world: u32,
        (facts, options): (&Facts, &PredictOptions),
        scratch: &Path,
    ) -> Result<Option<Spot>, Error> {
        let spot = |packed| Spot::new(packed, (&self.config, world), facts, (scratch, options.point));
        self.engine.as_ref().map(spot).transpose()
    }
}

/// The training data's description, with other files.
fn new_data(data: DataConfig, files: &[PathBuf], facts: &Facts) -> Result<DataConfig, Error> {
    if files.is_empty() {
        return Err(Error::Usage(Usage::NothingToPredict));
    }
    let files: Vec<PathBuf> = files.iter().map(|file| facts.cwd.join(file)).collect();
    let extension = |files: &[PathBuf]| files.first().and_then(|file| file.extension().map(ToOwned::to_owned));
    // A format that was declared for the training files holds for files that are named like them.
    let format = data.format.filter(|_| extension(&files) == extension(&data.files));
    // New rows come from no source of the training: they are all answered, in their own order.
    Ok(DataConfig { files, sources: Vec::new(), format, ..data })
}

/// Whether a run still trains, in words.
fn unfinished(model: &Path, step: u64) -> Option<String> {
    // A checkpoint may be named by its own directory.
    let run = model.ancestors().take(3).find(|dir| run_dir::is_run(dir))?;
    let run = run_dir::is_living(run).then_some(run)?;
    Some(format!(
        "{} is still training; its checkpoint of step {step} is used, which later ones may better\n  hint: `enn status {}` tells how \
         far it is",
        run.display(),
        run.display()
    ))
}

fn manifest_digest(checkpoint: &Checkpoint) -> Result<String, Error> {
    let path = checkpoint.dir().join(name::MANIFEST);
    let bytes = std::fs::read(&path).map_err(|source| Error::Read { path, source })?;
    Ok(blake3::hash(&bytes).to_hex().to_string())
}

/// Rows per chunk: by the data alone, so that a prediction that is taken up again finds its chunks.
fn chunk_rows(rows: u64, features: u64, cells: u64) -> u64 {
    let most = (CHUNK_CELLS_MAX / cells.max(1)).max(1);
    let least = (CHUNK_VALUES / (features + cells).max(1)).clamp(CHUNK_ROWS_MIN, CHUNK_ROWS_FEW);
    rows.div_ceil(CHUNKS_AIM).max(least).min(most)
}

/// Notes chunks as they come; there are no checkpoints.
struct Notes(Arc<Mutex<Ledger>>, Option<super::announce::Teller>);

impl Checkpoints for Notes {
    fn prepare(&mut self) -> Result<Option<Committed>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(None)
    }

    fn commit(&mut self, _: &ShardSet) -> Result<Committed, Box<dyn std::error::Error + Send + Sync>> {
        Err("a worker that predicts wrote a checkpoint".into())
    }

    fn predicted(&mut self, chunk: &Chunk) {
        let mut ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Err(error), Some(teller)) = (ledger.record(chunk.start, chunk.end, &chunk.blake3), &self.1) {
            teller.tell(What::Warned { message: format!("rows {}..{}: {error}", chunk.start, chunk.end) });
        }
    }
}

/// How computing ended, how often something was started again, and in how many rounds.
type Computed = (Ended, u32, u64);

fn work_on(
    subject: &Subject,
    output: &Path,
    (facts, options): (&Facts, &PredictOptions),
    (place, announcer): (&Place<'_>, &Announcer),
) -> Result<(Predictions, u32, u64), Error> {
    let (levels, takes_point) = subject.levels(options.point)?;
    let staged = train::stage_data(&subject.config, Some(subject.meta.clone()), place.staged, announcer)?;
    subject.judge_words(&staged.meta, options)?;
    for message in lost(&staged.meta.report) {
        announcer.tell(What::Warned { message });
    }
    let rows = staged.meta.rows;
    let cells = staged.meta.out_shape.iter().map(|size| *size as u64).product();
    let chunk_rows = chunk_rows(rows, staged.meta.features.len() as u64, cells);
    let partial = gather::partial_dir(output);
    // Chunks of another engine, or with other numbers in them, are not those of this prediction.
    let checkpoint = match &subject.engine {
        None => subject.digest.blake3.clone(),
        Some(packed) => format!("{} {} levels", packed.said.blake3, levels.len()),
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
        let teller = announcer.teller();
        let chunks = engine::Chunks {
            staged: &staged.dir,
            out: &partial,
            chunk_rows,
            rows,
            levels: levels.len(),
            ledger: &ledger,
            teller,
        };
        (ended, restarts, rounds) = match place.run.filter(|_| subject.engine.is_none()) {
            Some(run) => by_workers(subject, &chunks, (facts, options), (run, announcer), ledger.clone())?,
            None => by_engine(subject, &chunks, (facts, options), place)?,
        };
    }
    match ended {
        Ended::Failed { cause } => return Err(Error::Worker(cause)),
        Ended::Stopped(_) => return Ok((Predictions { ended, gathered: None }, restarts, rounds)),
        Ended::Finished => {}
    }
    let ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
    let gathered = put_together((subject, &staged.dir), (output, &ledger), (&levels, takes_point), options.replace)?;
    for (reason, rows) in &gathered.failed {
        announcer
            .tell(What::Warned { message: format!("{rows} of {} rows have no prediction: {reason}", gathered.rows) });
    }
    let path = gathered.path.clone();
    let files = gathered.files;
    let bytes = gathered.bytes;
    announcer.tell(What::Gathered { path, files, bytes });
    Ok((Predictions { ended, gathered: Some(gathered) }, restarts, rounds))
}

/// What the file says of its rows and predictions do not.
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

fn put_together(
    (subject, staged): (&Subject, &Path),
    (output, ledger): (&Path, &Ledger),
    (levels, point): (&[f64], bool),
    replace: bool,
) -> Result<Gathered, Error> {
    let mut versions = train::versions();
    versions.extend(subject.engine.iter().map(|packed| ("engine".to_owned(), packed.target.name().to_owned())));
    let checkpoint = subject.digest.clone();
    let wall_time = train::wall_time();
    let request = gather::Request { output, replace, staged, checkpoint, levels, point, versions, wall_time };
    Ok(gather::predictions(&request, ledger, &mut |_| {})?)
}

/// The chunks that are missing, by the run's workers.
fn by_workers(
    subject: &Subject,
    chunks: &engine::Chunks<'_>,
    (facts, options): (&Facts, &PredictOptions),
    (run, announcer): (&RunDir, &Announcer),
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
    let notes = Notes(ledger, announcer.teller());
    let outcome = agent::run(&spec, Box::new(notes), &mut |what| announcer.tell(what))?;
    Ok((outcome.ended, outcome.restarts, outcome.rounds))
}

/// The same by an exported model's runtime.
fn by_engine(
    subject: &Subject,
    chunks: &engine::Chunks<'_>,
    (facts, options): (&Facts, &PredictOptions),
    place: &Place<'_>,
) -> Result<Computed, Error> {
    let world = launch::world(&subject.config);
    let Some(spot) = subject.spot(world, (facts, options), place.scratch)? else { return Err(Error::NoWorker) };
    let max_restarts = subject.config.cluster.max_restarts;
    let (ended, restarts) = engine::compute(chunks, spot, (world, max_restarts), options.handle_signals)?;
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
