//! Predictions as one Arrow IPC file, a record batch for each chunk.

use super::{
    GatherError,
    layout::{Layout, Rows},
    predictions::{OutputWriter, TableFile},
    table::Table,
};
use arrow_ipc::writer::FileWriter;
use arrow_schema::ArrowError;
use enn_common::{fs::FileError, staged::StagedMeta};
use std::{
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
};

/// An Arrow file that is being written.
pub(super) struct ArrowOut {
    writer: FileWriter<BufWriter<File>>,
    table: Table,
    path: PathBuf,
    name: String,
}

impl ArrowOut {
    /// Starts `folder/NAME`, where NAME is that of the output.
    pub(super) fn create(folder: &Path, output: &Path, meta: &StagedMeta, layout: Layout) -> Result<Self, GatherError> {
        let TableFile { file, table, path, name } = TableFile::at(folder, output, meta, layout)?;
        let writer = FileWriter::try_new_buffered(file, table.schema()).map_err(GatherError::arrow(&path))?;
        Ok(Self { writer, table, path, name })
    }
}

impl OutputWriter for ArrowOut {
    fn write(&mut self, rows: &Rows<'_>) -> Result<(), GatherError> {
        let mut add = || -> Result<(), ArrowError> { self.writer.write(&self.table.batch(rows)?) };
        add().map_err(GatherError::arrow(&self.path))
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, GatherError> {
        self.writer.finish().map_err(GatherError::arrow(&self.path))?;
        self.writer.get_ref().get_ref().sync_all().map_err(FileError::of("sync", &self.path))?;
        Ok(vec![self.name])
    }
}
