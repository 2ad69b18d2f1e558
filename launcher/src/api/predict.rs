//! `predict`: stage new data as the model knows them, predict every row with the configured workers, gather.

use super::{announce::Announcer, launch, train};
use crate::{
    Error,
    agent::{self, Checkpoints, Chunk, Committed, Ended, Job, ShardSet},
    error::Usage,
    facts::Facts,
    gather::{self, Gathered, Header, Ledger},
    run_dir::RunDir,
    ui::Mode,
};
use enn_common::{
    artifact::prediction::ModelDigest,
    checkpoint::{Checkpoint, listing, name},
    config::{RunConfig, data::DataConfig, train::Precision},
    event::What,
    staged::StagedMeta,
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Chunks that a set of rows is cut into, about: enough for any number of workers to end at the same time.
const CHUNKS_AIM: u64 = 64;
/// Cells of a chunk at most (64 MiB) and rows at least.
const CHUNK_CELLS_MAX: u64 = 16 << 20;
const CHUNK_ROWS_MIN: u64 = 64;

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

/// Predicts every row of `data` with the newest checkpoint of the run directory `model` (its best weights) and writes
/// `output`: `NAME.parquet`, or without extension a directory of .npy files. Values are in the target's own unit; rows keep
/// their identity and the order of the source.
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
    let subject = Subject::of(model, data, facts, options)?;
    let output = facts.cwd.join(output);
    gather::Format::of(&output)?;
    if output.exists() && !options.replace {
        return Err(gather::GatherError::Exists { path: output }.into());
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
    let outcome = work(&subject, &output, (facts, options), (&run, &announcer));
    let (code, restarts, rounds) = match &outcome {
        Ok((predictions, restarts, rounds)) => (train::exit_code(&predictions.ended), *restarts, *rounds),
        Err(error) => (error.exit_code(), 0, 0),
    };
    let seconds = began.elapsed().as_secs_f64();
    announcer.tell(What::RunEnded { code: code as u8, seconds, restarts, rounds });
    Ok(outcome?.0)
}

/// What predicts, and what it predicts.
pub(super) struct Subject {
    pub(super) runs: PathBuf,
    pub(super) checkpoint: PathBuf,
    pub(super) digest: ModelDigest,
    pub(super) config: RunConfig,
    pub(super) meta: StagedMeta,
}

impl Subject {
    /// The newest checkpoint of a run directory, as it was configured.
    pub(super) fn trained(model: &Path) -> Result<Self, Error> {
        let found = listing::find(model)?;
        let checkpoint = std::path::absolute(found.dir()).unwrap_or_else(|_| found.dir().to_owned());
        let manifest = found.manifest().ok_or_else(|| Error::NoCard { path: checkpoint.clone() })?;
        let json = |source| Error::Json { path: checkpoint.join(name::MANIFEST), source };
        let config: RunConfig = serde_json::from_value(manifest.config.clone()).map_err(json)?;
        let meta: StagedMeta = serde_json::from_value(manifest.meta.clone()).map_err(json)?;
        let digest = ModelDigest { run: manifest.run.clone(), step: manifest.step, blake3: manifest_digest(&found)? };
        let runs = model.parent().unwrap_or(model).to_owned();
        Ok(Self { runs, checkpoint, digest, config, meta })
    }

    /// The same with new data, and with changes to its configuration.
    pub(super) fn of(model: &Path, data: &[PathBuf], facts: &Facts, options: &PredictOptions) -> Result<Self, Error> {
        let trained = Self::trained(model)?;
        let mut config = super::change_config(&trained.config, &options.overrides, facts)?;
        config.data = Some(new_data(config.data.take().ok_or(Error::Usage(Usage::NoData))?, data, facts)?);
        Ok(Self { config, ..trained })
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

fn manifest_digest(checkpoint: &Checkpoint) -> Result<String, Error> {
    let path = checkpoint.dir().join(name::MANIFEST);
    let bytes = std::fs::read(&path).map_err(|source| Error::Read { path, source })?;
    Ok(blake3::hash(&bytes).to_hex().to_string())
}

/// Rows per chunk: by the data alone, so that a prediction that is taken up again finds its chunks.
fn chunk_rows(rows: u64, cells: u64) -> u64 {
    let most = (CHUNK_CELLS_MAX / cells.max(1)).max(1);
    rows.div_ceil(CHUNKS_AIM).max(CHUNK_ROWS_MIN).min(most)
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

fn work(
    subject: &Subject,
    output: &Path,
    (facts, options): (&Facts, &PredictOptions),
    (run, announcer): (&RunDir, &Announcer),
) -> Result<(Predictions, u32, u64), Error> {
    let place = subject.runs.join(train::STAGED_DIR);
    let staged = train::stage_data(&subject.config, Some(subject.meta.clone()), &place, announcer)?;
    let rows = staged.meta.rows;
    let cells = staged.meta.out_shape.iter().map(|size| *size as u64).product();
    let chunk_rows = chunk_rows(rows, cells);
    let partial = gather::partial_dir(output);
    let (checkpoint, data) = (subject.digest.blake3.clone(), staged.meta.digest.clone());
    let header = Header { checkpoint, data, chunk_rows, precision: options.precision };
    let ledger = Ledger::open(&partial, &header)?;
    let done = ledger.done();
    let complete = done.iter().map(|(start, end)| end - start).sum::<u64>() == rows;
    let ledger = Arc::new(Mutex::new(ledger));
    let (mut ended, mut restarts, mut rounds) = (Ended::Finished, 0, 0);
    if !complete {
        let (staged, checkpoint) = (staged.dir.clone(), subject.checkpoint.clone());
        let job =
            Job::Predict { staged, checkpoint, out: partial, chunk_rows, rows, done, precision: options.precision };
        let spec = launch::agent_spec(&subject.config, facts, run, job, options.handle_signals)?;
        let notes = Notes(ledger.clone(), announcer.teller());
        let outcome = agent::run(&spec, Box::new(notes), &mut |what| announcer.tell(what))?;
        (ended, restarts, rounds) = (outcome.ended, outcome.restarts, outcome.rounds);
    }
    match ended {
        Ended::Failed { cause } => return Err(Error::Worker(cause)),
        Ended::Stopped(_) => return Ok((Predictions { ended, gathered: None }, restarts, rounds)),
        Ended::Finished => {}
    }
    let request = gather::Request {
        output,
        replace: options.replace,
        staged: &staged.dir,
        checkpoint: subject.digest.clone(),
        levels: subject.config.train.quantile_levels(),
        versions: train::versions(),
        wall_time: train::wall_time(),
    };
    let ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
    let gathered = gather::predictions(&request, &ledger, &mut |_| {})?;
    for (reason, rows) in &gathered.failed {
        announcer
            .tell(What::Warned { message: format!("{rows} of {} rows have no prediction: {reason}", gathered.rows) });
    }
    let (path, files, bytes) = (gathered.path.clone(), gathered.files, gathered.bytes);
    announcer.tell(What::Gathered { path, files, bytes });
    Ok((Predictions { ended, gathered: Some(gathered) }, restarts, rounds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_depend_on_the_data_and_fit_memory() {
        assert_eq!(chunk_rows(100, 72), 64);
        assert_eq!(chunk_rows(1_000_000, 72), 15_625);
        assert_eq!(chunk_rows(1_000_000, 16 << 20), 1);
        assert!(chunk_rows(1 << 40, 936) * 936 <= CHUNK_CELLS_MAX);
    }
}
