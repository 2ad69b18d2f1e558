//! Forecasts of the test rows, which the report of a training run draws.

use super::{announce::Announcer, launch};
use crate::{
    Error,
    agent::{self, Checkpoints, Committed, Ended, Job, ShardSet},
    evaluation,
    facts::Facts,
    gather::GatherError,
    run_dir::RunDir,
    ui::{Mode, Sink, report::TestPredictions},
};
use enn_common::{
    artifact::{
        chunk::{self, Chunk},
        classes::ClassFigures,
    },
    config::{
        RunConfig,
        train::{ClusterConfig, MEDIAN, Nproc, Precision},
    },
    fs::{Disk, Storage, atomic, mmap::bytes_of},
    staged::{Split, Staged, npy},
};
use std::path::Path;

/// Rows per chunk.
const CHUNK_ROWS: u64 = 8192;
/// Staged rows up to which the test forecasts are kept.
const ROWS_MAX: u64 = 100_000;

/// Nothing here writes a checkpoint.
struct NoCheckpoints;

impl Checkpoints for NoCheckpoints {
    fn prepare(&mut self) -> Result<Option<Committed>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(None)
    }

    fn commit(&mut self, _: &ShardSet) -> Result<Committed, Box<dyn std::error::Error + Send + Sync>> {
        Err("a worker that predicts wrote a checkpoint".into())
    }
}

/// Predicts the test rows of a finished training run into `predictions/test`, for its report; large data are left out.
pub(super) fn of_test_rows(
    config: &RunConfig,
    facts: &Facts,
    run: &RunDir,
    checkpoint: &Path,
    staged: &Path,
) -> Result<(), Error> {
    let meta = Staged::read_meta(staged)?;
    if meta.split_rows[2] == 0 || meta.rows > ROWS_MAX {
        return Ok(());
    }
    // Of few rows all are predicted: to copy the test rows takes as long.
    if meta.rows <= CHUNK_ROWS {
        return predict_test_rows(config, facts, run, (checkpoint, staged), Told::Quantiles);
    }
    let data = Staged::open(staged)?;
    let rows: Vec<usize> = data.rows_of(Split::Test).collect();
    let place = run.path().join(".test");
    let copy = evaluation::shuffled((&data, &rows), (0, &[]), (1, 0), rows.len(), &place)?;
    predict_test_rows(config, facts, run, (checkpoint, &copy.dir), Told::Quantiles)?;
    write_rows(run, &copy.rows)?;
    // What is left behind takes room and harms nothing.
    let _left = std::fs::remove_dir_all(&place);
    Ok(())
}

/// What the forecasts of the test rows are worth where they are of classes; `None` where they are not, or were not kept.
pub(super) fn classes(run: &RunDir, staged: &Path) -> Result<Option<ClassFigures>, Error> {
    let staged = Staged::open(staged)?;
    if !staged.meta().has_classes {
        return Ok(None);
    }
    let kept = TestPredictions::read(run.path(), &staged)?;
    Ok(kept.and_then(|kept| evaluation::classes(&staged, kept.each())))
}

/// What is kept of forecasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// The predictions alone.
    Points,
    /// Beside them the quantiles, where there are any.
    Quantiles,
}

/// The same, of any data, by the checkpoint.
pub(super) fn predict_test_rows(
    config: &RunConfig,
    facts: &Facts,
    run: &RunDir,
    (checkpoint, staged): (&Path, &Path),
    told: Told,
) -> Result<(), Error> {
    let data = Staged::open(staged)?;
    let out = run.path().join("predictions").join(".test.partial");
    let job = Job::Predict {
        staged: staged.to_owned(),
        checkpoint: checkpoint.to_owned(),
        out: out.clone(),
        chunk_rows: CHUNK_ROWS,
        rows: data.meta().rows,
        done: Vec::new(),
        precision: Precision::Fp32,
    };
    // One worker: its start costs more than these rows.
    let cluster = ClusterConfig { nproc_per_node: Nproc::Count(1), ..config.cluster.clone() };
    let one = RunConfig { cluster, ..config.clone() };
    let silent = Announcer::start(Sink::bare(Mode::Quiet));
    let spec = launch::agent_spec(&one, facts, run, job, false)?;
    let outcome = agent::run(&spec, Box::new(NoCheckpoints), &mut |what| silent.tell(what))?;
    if let Ended::Failed { cause } = outcome.ended {
        return Err(Error::Worker(cause));
    }
    let levels = config.train.quantile_levels();
    let rows: Vec<usize> = data.rows_of(Split::Test).collect();
    let values = collect(&outcome.chunks, &out, &rows, levels.len().max(1) * data.outputs())?;
    let count = rows.len() as u64;
    let outputs = data.outputs();
    let grid = data.meta().out_shape.iter().map(|&size| size as u64);
    let shape = |middle: Option<u64>| std::iter::once(count).chain(middle).chain(grid.clone()).collect::<Vec<u64>>();
    let dir = run.path().join("predictions").join("test");
    Disk.create_dir(&dir)?;
    let write = |name: &str, shape: &[u64], values: &[f32]| {
        write_array(&dir.join(name), npy::Element::F32, shape, bytes_of(values))
    };
    if levels.is_empty() {
        write("pred.npy", &shape(None), &values)?;
    } else {
        let point = levels.iter().position(|level| *level == MEDIAN).unwrap_or(0);
        let points = values.chunks_exact(outputs.max(1)).skip(point).step_by(levels.len());
        write("pred.npy", &shape(None), &points.flatten().copied().collect::<Vec<f32>>())?;
    }
    if !levels.is_empty() && told == Told::Quantiles {
        write("levels.npy", &shape(Some(levels.len() as u64)), &values)?;
        write_array(&dir.join("level.npy"), npy::Element::F64, &[levels.len() as u64], bytes_of(levels))?;
    }
    write_rows(run, &rows)?;
    Ok(Disk.remove_dir(&out)?)
}

/// Writes which staged rows the forecasts are of.
fn write_rows(run: &RunDir, rows: &[usize]) -> Result<(), Error> {
    let rows: Vec<i64> = rows.iter().map(|&row| row as i64).collect();
    let path = run.path().join("predictions/test/rows.npy");
    write_array(&path, npy::Element::I64, &[rows.len() as u64], bytes_of(&rows))
}

/// The forecasts (n, `numbers` each) of these rows, in order, among the chunks.
fn collect(chunks: &[agent::Chunk], out: &Path, rows: &[usize], numbers: usize) -> Result<Vec<f32>, GatherError> {
    let mut values: Vec<f32> = Vec::with_capacity(rows.len() * numbers);
    let mut wanted = rows.iter().copied().peekable();
    for found in chunks {
        let open = Chunk::open(&chunk::path(out, found.start, found.end), Some(&found.blake3))?;
        let predictions = open.predictions()?;
        while let Some(row) = wanted.next_if(|&row| (row as u64) < found.end) {
            let at = (row - found.start as usize) * numbers;
            values.extend_from_slice(&predictions[at..at + numbers]);
        }
    }
    Ok(values)
}

fn write_array(path: &Path, element: npy::Element, shape: &[u64], data: &[u8]) -> Result<(), Error> {
    let offset = npy::Header::roomy_offset(element, &shape[1..]);
    let mut bytes = npy::Header::write(element, shape, offset).unwrap_or_default();
    bytes.extend_from_slice(data);
    Ok(atomic::write(path, &bytes)?)
}
