//! Snapshots that workers left in memory: each is written or released, once.

use super::{effect::NodeEffect, report::EffectList};
use enn_common::{
    checkpoint::table::ShardTable,
    id::WorkerId,
    wire::{
        message::StagedShard,
        node_agent::{NodeEvent, WriteFailure},
    },
};
use std::{collections::BTreeMap, path::PathBuf};

/// State of a snapshot in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SnapshotState {
    Kept,
    /// A thread writes it.
    Writing,
    /// A thread writes it, and nobody waits for that any more.
    Abandoned,
}

/// Snapshots in memory, by worker and ticket. They outlive their workers.
#[derive(Debug, Default)]
pub(super) struct KeptSnapshots {
    snapshots: BTreeMap<(WorkerId, u64), SnapshotState>,
}

impl KeptSnapshots {
    /// Keeps a snapshot that a worker reported, unless nobody leads who could want it.
    pub(super) fn keep(&mut self, worker: WorkerId, shard: &StagedShard, list: &mut EffectList<'_>) {
        let ticket = shard.ticket;
        if !list.has_leader {
            list.push(NodeEffect::Release { worker, ticket });
            return;
        }
        self.snapshots.insert((worker, ticket), SnapshotState::Kept);
        list.push(NodeEffect::Keep { worker, shard: Box::new(shard.clone()) });
    }

    pub(super) fn persist(
        &mut self,
        worker: WorkerId,
        ticket: u64,
        dir: PathBuf,
        rank: u32,
        list: &mut EffectList<'_>,
    ) {
        match self.snapshots.get_mut(&(worker, ticket)) {
            Some(state @ SnapshotState::Kept) => {
                *state = SnapshotState::Writing;
                list.push(NodeEffect::Persist { worker, ticket, dir, rank });
            }
            // The answer to the first command is the answer to this one.
            Some(SnapshotState::Writing | SnapshotState::Abandoned) => {}
            None => {
                let error = format!("snapshot {ticket} of worker {worker} is not kept on its node");
                let result = Err(WriteFailure { error, disk_full: false });
                list.report(NodeEvent::SnapshotWritten { worker, ticket, result });
            }
        }
    }

    /// Gives a worker its memory back, at once or when the snapshot is written.
    pub(super) fn release(&mut self, worker: WorkerId, ticket: u64, list: &mut EffectList<'_>) {
        match self.snapshots.get_mut(&(worker, ticket)) {
            Some(SnapshotState::Kept) => {
                self.snapshots.remove(&(worker, ticket));
                list.push(NodeEffect::Release { worker, ticket });
            }
            Some(state) => *state = SnapshotState::Abandoned,
            None => {}
        }
    }

    /// Reports that a snapshot was written, or could not be: then it stays, for the leader to have it written again or released.
    pub(super) fn on_written(
        &mut self,
        worker: WorkerId,
        ticket: u64,
        result: Result<ShardTable, WriteFailure>,
        list: &mut EffectList<'_>,
    ) {
        let Some(state) = self.snapshots.get_mut(&(worker, ticket)) else { return };
        let is_wanted = *state == SnapshotState::Writing;
        *state = SnapshotState::Kept;
        if result.is_ok() {
            self.snapshots.remove(&(worker, ticket));
        }
        if is_wanted {
            let result = result.map(Box::new);
            list.report(NodeEvent::SnapshotWritten { worker, ticket, result });
        } else {
            self.release(worker, ticket, list);
        }
    }

    /// Releases all: the leader that knew of them is gone.
    pub(super) fn abandon(&mut self, list: &mut EffectList<'_>) {
        for (worker, ticket) in self.unfinished() {
            self.release(worker, ticket, list);
        }
    }

    /// Returns the snapshots that are neither written nor released.
    pub(super) fn unfinished(&self) -> Vec<(WorkerId, u64)> {
        self.snapshots.keys().copied().collect()
    }
}
