//! Predictions as one Parquet file: a column per output cell, row groups of bounded size.

use super::{GatherError, predictions::Out};
use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use enn_common::{
    fs::{Disk, FileError, Storage},
    staged::StagedMeta,
};
use parquet::{arrow::ArrowWriter, basic::Compression, errors::ParquetError, file::properties::WriterProperties};
use std::{
    collections::HashMap,
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
    schema: Arc<Schema>,
    path: PathBuf,
    name: String,
    cells: usize,
    named: bool,
}

impl ParquetOut {
    /// Begins `folder/NAME`, where NAME is that of the output. Units and shape go into the file's own metadata.
    pub(super) fn create(
        folder: &Path,
        output: &Path,
        meta: &StagedMeta,
        columns: &[String],
    ) -> Result<Self, GatherError> {
        Disk.create_dir(folder)?;
        let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = folder.join(&name);
        let named = !meta.row_names.is_empty();
        let mut fields = vec![Field::new("row_id", DataType::Int64, false)];
        if named {
            fields.push(Field::new("row_name", DataType::Utf8, false));
        }
        fields.extend(columns.iter().map(|column| Field::new(column, DataType::Float32, false)));
        let about =
            [("units".to_owned(), meta.units.clone()), ("out_shape".to_owned(), format!("{:?}", meta.out_shape))];
        let schema = Arc::new(Schema::new_with_metadata(fields, HashMap::from(about)));
        let group_rows = (GROUP_CELLS / columns.len().max(1)).max(GROUP_ROWS_MIN);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(group_rows))
            .build();
        let file = File::create(&path).map_err(FileError::of("create", &path))?;
        let writer = ArrowWriter::try_new(file, Arc::clone(&schema), Some(properties));
        let writer = writer.map_err(GatherError::parquet(&path))?;
        Ok(Self { writer, schema, path, name, cells: columns.len(), named })
    }

    fn write_batch(&mut self, ids: &[i64], names: &[String], values: &[f32]) -> Result<(), ParquetError> {
        let mut arrays: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(ids.to_vec()))];
        if self.named {
            arrays.push(Arc::new(StringArray::from_iter_values(names)));
        }
        for cell in 0..self.cells {
            let column = values.iter().skip(cell).step_by(self.cells.max(1)).copied();
            arrays.push(Arc::new(Float32Array::from_iter_values(column)));
        }
        self.writer.write(&RecordBatch::try_new(Arc::clone(&self.schema), arrays)?)
    }
}

impl Out for ParquetOut {
    fn write(&mut self, ids: &[i64], names: &[String], values: &[f32]) -> Result<(), GatherError> {
        self.write_batch(ids, names, values).map_err(GatherError::parquet(&self.path))
    }

    fn finish(self: Box<Self>) -> Result<Vec<String>, GatherError> {
        let file = self.writer.into_inner().map_err(GatherError::parquet(&self.path))?;
        file.sync_all().map_err(FileError::of("sync", &self.path))?;
        Ok(vec![self.name])
    }
}
