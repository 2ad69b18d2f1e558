//! Predictions as one Parquet file, row groups of bounded size; which columns, `Format::Parquet` tells.

use super::{
    GatherError,
    layout::{Layout, Rows},
    predictions::Out,
};
use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use enn_common::{
    artifact::chunk::RowStatus,
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

/// Columns besides those of the cells.
const LABEL: &str = "label";
const FAILED: &str = "failed";
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
    layout: Layout,
    /// Place in a row's numbers of each column of numbers.
    places: Vec<usize>,
    named: bool,
}

impl ParquetOut {
    /// Begins `folder/NAME`, where NAME is that of the output. Units and shape go into the file's own metadata.
    pub(super) fn create(
        folder: &Path,
        output: &Path,
        meta: &StagedMeta,
        layout: Layout,
    ) -> Result<Self, GatherError> {
        Disk.create_dir(folder)?;
        let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = folder.join(&name);
        let named = !meta.row_names.is_empty();
        let mut fields = vec![Field::new("row_id", DataType::Int64, false)];
        if named {
            fields.push(Field::new("row_name", DataType::Utf8, false));
        }
        let point = layout.point() * layout.columns.len();
        let points = layout.columns.iter().enumerate().map(|(cell, name)| (name.clone(), point + cell));
        let (columns, places): (Vec<String>, Vec<usize>) = points.chain(layout.quantiles()).unzip();
        fields.extend(columns.iter().map(|column| Field::new(column, DataType::Float32, true)));
        if layout.classes {
            fields.push(Field::new(LABEL, DataType::Utf8, true));
        }
        fields.push(Field::new(FAILED, DataType::Utf8, true));
        let about = [
            ("units".to_owned(), meta.units.clone()),
            ("out_shape".to_owned(), format!("{:?}", meta.out_shape)),
            ("levels".to_owned(), format!("{:?}", layout.levels)),
        ];
        let schema = Arc::new(Schema::new_with_metadata(fields, HashMap::from(about)));
        let group_rows = (GROUP_CELLS / columns.len().max(1)).max(GROUP_ROWS_MIN);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(group_rows))
            .build();
        let file = File::create(&path).map_err(FileError::of("create", &path))?;
        let writer = ArrowWriter::try_new(file, Arc::clone(&schema), Some(properties));
        let writer = writer.map_err(GatherError::parquet(&path))?;
        Ok(Self { writer, schema, path, name, layout, places, named })
    }

    fn write_batch(&mut self, rows: &Rows<'_>) -> Result<(), ParquetError> {
        let mut arrays: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(rows.ids.to_vec()))];
        if self.named {
            arrays.push(Arc::new(StringArray::from_iter_values(rows.names)));
        }
        let numbers = self.layout.numbers().max(1);
        for place in &self.places {
            let column = rows.values.iter().skip(*place).step_by(numbers).copied();
            arrays.push(Arc::new(Float32Array::from_iter(column.map(|value| value.is_finite().then_some(value)))));
        }
        if self.layout.classes {
            let labels = self.layout.labels(rows).into_iter();
            let name = |label: Option<usize>| self.layout.columns.get(label?);
            arrays.push(Arc::new(StringArray::from_iter(labels.map(name))));
        }
        let reasons = rows.status.iter().map(|number| RowStatus::of(*number)?.reason());
        arrays.push(Arc::new(StringArray::from_iter(reasons)));
        self.writer.write(&RecordBatch::try_new(Arc::clone(&self.schema), arrays)?)
    }
}

impl Out for ParquetOut {
    fn write(&mut self, rows: &Rows<'_>) -> Result<(), GatherError> {
        self.write_batch(rows).map_err(GatherError::parquet(&self.path))
    }

    fn finish(self: Box<Self>) -> Result<Vec<String>, GatherError> {
        let file = self.writer.into_inner().map_err(GatherError::parquet(&self.path))?;
        file.sync_all().map_err(FileError::of("sync", &self.path))?;
        Ok(vec![self.name])
    }
}
