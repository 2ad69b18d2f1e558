//! A checkpoint of which every rank has written its shard.

use enn_common::checkpoint::table::ShardTable;
use std::path::PathBuf;

/// The shards of one step, one table per rank in rank order.
#[derive(Debug, Clone, PartialEq)]
pub struct CompleteCheckpoint {
    pub step: u64,
    pub epoch: u64,
    /// Attempt whose workers wrote the shards.
    pub attempt: String,
    /// Temporary directory in which all ranks wrote.
    pub dir: PathBuf,
    /// Validation metric, when a rank had one.
    pub metric: Option<f64>,
    /// Seconds for which training stood still, on the rank where that took longest.
    pub blocked: f64,
    pub tables: Vec<ShardTable>,
}
