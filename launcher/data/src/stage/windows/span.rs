//! The time span of a source, and the grid that it needs.

use super::keys::Keys;
use crate::stage::{error::StageError, table::Table, timestamp};
use enn_common::config::data::WindowsLayout;

/// Maximum grid cells per table row: beyond it the time stamps are implausible. Small tables may be sparser.
const CELLS_PER_ROW_MAX: u64 = 256;

/// Maximum cells of a grid of any sparsity.
const CELLS_FREE: u64 = 1_000_000;

/// Time range of the grid: whole windows, from the first to the last window with a row.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) entities: Vec<String>,
    /// Step number (since 1970, in steps) of the grid's first step; a multiple of the window's steps.
    pub(super) first: i64,
    /// Steps of the grid; a multiple of the window's steps.
    pub(super) steps: u64,
    /// Steps from the first to the last with a row.
    pub(super) observed: u64,
}

impl Span {
    pub(super) fn new(
        table: &Table,
        layout: &WindowsLayout,
        keys: &Keys,
        entities: &[String],
    ) -> Result<Self, StageError> {
        let Some((low, high)) = keys.steps else {
            let found = format!("no row has both {} and {}", layout.entity, layout.time);
            return Err(StageError::zero_rows(table.path(), found));
        };
        let window = layout.steps as i64;
        let first = low.div_euclid(window) * window;
        let end = (high.div_euclid(window) + 1) * window;
        let span =
            Self { entities: entities.to_vec(), first, steps: (end - first) as u64, observed: (high - low + 1) as u64 };
        let cells_max = keys.rows.saturating_mul(CELLS_PER_ROW_MAX).saturating_add(CELLS_FREE);
        match span.steps.checked_mul(span.entities.len() as u64) {
            Some(cells) if cells <= cells_max => Ok(span),
            _ => Err(StageError::Sparse {
                column: layout.time.clone(),
                steps: span.observed,
                step_s: layout.step_s,
                entities: span.entities.len(),
                rows: keys.rows,
            }),
        }
    }

    pub(super) fn cells(&self) -> u64 {
        self.steps * self.entities.len() as u64
    }

    pub(super) fn repeated(&self, layout: &WindowsLayout, table: &Table, row: u64, cell: u64) -> StageError {
        let (entity, time) = self.name(layout, cell);
        StageError::RepeatedCell { path: table.path().to_path_buf(), row: row + 1, entity, time }
    }

    /// Returns the number of cells between the first and the last row's step.
    pub(super) fn observed_cells(&self) -> u64 {
        self.observed * self.entities.len() as u64
    }

    fn name(&self, layout: &WindowsLayout, cell: u64) -> (String, String) {
        let count = self.entities.len() as u64;
        let seconds = (self.first + (cell / count) as i64) * layout.step_s - layout.time_offset_s;
        (self.entities[(cell % count) as usize].clone(), timestamp::text(seconds))
    }
}
