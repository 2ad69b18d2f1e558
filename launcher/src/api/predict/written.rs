//! Chunks of predictions, written as workers write them.

use crate::{Error, export::ArtifactRunner};
use enn_common::{
    artifact::chunk::{self, ChunkExtent, WrittenChunk},
    staged::Staged,
};
use std::{ops::Range, path::Path};

/// Maximum number of rows of one call, so that an answer does not take long.
const CALL_ROWS_MAX: usize = 4096;

/// Writes the predictions of staged rows below `out`, as a worker does, with `levels` values for each cell.
pub(in crate::api) fn write_chunk(
    engine: &mut ArtifactRunner,
    staged: &Staged,
    rows: Range<usize>,
    out: &Path,
    levels: usize,
) -> Result<WrittenChunk, Error> {
    let width = staged.features();
    let mut values = Vec::new();
    let mut status = Vec::new();
    for first in rows.clone().step_by(CALL_ROWS_MAX) {
        let last = rows.end.min(first + CALL_ROWS_MAX);
        let answer = engine.predict(&staged.x()[first * width..last * width], last - first)?;
        values.extend(answer.values);
        status.extend(answer.status);
    }
    write_answers(&values, &status, staged, rows, out, levels)
}

/// Writes given predictions of staged rows below `out`.
pub(in crate::api) fn write_answers(
    values: &[f32],
    status: &[u8],
    staged: &Staged,
    rows: Range<usize>,
    out: &Path,
    levels: usize,
) -> Result<WrittenChunk, Error> {
    let grid = staged.meta().out_shape.iter().copied();
    let shape: Vec<usize> = (levels > 0).then_some(levels).into_iter().chain(grid).collect();
    let extent = ChunkExtent { start: rows.start as u64, end: rows.end as u64, out_shape: &shape };
    let content = chunk::ChunkRows { values, ids: &staged.row_id()[rows], status };
    chunk::write(out, extent, content).map_err(|error| Error::Gather(error.into()))
}
