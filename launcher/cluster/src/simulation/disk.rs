//! The shared disk: what is on it survives every node. It may be slow, full or hung.

use super::{groups::table, run_plan::RUN_DIR, world::Time};
use enn_common::checkpoint::{name, table::ShardTable};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Checkpoints that are kept.
const KEPT: usize = 3;

/// A committed checkpoint.
#[derive(Debug, Clone)]
pub(super) struct Checkpoint {
    pub(super) damaged: bool,
}

/// Contents of the run directory.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// The agent that holds the lock of the directory.
    pub(super) lock: Option<u64>,
    /// Ranks that have written their shard of a step, by attempt.
    shards: BTreeMap<(String, u64), BTreeSet<u32>>,
    pub(super) checkpoints: BTreeMap<u64, Checkpoint>,
    /// The furthest step that was ever committed.
    pub(super) furthest: Option<u64>,
    pub(super) log_dirs: BTreeSet<u64>,
    pub(super) full_until: Option<Time>,
    pub(super) slow_until: Option<Time>,
    pub(super) hung_until: Option<Time>,
}

impl Disk {
    pub(super) fn is_full(&self, now: Time) -> bool {
        self.full_until.is_some_and(|until| until > now)
    }

    pub(super) fn write_shard(&mut self, attempt: &str, step: u64, rank: u32) {
        self.shards.entry((attempt.to_owned(), step)).or_default().insert(rank);
    }

    /// Writes a shard in a directory that is named by step and attempt.
    pub(super) fn write_shard_in(&mut self, dir: &Path, rank: u32) -> ShardTable {
        if let Some(found) = dir.file_name().and_then(|name| name.to_str()).and_then(name::being_written) {
            self.write_shard(found.1, found.0, rank);
        }
        table(rank)
    }

    /// Ranks whose shard of a step is there.
    pub(super) fn shards(&self, attempt: &str, step: u64) -> BTreeSet<u32> {
        self.shards.get(&(attempt.to_owned(), step)).cloned().unwrap_or_default()
    }

    /// Removes what an attempt wrote of steps before `below`.
    pub(super) fn discard(&mut self, attempt: &str, below: u64) {
        self.shards.retain(|key, _| key.0 != attempt || key.1 >= below);
    }

    /// Removes what no checkpoint was made of.
    pub(super) fn discard_all(&mut self) {
        self.shards.clear();
    }

    /// Makes the shards a checkpoint, and removes old ones.
    pub(super) fn commit(&mut self, attempt: &str, step: u64) -> PathBuf {
        self.shards.remove(&(attempt.to_owned(), step));
        self.checkpoints.insert(step, Checkpoint { damaged: false });
        self.furthest = self.furthest.max(Some(step));
        while self.checkpoints.len() > KEPT {
            self.checkpoints.pop_first();
        }
        committed(step)
    }

    /// Removes old checkpoints; whether there were any.
    pub(super) fn make_room(&mut self) -> bool {
        let removed = self.checkpoints.len() > 1;
        while self.checkpoints.len() > 1 {
            self.checkpoints.pop_first();
        }
        removed
    }

    /// The newest checkpoint.
    pub(super) fn newest(&self) -> Option<(u64, PathBuf)> {
        self.checkpoints.keys().next_back().map(|step| (*step, committed(*step)))
    }

    /// Step of a checkpoint that a worker reads; the file that is damaged, or `None` where there is no such checkpoint.
    pub(super) fn readable(&self, path: &Path) -> Result<u64, Option<PathBuf>> {
        let step = path.file_name().and_then(|name| name.to_str()).and_then(name::step_of);
        let step = step.ok_or(None)?;
        match self.checkpoints.get(&step) {
            Some(checkpoint) if !checkpoint.damaged => Ok(step),
            Some(_) => Err(Some(path.join(name::shard(0)))),
            None => Err(None),
        }
    }

    /// Takes a damaged checkpoint away; whether it is damaged.
    pub(super) fn set_aside(&mut self, path: &Path) -> bool {
        let step = path.file_name().and_then(|name| name.to_str()).and_then(name::step_of);
        let damaged = step.is_some_and(|step| self.checkpoints.get(&step).is_none_or(|found| found.damaged));
        if let (true, Some(step)) = (damaged, step) {
            self.checkpoints.remove(&step);
        }
        damaged
    }
}

/// Path of a committed checkpoint.
pub(super) fn committed(step: u64) -> PathBuf {
    Path::new(RUN_DIR).join("checkpoints").join(name::committed(step))
}
