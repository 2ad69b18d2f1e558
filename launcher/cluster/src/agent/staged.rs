//! Shares of checkpoints that workers of this node left in memory: what happens to the worker afterwards does not matter.

use super::unix::Page;
use enn_common::{
    checkpoint::{
        ShardError, ShardLayout, ShardTable, name,
        write::{How, write_shard},
    },
    fs::{Disk, mmap::SharedPart},
    wire::message::StagedShard,
};
use std::{path::Path, sync::Arc};

/// A share, laid out as the file that it is to become. The worker gets the memory back when it is dropped.
#[derive(Debug)]
pub(super) struct Staged {
    page: Arc<Page>,
    ticket: u64,
    memory: SharedPart,
    layout: ShardLayout,
    rank: u32,
    blake3: bool,
    /// No later one makes up for it.
    pub(super) must: bool,
}

impl Staged {
    /// Looks where the worker says it left its share. One sentence when that cannot be.
    pub(super) fn take(page: &Arc<Page>, rank: u32, shard: StagedShard) -> Result<Self, String> {
        let StagedShard { at, boxes, blake3, dir, step, ticket, must, .. } = shard;
        let named = dir.file_name().and_then(|name| name.to_str()).and_then(name::being_written);
        if named.is_none_or(|(of, _)| of != step) {
            return Err(format!(
                "its share of step {step} is for {}, expected a directory being written",
                dir.display()
            ));
        }
        let layout = ShardLayout::of(boxes).map_err(|error| error.to_string())?;
        let bytes = usize::try_from(layout.bytes).map_err(|error| error.to_string())?;
        let memory = page.part(at, bytes.max(1)).map_err(|error| format!("its share cannot be mapped: {error}"))?;
        Ok(Self { page: Arc::clone(page), ticket, memory, layout, rank, blake3, must })
    }

    /// What is known of the shard before it is written.
    pub(super) fn expected(&self) -> ShardTable {
        ShardTable { file: name::shard(self.rank), bytes: self.layout.bytes, ..ShardTable::default() }
    }

    /// Writes the shard, fsynced.
    pub(super) fn write(&self, dir: &Path) -> Result<ShardTable, ShardError> {
        let bytes = self.memory.bytes();
        let payload = |at: u64, length: u64| bytes.get(at as usize..(at + length) as usize).unwrap_or_default();
        let payloads: Vec<&[u8]> =
            self.layout.spans.iter().map(|span| payload(span.payload_at, span.payload)).collect();
        let how = How { blake3: self.blake3, ..How::shared_by(1) };
        write_shard(&Disk, dir, self.rank, &self.layout, &payloads, how)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.page.give_back(self.ticket);
    }
}

/// Writes all shares; `tables` has a place for each rank. After an error none of them is left: where a disk is full they would
/// keep the next checkpoint from fitting.
pub(super) fn write_all(staged: &[Staged], dir: &Path, tables: &mut [ShardTable]) -> Result<(), ShardError> {
    for share in staged {
        match (share.write(dir), tables.get_mut(share.rank as usize)) {
            (Ok(written), Some(table)) => *table = written,
            (Ok(_), None) => {}
            (Err(error), _) => {
                for share in staged {
                    let _absent = std::fs::remove_file(dir.join(name::shard(share.rank)));
                }
                return Err(error);
            }
        }
    }
    Ok(())
}
