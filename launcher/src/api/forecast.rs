//! Forecasts of the test rows, which the report of a training run draws.

use super::{announce::Announcer, launch};
use crate::{
    Error,
    agent::{self, Checkpoints, Committed, Ended, Job, ShardSet},
    facts::Facts,
    gather::GatherError,
    run_dir::RunDir,
    ui::{Mode, Sink},
};
use enn_common::{
    artifact::chunk::{self, Chunk},
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
    predict_test_rows(config, facts, run, checkpoint, staged)
}

/// The same, of any data.
pub(super) fn predict_test_rows(
    config: &RunConfig,
    facts: &Facts,
    run: &RunDir,
    checkpoint: &Path,
    staged: &Path,
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
    let (values, ids) = collect(&outcome.chunks, &out, &data, config.train.quantile_levels())?;
    let mut shape = vec![ids.len() as u64];
    shape.extend(data.meta().out_shape.iter().map(|&size| size as u64));
    let dir = run.path().join("predictions").join("test");
    Disk.create_dir(&dir)?;
    write_array(&dir.join("pred.npy"), npy::Element::F32, &shape, bytes_of(&values))?;
    write_array(&dir.join("rows.npy"), npy::Element::I64, &shape[..1], bytes_of(&ids))?;
    Ok(Disk.remove_dir(&out)?)
}

/// Predictions (n, O) and staged rows (n) of the test rows among the chunks.
fn collect(
    chunks: &[agent::Chunk],
    out: &Path,
    data: &Staged,
    levels: &[f64],
) -> Result<(Vec<f32>, Vec<i64>), GatherError> {
    let point = levels.iter().position(|level| *level == MEDIAN).unwrap_or(0) * data.outputs();
    let numbers = levels.len().max(1) * data.outputs();
    let rows: Vec<usize> = data.rows_of(Split::Test).collect();
    let mut values: Vec<f32> = Vec::with_capacity(rows.len() * data.outputs());
    let mut wanted = rows.iter().copied().peekable();
    for found in chunks {
        let open = Chunk::open(&chunk::path(out, found.start, found.end), Some(&found.blake3))?;
        let predictions = open.predictions()?;
        while let Some(row) = wanted.next_if(|&row| (row as u64) < found.end) {
            let at = (row - found.start as usize) * numbers + point;
            values.extend_from_slice(&predictions[at..at + data.outputs()]);
        }
    }
    Ok((values, rows.iter().map(|&row| row as i64).collect()))
}

fn write_array(path: &Path, element: npy::Element, shape: &[u64], data: &[u8]) -> Result<(), Error> {
    let offset = npy::Header::roomy_offset(element, &shape[1..]);
    let mut bytes = npy::Header::write(element, shape, offset).unwrap_or_default();
    bytes.extend_from_slice(data);
    Ok(atomic::write(path, &bytes)?)
}
