//! Predictions as comma-separated text: the columns of a Parquet file, with empty cells for null.

use super::{
    GatherError,
    layout::{Layout, Rows},
    predictions::{OutputWriter, TableFile},
    table::Table,
};
use enn_common::{fs::FileError, staged::StagedMeta};
use std::{
    borrow::Cow,
    fmt::Write as _,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
};

/// A CSV file that is being written.
pub(super) struct CsvOut {
    file: File,
    table: Table,
    path: PathBuf,
    name: String,
}

impl CsvOut {
    /// Starts `folder/NAME`, where NAME is that of the output.
    pub(super) fn create(folder: &Path, output: &Path, meta: &StagedMeta, layout: Layout) -> Result<Self, GatherError> {
        let TableFile { mut file, table, path, name } = TableFile::at(folder, output, meta, layout)?;
        let header: Vec<Cow<'_, str>> = table.schema().fields().iter().map(|field| quoted(field.name())).collect();
        file.write_all(format!("{}\n", header.join(",")).as_bytes()).map_err(FileError::of("write", &path))?;
        Ok(Self { file, table, path, name })
    }
}

impl OutputWriter for CsvOut {
    fn write(&mut self, rows: &Rows<'_>) -> Result<(), GatherError> {
        let (layout, places) = self.table.layout();
        let labels = if layout.classes { layout.labels(rows) } else { Vec::new() };
        let failed = layout.failed(rows);
        let mut text = String::new();
        for (row, values) in rows.values.chunks(layout.numbers().max(1)).enumerate() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{}", rows.ids[row]);
            if let Some(name) = rows.names.get(row) {
                let _ = write!(text, ",{}", quoted(name));
            }
            for value in places.iter().map(|place| values[*place]) {
                let _ = if value.is_finite() { write!(text, ",{value:?}") } else { write!(text, ",") };
            }
            if layout.classes {
                let label = labels[row].map_or("", |at| &layout.columns[at]);
                let _ = write!(text, ",{}", quoted(label));
            }
            let _ = writeln!(text, ",{}", quoted(failed[row].as_deref().unwrap_or_default()));
        }
        Ok(self.file.write_all(text.as_bytes()).map_err(FileError::of("write", &self.path))?)
    }

    fn finish(self: Box<Self>) -> Result<Vec<String>, GatherError> {
        self.file.sync_all().map_err(FileError::of("sync", &self.path))?;
        Ok(vec![self.name])
    }
}

/// Returns a cell, quoted if it contains special characters.
fn quoted(text: &str) -> Cow<'_, str> {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")).into(),
        false => text.into(),
    }
}
