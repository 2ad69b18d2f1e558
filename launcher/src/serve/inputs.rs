//! From the rows of a request to the model's inputs: in memory where a row is a sample, else staged in a directory of the request's own.

use super::{problem::Problem, rows, schema::Schema};
use crate::{
    gather::{Sheet, SheetRows},
    stage::{self, Encoder, StageError, StageOptions},
};
use arrow_array::RecordBatch;
use arrow_ipc::writer::FileWriter;
use enn_common::{
    config::data::{DataConfig, SourceFormat},
    staged::{Staged, StagedMeta},
};
use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// The model that is served, as far as its data go.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Name of the run.
    pub run: String,
    /// Step of the weights.
    pub step: u64,
    /// How its data are read.
    pub data: DataConfig,
    /// What its training data were.
    pub meta: StagedMeta,
    /// Levels of predicted quantiles, rising; empty without.
    pub levels: Vec<f64>,
    /// An empty directory that nobody else writes to.
    pub scratch: PathBuf,
}

/// Makes inputs of rows and sheets of answers.
#[derive(Debug)]
pub(super) struct Inputs {
    subject: Subject,
    encoder: Option<Encoder>,
    pub(super) schema: Schema,
    sheet: Sheet,
    next: AtomicU64,
}

/// Inputs of a request's samples.
#[derive(Debug, PartialEq)]
pub(super) struct Encoded {
    pub(super) x: Vec<f32>,
    pub(super) rows: usize,
    /// What the samples are called; empty where they are the rows themselves.
    pub(super) names: Vec<String>,
}

impl Inputs {
    pub(super) fn new(subject: Subject) -> Result<Self, StageError> {
        let encoder = Encoder::new(&subject.data, &subject.meta)?;
        let sheet = Sheet::new(&subject.meta, &subject.levels, encoder.is_none());
        let schema = Schema::new(&subject, encoder.as_ref(), sheet.columns());
        Ok(Self { subject, encoder, schema, sheet, next: AtomicU64::new(0) })
    }

    /// The inputs of a request's rows.
    pub(super) fn encode(&self, batch: RecordBatch, rows_max: usize) -> Result<Encoded, Problem> {
        let found = batch.num_rows();
        if found > rows_max {
            return Err(Problem::Rows { found, limit: rows_max });
        }
        if found == 0 {
            return Err(rows::RowsError::None.into());
        }
        match &self.encoder {
            Some(encoder) => Ok(Encoded { x: encoder.encode(batch)?, rows: found, names: Vec::new() }),
            None => self.stage(&batch),
        }
    }

    /// The samples of a table of its own.
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

    /// Numbers of a sample's answer.
    pub(super) fn numbers(&self) -> usize {
        self.schema.outputs.max(1)
    }

    /// Answers as the client gets them.
    pub(super) fn sheet(&self) -> &Sheet {
        &self.sheet
    }
}

/// What answers a sheet is made of.
pub(super) fn sheet_rows<'a>(names: &'a [String], answers: &'a super::Answers) -> SheetRows<'a> {
    SheetRows { names, values: &answers.values, status: &answers.status }
}

/// A directory that goes with its request.
struct Scratch(PathBuf);

impl Scratch {
    fn create(path: PathBuf) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// What is left goes with the server's own directory.
fn remove(path: &Path) {
    let _gone = fs::remove_dir_all(path);
}
