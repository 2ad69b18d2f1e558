//! What a run has come to so far.

use super::effect::PredictedChunk;
use enn_common::metrics::Metrics;
use std::{collections::BTreeMap, path::PathBuf};

/// Result of a run, as far as it is known.
#[derive(Debug, Clone, Default)]
pub(super) struct RunRecord {
    /// Rounds begun by this leader.
    pub(super) rounds: u64,
    /// Rounds that began from a checkpoint because no worker had kept the state.
    pub(super) restarts: u32,
    /// Step and directory of the newest checkpoint.
    pub(super) checkpoint: Option<(u64, PathBuf)>,
    pub(super) metrics: Option<BTreeMap<String, Metrics>>,
    /// Step after which training ended by itself.
    pub(super) trained: Option<u64>,
    /// The last checkpoint that could not be committed, and why.
    pub(super) failed_save: Option<(u64, String)>,
    /// Furthest step that any worker did.
    pub(super) reached: u64,
    /// Why the last state is lost, where that was noticed.
    pub(super) lost_state: Option<String>,
    pub(super) chunks: BTreeMap<u64, PredictedChunk>,
    /// Rows of the chunks.
    pub(super) rows: u64,
}

impl RunRecord {
    /// Notes a chunk; returns whether it is new.
    pub(super) fn note_chunk(&mut self, chunk: &PredictedChunk) -> bool {
        let is_new = !self.chunks.contains_key(&chunk.start);
        if is_new {
            self.rows += chunk.end.saturating_sub(chunk.start);
            self.chunks.insert(chunk.start, chunk.clone());
        }
        is_new
    }

    /// Returns the ranges of rows that are predicted.
    pub(super) fn predicted(&self) -> impl Iterator<Item = (u64, u64)> {
        self.chunks.values().map(|chunk| (chunk.start, chunk.end))
    }

    /// Returns the step of the newest checkpoint.
    pub(super) fn saved(&self) -> Option<u64> {
        self.checkpoint.as_ref().map(|(step, _)| *step)
    }
}
