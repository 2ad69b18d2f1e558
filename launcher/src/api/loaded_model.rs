//! A model that stays loaded between predictions: a worker, or the runtime of an exported model.

use super::{
    launch,
    predict::{PredictOptions, Subject, write_answers, write_chunk},
    predict_client::{PredictClient, ScratchDir},
};
use crate::{Error, export::ArtifactRunner, facts::Facts};
use enn_common::{artifact::chunk::WrittenChunk, staged::Staged};
use std::{
    ops::Range,
    path::{Path, PathBuf},
};

pub(super) enum LoadedModel {
    Worker {
        client: PredictClient,
        levels: usize,
    },
    /// An exported model, and the number of quantile levels of each cell.
    Engine(ArtifactRunner, usize),
}

impl LoadedModel {
    pub(super) fn start(
        subject: &Subject,
        facts: &Facts,
        options: &PredictOptions,
        scratch: &Path,
        levels: usize,
    ) -> Result<Self, Error> {
        if let Some(spec) = subject.engine_spec(1, facts, options, scratch)? {
            return Ok(Self::Engine(spec.start()?, levels));
        }
        let worker = launch::worker(&subject.config, facts, 1)?;
        let scratch = ScratchDir::Own(scratch);
        let client = PredictClient::start(&worker, &subject.checkpoint, options.precision, false, scratch)?;
        Ok(Self::Worker { client, levels })
    }

    /// Predicts all rows of a staged set; returns the chunk below `out`, and its digest.
    pub(super) fn ask(&mut self, staged: &Path, out: &Path) -> Result<(PathBuf, String), Error> {
        match self {
            Self::Worker { client, .. } => client.ask(staged, out),
            Self::Engine(engine, levels) => {
                let staged = Staged::open(staged)?;
                let written = write_chunk(engine, &staged, 0..staged.rows(), out, *levels)?;
                Ok((written.path, written.blake3))
            }
        }
    }

    /// Writes the predictions of staged rows below `out`, as the workers of a run do.
    pub(super) fn write_chunk(
        &mut self,
        staged: &Staged,
        rows: Range<usize>,
        out: &Path,
    ) -> Result<WrittenChunk, Error> {
        match self {
            Self::Worker { client, levels } => {
                let width = staged.features();
                let cells = rows.start * width..rows.end * width;
                let valid = &staged.x_mask()[cells.clone()];
                let x = staged.x()[cells].iter().zip(valid);
                let x: Vec<f32> = x.map(|(value, valid)| if *valid == 0 { f32::NAN } else { *value }).collect();
                let answers = client.predict_rows(&x, rows.len())?;
                write_answers(&answers.values, &answers.status, staged, rows, out, *levels)
            }
            Self::Engine(engine, levels) => write_chunk(engine, staged, rows, out, *levels),
        }
    }

    pub(super) fn end(self) -> Result<(), Error> {
        match self {
            Self::Worker { client, .. } => client.end(),
            Self::Engine(..) => Ok(()),
        }
    }
}
