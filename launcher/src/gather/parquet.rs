//! Predictions as one Parquet file, row groups of bounded size.

use super::{
    GatherError,
    layout::{Layout, Rows},
    predictions::Out,
    table::Table,
};
use enn_common::{
    fs::{Disk, FileError, Storage},
    staged::StagedMeta,
};
use parquet::{arrow::ArrowWriter, basic::Compression, file::properties::WriterProperties};
use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Cells of a row group: what is held in memory before it is written.
const GROUP_CELLS: usize = 4 << 20;
/// Smallest row group.
const GROUP_ROWS_MIN: usize = 1024;

/// A Parquet file being written.
pub(super) struct ParquetOut {
    writer: ArrowWriter<File>,
    table: Table,
    path: PathBuf,
    name: String,
}

impl ParquetOut {
    /// Begins `folder/NAME`, where NAME is that of the output.
    pub(super) fn create(folder: &Path, output: &Path, meta: &StagedMeta, layout: Layout) -> Result<Self, GatherError> {
        Disk.create_dir(folder)?;
        let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = folder.join(&name);
        let table = Table::new(meta, layout, !meta.row_names.is_empty());
        let group_rows = (GROUP_CELLS / table.numbers().max(1)).max(GROUP_ROWS_MIN);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(group_rows))
            .build();
        let file = File::create(&path).map_err(FileError::of("create", &path))?;
        let writer = ArrowWriter::try_new(file, Arc::clone(table.schema()), Some(properties));
        let writer = writer.map_err(GatherError::parquet(&path))?;
        Ok(Self { writer, table, path, name })
    }
}

impl Out for ParquetOut {
    fn write(&mut self, rows: &Rows<'_>) -> Result<(), GatherError> {
        let written = self.table.batch(rows).map_err(Into::into).and_then(|batch| self.writer.write(&batch));
        written.map_err(GatherError::parquet(&self.path))
    }

    fn finish(self: Box<Self>) -> Result<Vec<String>, GatherError> {
        let file = self.writer.into_inner().map_err(GatherError::parquet(&self.path))?;
        file.sync_all().map_err(FileError::of("sync", &self.path))?;
        Ok(vec![self.name])
    }
}
