//! What the writer of each format offers, and the file of those that write a table.

use super::{
    GatherError,
    layout::{Layout, Rows},
    table::Table,
};
use enn_common::{
    fs::{Disk, FileError, Storage},
    staged::StagedMeta,
};
use std::{
    fs::File,
    path::{Path, PathBuf},
};

pub(super) trait OutputWriter {
    fn write(&mut self, rows: &Rows<'_>) -> Result<(), GatherError>;
    /// Syncs the files and returns their names.
    fn finish(self: Box<Self>) -> Result<Vec<String>, GatherError>;
}

pub(super) struct TableFile {
    pub(super) file: File,
    pub(super) table: Table,
    pub(super) path: PathBuf,
    pub(super) name: String,
}

impl TableFile {
    /// Makes `folder/NAME`, where NAME is that of the output.
    pub(super) fn at(folder: &Path, output: &Path, meta: &StagedMeta, layout: Layout) -> Result<Self, GatherError> {
        Disk.create_dir(folder)?;
        let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = folder.join(&name);
        let table = Table::new(meta, layout, !meta.row_names.is_empty());
        let file = File::create(&path).map_err(FileError::of("create", &path))?;
        Ok(Self { file, table, path, name })
    }
}
