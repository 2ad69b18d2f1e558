//! Predictions as comma-separated text: the columns of a Parquet file, with empty cells for null.

use super::{
    GatherError,
    layout::Rows,
    output::{OutputWriter, TableFile},
};
use enn_common::fs::FileError;
use std::{borrow::Cow, fmt::Write as _, io::Write as _};

pub(super) struct CsvOut(TableFile);

impl CsvOut {
    pub(super) fn create(mut to: TableFile) -> Result<Self, GatherError> {
        let names: Vec<Cow<'_, str>> = to.table.schema().fields().iter().map(|field| quoted(field.name())).collect();
        let header = format!("{}\n", names.join(","));
        to.file.write_all(header.as_bytes()).map_err(FileError::of("write", &to.path))?;
        Ok(Self(to))
    }
}

impl OutputWriter for CsvOut {
    fn write(&mut self, rows: &Rows<'_>) -> Result<(), GatherError> {
        let (layout, places) = self.0.table.layout();
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
        Ok(self.0.file.write_all(text.as_bytes()).map_err(FileError::of("write", &self.0.path))?)
    }

    fn finish(self: Box<Self>) -> Result<Vec<String>, GatherError> {
        self.0.file.sync_all().map_err(FileError::of("sync", &self.0.path))?;
        Ok(vec![self.0.name])
    }
}

/// Returns a cell, quoted if it contains special characters.
fn quoted(text: &str) -> Cow<'_, str> {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")).into(),
        false => text.into(),
    }
}
