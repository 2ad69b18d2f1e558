//! Predictions as one Parquet file, row groups of bounded size.

use super::{
    GatherError,
    layout::Rows,
    output::{OutputWriter, TableFile},
    table::Table,
};
use arrow_array::RecordBatch;
use enn_common::fs::FileError;
use parquet::{
    arrow::{
        ArrowWriter,
        arrow_writer::{ArrowColumnChunk, ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves},
    },
    basic::Compression,
    errors::ParquetError,
    file::{properties::WriterProperties, writer::SerializedFileWriter},
};
use rayon::prelude::*;
use std::{fs::File, path::PathBuf, sync::Arc};

/// Number of cells of a row group, which is held in memory before it is written. Tests have several groups.
const GROUP_CELLS: usize = if cfg!(test) { 42 } else { 4 << 20 };
const GROUP_ROWS_MIN: usize = if cfg!(test) { 1 } else { 1024 };

/// A Parquet file that is being written; the columns of a row group are encoded in parallel.
pub(super) struct ParquetOut {
    writer: SerializedFileWriter<File>,
    columns: ArrowRowGroupWriterFactory,
    table: Table,
    group_rows: usize,
    waiting: Vec<RecordBatch>,
    groups: usize,
    path: PathBuf,
    name: String,
}

impl ParquetOut {
    pub(super) fn create(TableFile { file, table, path, name }: TableFile) -> Result<Self, GatherError> {
        let group_rows = (GROUP_CELLS / table.numbers().max(1)).max(GROUP_ROWS_MIN);
        // Predictions hardly repeat; texts do.
        let mut properties =
            WriterProperties::builder().set_compression(Compression::SNAPPY).set_dictionary_enabled(false);
        for column in table.words() {
            properties = properties.set_column_dictionary_enabled(column.into(), true);
        }
        let writer = ArrowWriter::try_new(file, Arc::clone(table.schema()), Some(properties.build()))
            .and_then(ArrowWriter::into_serialized_writer);
        let (writer, columns) = writer.map_err(GatherError::write(&path))?;
        Ok(Self { writer, columns, table, group_rows, waiting: Vec::new(), groups: 0, path, name })
    }

    fn add(&mut self, rows: &Rows<'_>) -> Result<(), ParquetError> {
        let batch = self.table.batch(rows)?;
        let mut at = 0;
        while at < batch.num_rows() {
            let waiting: usize = self.waiting.iter().map(RecordBatch::num_rows).sum();
            let count = (self.group_rows - waiting).min(batch.num_rows() - at);
            self.waiting.push(batch.slice(at, count));
            at += count;
            if waiting + count == self.group_rows {
                self.end_group()?;
            }
        }
        Ok(())
    }

    fn end_group(&mut self) -> Result<(), ParquetError> {
        let batches = std::mem::take(&mut self.waiting);
        if batches.is_empty() {
            return Ok(());
        }
        let encode = |(column, mut writer): (usize, ArrowColumnWriter)| {
            for batch in &batches {
                for leaf in compute_leaves(batch.schema_ref().field(column), batch.column(column))? {
                    writer.write(&leaf)?;
                }
            }
            writer.close()
        };
        let writers = self.columns.create_column_writers(self.groups)?;
        let encoded: Vec<ArrowColumnChunk> =
            writers.into_par_iter().enumerate().map(encode).collect::<Result<_, _>>()?;
        let mut group = self.writer.next_row_group()?;
        encoded.into_iter().try_for_each(|column| column.append_to_row_group(&mut group))?;
        group.close()?;
        self.groups += 1;
        Ok(())
    }
}

impl OutputWriter for ParquetOut {
    fn write(&mut self, rows: &Rows<'_>) -> Result<(), GatherError> {
        self.add(rows).map_err(GatherError::write(&self.path))
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, GatherError> {
        self.end_group().map_err(GatherError::write(&self.path))?;
        let file = self.writer.into_inner().map_err(GatherError::write(&self.path))?;
        file.sync_all().map_err(FileError::of("sync", &self.path))?;
        Ok(vec![self.name])
    }
}
