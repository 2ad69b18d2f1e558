//! Predictions as one Arrow IPC file, a record batch for each chunk.

use super::{
    GatherError,
    layout::Rows,
    output::{OutputWriter, TableFile},
    table::Table,
};
use arrow_ipc::writer::FileWriter;
use arrow_schema::ArrowError;
use enn_common::fs::FileError;
use std::{fs::File, io::BufWriter, path::PathBuf};

pub(super) struct ArrowOut {
    writer: FileWriter<BufWriter<File>>,
    table: Table,
    path: PathBuf,
    name: String,
}

impl ArrowOut {
    pub(super) fn create(TableFile { file, table, path, name }: TableFile) -> Result<Self, GatherError> {
        let writer = FileWriter::try_new_buffered(file, table.schema()).map_err(GatherError::write(&path))?;
        Ok(Self { writer, table, path, name })
    }
}

impl OutputWriter for ArrowOut {
    fn write(&mut self, rows: &Rows<'_>) -> Result<(), GatherError> {
        let mut add = || -> Result<(), ArrowError> { self.writer.write(&self.table.batch(rows)?) };
        add().map_err(GatherError::write(&self.path))
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, GatherError> {
        self.writer.finish().map_err(GatherError::write(&self.path))?;
        self.writer.get_ref().get_ref().sync_all().map_err(FileError::of("sync", &self.path))?;
        Ok(vec![self.name])
    }
}
