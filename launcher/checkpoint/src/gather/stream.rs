//! Predictions as a stream of Arrow record batches, each flushed as it comes.

use super::{
    GatherError,
    layout::{Layout, Rows},
    table::Table,
};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::ArrowError;
use enn_common::{artifact::chunk::Chunk, staged::StagedMeta};
use std::{io::Write, path::Path};

/// A stream that is being written; it has the column `row_name` if the first batch's rows have names.
pub struct Stream<W: Write> {
    to: Option<W>,
    begun: Option<(StreamWriter<W>, Table)>,
    levels: Vec<f64>,
    is_point: bool,
}

impl<W: Write> Stream<W> {
    /// Makes a stream; nothing is written before the first batch. `levels` are those of the predicted quantiles, of which only point
    /// predictions are written if `is_point`.
    pub fn new(to: W, levels: &[f64], is_point: bool) -> Self {
        Self { to: Some(to), begun: None, levels: levels.to_vec(), is_point }
    }

    /// Writes the predictions in `chunk` of all rows of a staged set, and flushes; returns the number of rows without a prediction.
    ///
    /// # Errors
    /// The chunk is damaged, or the output is closed.
    pub fn write(&mut self, meta: &StagedMeta, chunk: &Path, blake3: &str) -> Result<usize, GatherError> {
        let open = Chunk::open(chunk, Some(blake3))?;
        let values = Layout::new(meta, &self.levels).selected(open.predictions()?, self.is_point);
        let Some((writer, table)) = self.begin(meta)? else { return Ok(0) };
        let ids = open.ids()?;
        let status = open.status();
        let rows = Rows { ids, names: &meta.row_names, values: &values, status };
        let flushed = |writer: &mut StreamWriter<W>| -> Result<(), ArrowError> {
            writer.write(&table.batch(&rows)?)?;
            writer.flush()
        };
        flushed(writer).map_err(GatherError::Stream)?;
        Ok(status.iter().filter(|status| **status != 0).count())
    }

    fn begin(&mut self, meta: &StagedMeta) -> Result<Option<&mut (StreamWriter<W>, Table)>, GatherError> {
        if let Some(to) = self.to.take() {
            let levels: &[f64] = if self.is_point { &[] } else { &self.levels };
            let table = Table::new(meta, Layout::new(meta, levels), !meta.row_names.is_empty());
            let writer = StreamWriter::try_new(to, table.schema()).map_err(GatherError::Stream)?;
            self.begun = Some((writer, table));
        }
        Ok(self.begun.as_mut())
    }

    /// Ends the stream; a stream without batches has the columns for `meta`.
    ///
    /// # Errors
    /// The output is closed.
    pub fn finish(mut self, meta: &StagedMeta) -> Result<(), GatherError> {
        match self.begin(meta)? {
            Some((writer, _)) => writer.finish().map_err(GatherError::Stream),
            None => Ok(()),
        }
    }
}
