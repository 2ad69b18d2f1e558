//! Forecasts of the test rows, which are drawn in the report of a training run.

use super::{announce::Announcer, checkpoints::ChunkRecorder, launch};
use crate::{Error, facts::Facts};
use enn_checkpoint::gather::GatherError;
use enn_cluster::supervise::{self, PredictedChunk, RunEnd, RunJob};
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
use enn_data::evaluation;
use enn_process::run_dir::RunDir;
use enn_ui::{Mode, Sink, report::TestPredictions};
use std::path::Path;

const CHUNK_ROWS: u64 = 8192;
/// Number of staged rows up to which the test forecasts are kept.
const ROWS_MAX: u64 = 100_000;

/// Predicts the test rows of a finished training run into `predictions/test`, for its report; does nothing for large data.
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
    // Predicting all rows of a small set takes no longer than copying its test rows.
    if meta.rows <= CHUNK_ROWS {
        return predict_test_rows(config, facts, run, checkpoint, staged, Kept::Quantiles);
    }
    let data = Staged::open(staged)?;
    let rows: Vec<usize> = data.rows_of(Split::Test).collect();
    let place = run.path().join(".test");
    let copy = evaluation::Shuffle { staged: &data, rows: &rows, rows_max: rows.len(), repeats: 1, seed: 0 }.write(
        0,
        &[],
        &place,
    )?;
    predict_test_rows(config, facts, run, checkpoint, &copy.dir, Kept::Quantiles)?;
    write_rows(run, &copy.rows)?;
    // A failure here only leaves unused files.
    let _left = std::fs::remove_dir_all(&place);
    Ok(())
}

/// Computes class metrics of the test forecasts; `None` when the targets are not classes, or the forecasts were not kept.
pub(super) fn classes(run: &RunDir, staged: &Path) -> Result<Option<ClassFigures>, Error> {
    let staged = Staged::open(staged)?;
    if !staged.meta().has_classes {
        return Ok(None);
    }
    let kept = TestPredictions::read(run.path(), &staged)?;
    Ok(kept.and_then(|kept| evaluation::classes(&staged, kept.each())))
}

/// Which parts of forecasts are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// Point predictions without quantiles.
    Points,
    /// Point predictions, and the quantiles if the model has them.
    Quantiles,
}

/// Predicts the test rows of the staged data with the checkpoint into `predictions/test`.
pub(super) fn predict_test_rows(
    config: &RunConfig,
    facts: &Facts,
    run: &RunDir,
    checkpoint: &Path,
    staged: &Path,
    kept: Kept,
) -> Result<(), Error> {
    let data = Staged::open(staged)?;
    let out = run.path().join("predictions").join(".test.partial");
    let job = RunJob::Predict {
        staged: staged.to_owned(),
        checkpoint: checkpoint.to_owned(),
        out: out.clone(),
        chunk_rows: CHUNK_ROWS,
        rows: data.meta().rows,
        done: Vec::new(),
        precision: Precision::Fp32,
    };
    // One worker is enough: a start costs more than predicting these rows.
    let cluster = ClusterConfig { nproc_per_node: Nproc::Count(1), ..config.cluster.clone() };
    let one = RunConfig { cluster, ..config.clone() };
    let silent = Announcer::start(Sink::bare(Mode::Quiet));
    let spec = launch::agent_spec(&one, facts, run, job, false)?;
    let outcome = supervise::run(&spec, Box::new(ChunkRecorder::default()), &mut |what| silent.send(what))?;
    if let RunEnd::Failed { cause } = outcome.end {
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
        write_array(&dir.join(name), npy::NpyElement::F32, shape, bytes_of(values))
    };
    if levels.is_empty() {
        write("pred.npy", &shape(None), &values)?;
    } else {
        let point = levels.iter().position(|level| *level == MEDIAN).unwrap_or(0);
        let points = values.chunks_exact(outputs.max(1)).skip(point).step_by(levels.len());
        write("pred.npy", &shape(None), &points.flatten().copied().collect::<Vec<f32>>())?;
    }
    if !levels.is_empty() && kept == Kept::Quantiles {
        write("levels.npy", &shape(Some(levels.len() as u64)), &values)?;
        write_array(&dir.join("level.npy"), npy::NpyElement::F64, &[levels.len() as u64], bytes_of(levels))?;
    }
    write_rows(run, &rows)?;
    Ok(Disk.remove_dir(&out)?)
}

/// Writes the numbers of the staged rows that the forecasts belong to.
fn write_rows(run: &RunDir, rows: &[usize]) -> Result<(), Error> {
    let rows: Vec<i64> = rows.iter().map(|&row| row as i64).collect();
    let path = run.path().join("predictions/test/rows.npy");
    write_array(&path, npy::NpyElement::I64, &[rows.len() as u64], bytes_of(&rows))
}

/// Collects the forecasts (n, `numbers` each) of these rows from the chunks, in order.
fn collect(chunks: &[PredictedChunk], out: &Path, rows: &[usize], numbers: usize) -> Result<Vec<f32>, GatherError> {
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

fn write_array(path: &Path, element: npy::NpyElement, shape: &[u64], data: &[u8]) -> Result<(), Error> {
    let offset = npy::Header::roomy_offset(element, &shape[1..]);
    let mut bytes = npy::Header::write(element, shape, offset).unwrap_or_default();
    bytes.extend_from_slice(data);
    Ok(atomic::write(path, &bytes)?)
}
