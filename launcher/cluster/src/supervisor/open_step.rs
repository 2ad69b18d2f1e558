//! A step whose checkpoint is being made: the shard of each rank, and what contradicts it.

use super::{complete_checkpoint::CompleteCheckpoint, input::Time, seating::NodeIndex};
use enn_common::{checkpoint::table::ShardTable, id::WorkerId, wire::node_agent::WriteFailure};
use std::path::PathBuf;

/// A rank's report of its shard.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ShardReport {
    pub(super) rank: u32,
    pub(super) step: u64,
    pub(super) epoch: u64,
    pub(super) dir: PathBuf,
    pub(super) metric: Option<f64>,
    pub(super) blocked: f64,
    pub(super) shard: ReportedShard,
}

/// Where a reported shard is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ReportedShard {
    /// The worker wrote it.
    OnDisk(ShardTable),
    /// The worker left it in memory.
    InMemory(Snapshot),
}

/// A shard in the memory of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) node: NodeIndex,
    pub(super) worker: WorkerId,
    pub(super) ticket: u64,
    /// No later checkpoint makes up for this one.
    pub(super) must: bool,
}

/// One rank's shard of a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shard {
    Missing,
    Written(ShardTable),
    /// In memory until the disk has caught up.
    Waiting(Snapshot),
    Writing(Snapshot),
    Failed(Snapshot),
}

/// A step that is not complete.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OpenStep {
    pub(super) epoch: u64,
    pub(super) dir: PathBuf,
    pub(super) metric: Option<f64>,
    pub(super) blocked: f64,
    pub(super) shards: Vec<Shard>,
    pub(super) missing: usize,
    /// Number of shards that wait or are being written.
    pub(super) in_memory: usize,
    /// The first write that failed since the last try.
    pub(super) failure: Option<WriteFailure>,
    pub(super) must: bool,
    pub(super) retried: bool,
    /// Time when the last rank reported.
    pub(super) reported: Option<Time>,
}

/// A step of an attempt.
pub(super) type StepKey = (String, u64);

impl Shard {
    /// Returns the snapshot of a shard that is in memory and is not being written.
    pub(super) fn unwritten(&self) -> Option<Snapshot> {
        match self {
            Self::Waiting(snapshot) | Self::Failed(snapshot) => Some(*snapshot),
            Self::Missing | Self::Written(_) | Self::Writing(_) => None,
        }
    }
}

impl OpenStep {
    pub(super) fn new(report: &ShardReport, world: usize) -> Self {
        Self {
            epoch: report.epoch,
            dir: report.dir.clone(),
            metric: report.metric,
            blocked: 0.0,
            shards: vec![Shard::Missing; world],
            missing: world,
            in_memory: 0,
            failure: None,
            must: false,
            retried: false,
            reported: None,
        }
    }

    pub(super) fn set(&mut self, rank: u32, shard: Shard) {
        if let Some(place) = self.shards.get_mut(rank as usize) {
            *place = shard;
        }
    }

    /// Returns whether a shard is being written by its node, or was.
    pub(super) fn has_begun(&self) -> bool {
        let waits = |shard: &Shard| matches!(shard, Shard::Missing | Shard::Waiting(_));
        !self.shards.iter().all(waits)
    }

    /// Returns what of the report contradicts the others.
    pub(super) fn mismatch(&self, report: &ShardReport) -> Option<String> {
        let ShardReport { rank, step, .. } = report;
        match self.shards.get(*rank as usize) {
            None => Some(format!("rank {rank} is not in the round")),
            Some(Shard::Written(_) | Shard::Waiting(_) | Shard::Writing(_) | Shard::Failed(_)) => {
                Some(format!("rank {rank} reported its shard of step {step} twice"))
            }
            Some(Shard::Missing) if self.dir != report.dir => {
                let others = self.dir.display();
                Some(format!("rank {rank} wrote step {step} into {}, others into {others}", report.dir.display()))
            }
            Some(Shard::Missing) if self.epoch != report.epoch => {
                let Self { epoch, .. } = self;
                Some(format!("rank {rank} says step {step} is in epoch {}, others in epoch {epoch}", report.epoch))
            }
            Some(Shard::Missing) => None,
        }
    }

    pub(super) fn complete(self, key: &StepKey) -> CompleteCheckpoint {
        let table = |shard: Shard| match shard {
            Shard::Written(table) => Some(table),
            Shard::Missing | Shard::Waiting(_) | Shard::Writing(_) | Shard::Failed(_) => None,
        };
        let tables = self.shards.into_iter().filter_map(table).collect();
        let Self { epoch, dir, metric, blocked, .. } = self;
        let (attempt, step) = key.clone();
        CompleteCheckpoint { step, epoch, attempt, dir, metric, blocked, tables }
    }
}
