//! Converts the rows of a request to the model's inputs: in memory where a row is a sample, else by staging in a directory of the request.

use super::{problem::Problem, rows_error::RowsError, schema::Schema, subject::Subject};
use arrow_array::RecordBatch;
use arrow_ipc::writer::FileWriter;
use enn_checkpoint::gather::{Sheet, SheetRows};
use enn_common::{
    config::data::{DataConfig, SourceFormat},
    staged::Staged,
};
use enn_data::stage::{self, Encoder, StageError, StageOptions};
use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

/// Converts rows to inputs and predictions to tables.
#[derive(Debug)]
pub(super) struct Inputs {
    subject: Subject,
    encoder: Option<Encoder>,
    pub(super) schema: Schema,
    pub(super) sheet: Sheet,
    next: AtomicU64,
}

/// The inputs of a request's samples.
#[derive(Debug, PartialEq)]
pub(super) struct Encoded {
    pub(super) x: Vec<f32>,
    pub(super) rows: usize,
    /// The names of the samples; empty where they are the rows themselves.
    pub(super) names: Vec<String>,
}

impl Inputs {
    pub(super) fn new(subject: Subject) -> Result<Self, StageError> {
        let encoder = Encoder::new(&subject.data, &subject.meta)?;
        let sheet = Sheet::new(&subject.meta, &subject.levels, encoder.is_none());
        let schema = Schema::new(&subject, encoder.as_ref(), sheet.columns());
        Ok(Self { subject, encoder, schema, sheet, next: AtomicU64::new(0) })
    }

    /// Converts a request's rows to inputs.
    pub(super) fn encode(&self, batch: RecordBatch, rows_max: usize) -> Result<Encoded, Problem> {
        let found = batch.num_rows();
        if found > rows_max {
            return Err(Problem::Rows { found, limit: rows_max });
        }
        if found == 0 {
            return Err(RowsError::None.into());
        }
        match &self.encoder {
            Some(encoder) => Ok(Encoded { x: encoder.encode(batch)?, rows: found, names: Vec::new() }),
            None => self.stage(&batch),
        }
    }

    /// Stages a request as a table of its own.
    fn stage(&self, batch: &RecordBatch) -> Result<Encoded, Problem> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let dir = Scratch::create(self.subject.scratch.join(number.to_string())).map_err(Problem::Scratch)?;
        let file = dir.0.join("rows.arrow");
        let written = File::create_new(&file).map_err(Problem::Scratch).and_then(|to| {
            let other = |error: arrow_schema::ArrowError| Problem::Scratch(io::Error::other(error));
            let mut writer = FileWriter::try_new(to, &batch.schema()).map_err(other)?;
            writer.write(batch).map_err(other)?;
            writer.finish().map_err(other)
        });
        written?;
        let format = Some(SourceFormat::Arrow);
        let data = DataConfig { files: vec![file.clone()], sources: Vec::new(), format, ..self.subject.data.clone() };
        let for_prediction = Some(self.subject.meta.clone());
        let options = StageOptions { out: dir.0.join("staged"), threads: 1, for_prediction };
        let failed = |error: StageError| Problem::Stage(error.into(), file.display().to_string());
        let staged = stage::stage(&data, &options, &mut |_| {}).map_err(failed)?;
        let open = Staged::open(&staged.dir).map_err(|error| Problem::Scratch(io::Error::other(error)))?;
        Ok(Encoded { x: open.x().to_vec(), rows: open.rows(), names: staged.meta.row_names })
    }

    /// Returns the number of values of a sample's prediction.
    pub(super) fn numbers(&self) -> usize {
        self.schema.outputs.max(1)
    }
}

/// Combines names and answers for the table of predictions.
pub(super) fn sheet_rows<'a>(names: &'a [String], answers: &'a super::Answers) -> SheetRows<'a> {
    SheetRows { names, values: &answers.values, status: &answers.status }
}

/// A directory that is removed with its request.
struct Scratch(PathBuf);

impl Scratch {
    fn create(path: PathBuf) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Leftovers are removed with the server's own directory.
        let _gone = fs::remove_dir_all(&self.0);
    }
}
