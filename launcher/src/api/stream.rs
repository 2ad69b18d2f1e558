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
    loaded_model::LoadedModel,
    predict::{PredictOptions, SCRATCH, Subject},
    work_dir::WorkDir,
};
use crate::{Error, export::is_packed, facts::Facts};
use arrow_array::RecordBatch;
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, Schema};
use enn_checkpoint::gather::Stream;
use enn_common::{
    config::data::{DataConfig, Layout, SourceFormat},
    fs::{Disk, Storage},
};
use enn_data::stage::{self, Batches, CategoryCoverage, StageError, StageOptions, ample};
use std::{
    collections::HashSet,
    fs::File,
    io::{Read, Write},
    path::Path,
};

/// Maximum number of rows that are predicted at once.
const BATCH_ROWS_MAX: usize = 65_536;

/// Predicts the batches of `input` with the newest checkpoint of the run directory `model`, or the exported model `model`, and writes each
/// answer to `output` before the next batch is read; returns the number of predicted rows.
///
/// # Errors
/// A batch does not fit the training data, the stream is truncated, or the worker fails. Answers written before remain valid.
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
    let mut loaded = LoadedModel::start(&subject, facts, options, &work.path, levels.len())?;
    let mut answers = Stream::new(output, &levels, takes_point);
    let staging =
        StageOptions { out: work.path.join("staged"), threads: 1, for_prediction: Some(subject.meta.clone()) };
    let mut rows = 0;
    let mut failed = 0;
    let mut words = CategoryCoverage::default();
    for batch in Batches::open_some(input, |schema| Ok(chosen(&data, schema)), ample).map_err(Error::Stream)? {
        let batch = batch.map_err(Error::Stream)?;
        for first in (0..batch.num_rows()).step_by(BATCH_ROWS_MAX) {
            let part = batch.slice(first, BATCH_ROWS_MAX.min(batch.num_rows() - first));
            write_file(&source, &part).map_err(Error::Stream)?;
            let staged = stage::stage(&data, &staging, &mut |_| {})?;
            words.add(&staged.meta.report, subject.targets());
            if !options.allow_unseen {
                words.check_so_far().map_err(StageError::from)?;
            }
            let (chunk, blake3) = loaded.ask(&staged.dir, &work.path)?;
            failed += answers.write(&staged.meta, &chunk, &blake3)? as u64;
            rows += staged.meta.rows;
            Disk.remove_dir(&staging.out)?;
            Disk.remove_dir(&work.path.join(enn_common::artifact::chunk::FOLDER))?;
        }
    }
    answers.finish(&subject.meta)?;
    loaded.end()?;
    if !options.allow_unseen {
        words.check().map_err(StageError::from)?;
    }
    if failed > 0 {
        tracing::warn!("{failed} of {rows} rows have no prediction");
    }
    Ok(rows)
}

/// Returns the columns that staging needs; `None` (all columns) when a needed column is missing, so that the error can list the columns
/// that exist.
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
