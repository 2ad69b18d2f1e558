//! The forecasts of all folds as one Parquet file, in the order of the source: row_id, row_name where rows have names, fold, and a
//! column per output cell; empty where the fold that tests the row is not done.

use super::fold_scores::{FoldScoreError, OutOfFold};
use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray, UInt32Array};
use arrow_schema::{DataType, Field, Schema};
use enn_checkpoint::gather::cell_names;
use enn_common::{
    fs::{FileError, atomic},
    staged::Staged,
};
use parquet::{arrow::ArrowWriter, errors::ParquetError};
use std::{
    fs::{self, File},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

const BATCH_CELLS: usize = 1 << 20;

/// Index of a fold and of a row in its forecasts; `None` where the fold that tests the row is not done.
type ForecastIndex = Option<(usize, usize)>;

/// Writes the table `path` of the rows staged in `base`. `folds` are the number, staged directory and forecast directory of each done fold.
///
/// # Errors
/// Incomplete forecasts, or a failed file operation.
pub fn write_table(path: &Path, base: &Path, folds: &[(usize, PathBuf, PathBuf)]) -> Result<(), FoldScoreError> {
    let base = Staged::open(base)?;
    let mut all = Vec::new();
    let mut places: Vec<ForecastIndex> = vec![None; base.rows()];
    for (number, staged, forecasts) in folds {
        let fold_forecasts = OutOfFold::read(forecasts, &Staged::open(staged)?)?;
        fold_forecasts.rows.iter().enumerate().for_each(|(at, row)| places[*row] = Some((all.len(), at)));
        all.push((*number as u32, fold_forecasts));
    }
    let beside = atomic::temporary(path);
    let file = File::create(&beside).map_err(FileError::of("create", &beside))?;
    let file = write(file, &base, &places, &all)
        .map_err(|source| FoldScoreError::Parquet { path: beside.clone(), source: Box::new(source) })?;
    file.sync_all().map_err(FileError::of("sync", &beside))?;
    Ok(fs::rename(&beside, path).map_err(FileError::of("write", path))?)
}

fn write(file: File, base: &Staged, places: &[ForecastIndex], all: &[(u32, OutOfFold)]) -> Result<File, ParquetError> {
    let meta = base.meta();
    let columns = cell_names(&meta.out_shape, &meta.out_labels);
    let mut fields = vec![Field::new("row_id", DataType::Int64, false)];
    if !meta.row_names.is_empty() {
        fields.push(Field::new("row_name", DataType::Utf8, false));
    }
    fields.push(Field::new("fold", DataType::UInt32, true));
    fields.extend(columns.iter().map(|name| Field::new(name, DataType::Float32, true)));
    let schema = Arc::new(Schema::new(fields));
    let mut writer = ArrowWriter::try_new(file, Arc::clone(&schema), None)?;
    let size = (BATCH_CELLS / columns.len().max(1)).max(1);
    for first in (0..base.rows()).step_by(size) {
        let rows = first..(first + size).min(base.rows());
        writer.write(&RecordBatch::try_new(Arc::clone(&schema), batch(base, rows, places, all))?)?;
    }
    writer.into_inner()
}

fn batch(base: &Staged, rows: Range<usize>, places: &[ForecastIndex], all: &[(u32, OutOfFold)]) -> Vec<ArrayRef> {
    let mut arrays: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(base.row_id()[rows.clone()].to_vec()))];
    if let Some(names) = base.meta().row_names.get(rows.clone()).filter(|names| !names.is_empty()) {
        arrays.push(Arc::new(StringArray::from_iter_values(names)));
    }
    let fold = |place: &ForecastIndex| place.map(|(fold, _)| all[fold].0);
    arrays.push(Arc::new(places[rows.clone()].iter().map(fold).collect::<UInt32Array>()));
    let outputs = base.outputs();
    for cell in 0..outputs {
        let value = |place: &ForecastIndex| place.map(|(fold, at)| all[fold].1.values[at * outputs + cell]);
        arrays.push(Arc::new(places[rows.clone()].iter().map(value).collect::<Float32Array>()));
    }
    arrays
}
