//! The checkpoint that a job reads, and the store of a job that writes none.

use super::announce::EventSender;
use crate::Error;
use enn_checkpoint::gather::Ledger;
use enn_cluster::supervise::{
    CheckpointFailure, Checkpoints, CommittedCheckpoint, CompleteCheckpoint, FoundCheckpoint, PredictedChunk,
};
use enn_common::{
    checkpoint::{Checkpoint, Extent, find_sound},
    event::EventKind,
};
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// Opens the newest sound checkpoint of a run, and logs why newer ones are passed over.
pub(super) fn sound_checkpoint(run: &Path) -> Result<Checkpoint, Error> {
    let found = find_sound(run, Extent::Weights)?;
    found.notes().iter().for_each(|note| tracing::warn!("{note}"));
    Ok(found.checkpoint)
}

/// The checkpoint store of a job that writes no checkpoints; it records finished chunks in the ledger, if there is one.
#[derive(Default)]
pub(super) struct ChunkRecorder {
    pub(super) ledger: Option<Arc<Mutex<Ledger>>>,
    pub(super) events: Option<EventSender>,
}

impl Checkpoints for ChunkRecorder {
    fn prepare(&mut self) -> Result<Option<FoundCheckpoint>, CheckpointFailure> {
        Ok(None)
    }

    fn commit(&mut self, _: &CompleteCheckpoint) -> Result<CommittedCheckpoint, CheckpointFailure> {
        Err("a worker that predicts wrote a checkpoint".into())
    }

    fn predicted(&mut self, chunk: &PredictedChunk) {
        let Some(ledger) = &self.ledger else { return };
        let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Err(error), Some(events)) = (ledger.record(chunk.start, chunk.end, &chunk.blake3), &self.events) {
            events.send(EventKind::Warned { message: format!("rows {}..{}: {error}", chunk.start, chunk.end) });
        }
    }
}
