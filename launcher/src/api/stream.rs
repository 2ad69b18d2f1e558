//! `predict` over pipes: an Arrow stream of rows in, an Arrow stream of predictions out, batch by batch.
//!
//! ```text
//! stdin ─► batch ─► batch.arrow ─► staged/ ─► enn-worker --serve ─► chunk ─► batch ─► stdout, flushed
//! ```
//! Each batch is a table of its own: for data cut into windows it must hold the history of what is to be predicted, and rows without
//! an identity are numbered within it. Memory is bounded by one batch, which is predicted `BATCH_ROWS_MAX` rows at a time.
//!
//! **Invariant:** the next batch is read when the last one is answered; nothing but Arrow goes to the output.

use super::{
    launch,
    oracle::{Oracle, Scratch},
    predict::{PredictOptions, SCRATCH, Subject, write_chunk},
};
use crate::{
    Error,
    export::{AtWork, is_packed},
    facts::Facts,
    gather::Stream,
    stage::{self, Acquaintance, Batches, StageError, StageOptions, ample},
};
use arrow_array::RecordBatch;
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, Schema};
use enn_common::{
    config::data::{DataConfig, Layout, SourceFormat},
    fs::{Disk, FileError, Storage},
    staged::Staged,
};
use std::{
    collections::HashSet,
    fs::{self, DirBuilder, File},
    io::{Read, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Rows predicted at once.
const BATCH_ROWS_MAX: usize = 65_536;
/// Beginning of the names of working directories; a process id follows, and the directory's number in the process.
const WORK: &str = ".stream-";
/// The next number.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Who answers.
enum Answerer {
    Worker(Oracle),
    /// An exported model, and how many levels it tells of each cell.
    Engine(AtWork, usize),
}

impl Answerer {
    fn start(
        subject: &Subject,
        (facts, options): (&Facts, &PredictOptions),
        scratch: &Path,
        levels: usize,
    ) -> Result<Self, Error> {
        if let Some(spot) = subject.spot(1, (facts, options), scratch)? {
            return Ok(Self::Engine(spot.start()?, levels));
        }
        let worker = launch::one_worker(&subject.config, facts)?;
        Ok(Self::Worker(Oracle::start(
            &worker,
            &subject.checkpoint,
            (options.precision, false),
            Scratch::Own(scratch),
        )?))
    }

    /// The chunk of the answers to all rows of a staged set, below `out`, and its digest.
    fn ask(&mut self, staged: &Path, out: &Path) -> Result<(PathBuf, String), Error> {
        match self {
            Self::Worker(oracle) => oracle.ask(staged, out),
            Self::Engine(engine, levels) => {
                let staged = Staged::open(staged)?;
                let written = write_chunk(engine, &staged, (0..staged.rows(), out), *levels)?;
                Ok((written.path, written.blake3))
            }
        }
    }

    fn end(self) -> Result<(), Error> {
        match self {
            Self::Worker(oracle) => oracle.end(),
            Self::Engine(..) => Ok(()),
        }
    }
}

/// Predicts the batches of `input` with the newest checkpoint of the run directory `model`, or the exported model `model`, and writes
/// each answer to `output` before the next batch is read; how many rows were predicted.
///
/// # Errors
/// A batch that is not like the training data, a stream that is cut, or the worker's own sentence. Answers given before stay.
pub fn predict_stream(
    model: &Path,
    input: impl Read,
    output: impl Write,
    facts: &Facts,
    options: &PredictOptions,
) -> Result<u64, Error> {
    let place = if is_packed(model) { facts.cache_dir.join(SCRATCH) } else { model.join("predictions") };
    let work = WorkDir::create(&place)?;
    let source = work.path.join("batch.arrow");
    let subject = Subject::of(model, std::slice::from_ref(&source), facts, options)?;
    let data = subject.config.data.clone().map(|data| DataConfig { format: Some(SourceFormat::Arrow), ..data });
    let Some(data) = data else { return Err(Error::Usage(crate::error::Usage::NoData)) };
    let (levels, takes_point) = subject.levels(options.point)?;
    let mut answerer = Answerer::start(&subject, (facts, options), &work.path, levels.len())?;
    let mut answers = Stream::new(output, &levels, takes_point);
    let staging =
        StageOptions { out: work.path.join("staged"), threads: 1, for_prediction: Some(subject.meta.clone()) };
    let mut rows = 0;
    let mut failed = 0;
    let mut words = Acquaintance::default();
    for batch in Batches::open_some(input, |schema| Ok(chosen(&data, schema)), ample).map_err(Error::Stream)? {
        let batch = batch.map_err(Error::Stream)?;
        for first in (0..batch.num_rows()).step_by(BATCH_ROWS_MAX) {
            let part = batch.slice(first, BATCH_ROWS_MAX.min(batch.num_rows() - first));
            write_file(&source, &part).map_err(Error::Stream)?;
            let staged = stage::stage(&data, &staging, &mut |_| {})?;
            words.add(&staged.meta.report, subject.targets());
            if !options.allow_unseen {
                words.judge_so_far().map_err(StageError::from)?;
            }
            let (chunk, blake3) = answerer.ask(&staged.dir, &work.path)?;
            failed += answers.write(&staged.meta, &chunk, &blake3)? as u64;
            rows += staged.meta.rows;
            Disk.remove_dir(&staging.out)?;
            Disk.remove_dir(&work.path.join(enn_common::artifact::chunk::FOLDER))?;
        }
    }
    answers.finish(&subject.meta)?;
    answerer.end()?;
    if !options.allow_unseen {
        words.judge().map_err(StageError::from)?;
    }
    if failed > 0 {
        tracing::warn!("{failed} of {rows} rows have no prediction");
    }
    Ok(rows)
}

/// The columns that staging asks for; all, where one is not there that must be: what is there instead is told.
fn chosen(data: &DataConfig, schema: &Schema) -> Option<Vec<usize>> {
    let inputs = data.input_columns();
    let others = data.other_columns();
    let there: HashSet<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let row_id = if let Layout::Rows(rows) = &data.layout { rows.row_id.as_deref() } else { None };
    let is_table = !inputs.is_empty() && inputs.iter().copied().chain(row_id).all(|column| there.contains(column));
    let read: HashSet<&str> = inputs.into_iter().chain(others).collect();
    let names = schema.fields().iter().map(|field| field.name().as_str()).enumerate();
    is_table.then(|| names.filter(|(_, name)| read.contains(name)).map(|(at, _)| at).collect())
}

fn write_file(path: &Path, batch: &RecordBatch) -> Result<(), ArrowError> {
    let mut writer = FileWriter::try_new(File::create(path)?, &batch.schema())?;
    writer.write(batch)?;
    writer.finish()
}

/// A directory of one stream, gone when it is dropped. When the process is killed the worker removes it; where both are, the next
/// stream does.
pub(super) struct WorkDir {
    pub(super) path: PathBuf,
}

impl WorkDir {
    pub(super) fn create(parent: &Path) -> Result<Self, Error> {
        fs::create_dir_all(parent).map_err(FileError::of("make the directory", parent))?;
        sweep(parent);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{WORK}{}.{number}", std::process::id()));
        // A process that had this one's id may have left it.
        let _absent = fs::remove_dir_all(&path);
        DirBuilder::new().mode(0o700).create(&path).map_err(FileError::of("make the directory", &path))?;
        Ok(Self { path })
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // What is left is removed by the next stream.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes working directories of processes that are no more. Best effort.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(WORK)?.split('.').next()?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
