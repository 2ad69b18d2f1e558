//! Shards of checkpoints that workers of this node left in memory: the end of a worker does not change them.

use super::unix::SharedPage;
use enn_common::{
    checkpoint::{
        ShardError, ShardLayout, name,
        table::ShardTable,
        write::{How, write_shard},
    },
    fs::{Disk, mmap::SharedPart, space},
    id::WorkerId,
    wire::{message::StagedShard, node_agent::WriteFailure},
};
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// A shard in memory, laid out as the file that it is to become. The worker gets the memory back when it is dropped.
#[derive(Debug)]
pub(super) struct KeptSnapshot {
    page: Arc<SharedPage>,
    ticket: u64,
    memory: SharedPart,
    layout: ShardLayout,
    blake3: bool,
}

impl KeptSnapshot {
    /// Maps the memory in which the worker says that it left its shard. The error is one sentence.
    fn take(page: &Arc<SharedPage>, shard: StagedShard) -> Result<Self, String> {
        let StagedShard { at, boxes, blake3, dir, step, ticket, .. } = shard;
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
        Ok(Self { page: Arc::clone(page), ticket, memory, layout, blake3 })
    }

    /// Writes the shard of `rank`, fsynced. After an error no part of it is left: on a full disk it would keep the next checkpoint from
    /// fitting.
    pub(super) fn write(&self, dir: &Path, rank: u32) -> Result<ShardTable, WriteFailure> {
        let bytes = self.memory.bytes();
        let payload = |at: u64, length: u64| bytes.get(at as usize..(at + length) as usize).unwrap_or_default();
        let payloads: Vec<&[u8]> =
            self.layout.spans.iter().map(|span| payload(span.payload_at, span.payload)).collect();
        let how = How { blake3: self.blake3, ..How::shared_by(1) };
        write_shard(&Disk, dir, rank, &self.layout, &payloads, how).map_err(|error: ShardError| {
            let _absent = std::fs::remove_file(dir.join(name::shard(rank)));
            WriteFailure { disk_full: space::is_full(&error), error: error.to_string() }
        })
    }
}

impl Drop for KeptSnapshot {
    fn drop(&mut self) {
        self.page.give_back(self.ticket);
    }
}

/// Name of a snapshot: a worker uses a ticket once.
pub(super) type SnapshotName = (WorkerId, u64);

/// Snapshots that wait to be written or released, or why the memory of one could not be mapped. The node state has each written by one
/// thread at a time, and releases none that is being written.
#[derive(Debug, Default)]
pub(super) struct Snapshots(BTreeMap<SnapshotName, Result<KeptSnapshot, String>>);

impl Snapshots {
    /// Keeps what the worker left behind its page.
    pub(super) fn keep(&mut self, worker: WorkerId, page: &Arc<SharedPage>, shard: StagedShard) {
        let ticket = shard.ticket;
        let kept = KeptSnapshot::take(page, shard).inspect_err(|_| page.give_back(ticket));
        self.0.insert((worker, ticket), kept);
    }

    /// Takes a snapshot that is to be written. One that was not written is [`returned`](Self::returned): it may be tried again.
    pub(super) fn take(&mut self, name: SnapshotName) -> Result<KeptSnapshot, WriteFailure> {
        let kept = self.0.remove(&name).unwrap_or_else(|| Err("its share is not in memory any more".to_owned()));
        kept.map_err(|error| WriteFailure { error, disk_full: false })
    }

    pub(super) fn returned(&mut self, name: SnapshotName, unwritten: KeptSnapshot) {
        self.0.insert(name, Ok(unwritten));
    }

    /// Gives the memory back.
    pub(super) fn release(&mut self, name: SnapshotName) {
        self.0.remove(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::{
        checkpoint::{TensorDType, layout::BoxOf},
        wire::control::PAGE_BYTES,
    };
    use std::{fs::File, os::unix::fs::FileExt};

    const WORKER: WorkerId = WorkerId(4);

    fn page_with_shard(dir: &Path) -> (Arc<SharedPage>, StagedShard) {
        let page = Arc::new(SharedPage::create().unwrap());
        let sizes = vec![4];
        let part = BoxOf { fqn: "w".into(), dtype: TensorDType::U8, global: sizes.clone(), offsets: vec![0], sizes };
        let layout = ShardLayout::of(vec![part]).unwrap();
        let at = PAGE_BYTES as u64;
        let worker = File::options().read(true).write(true).open(format!("/proc/self/fd/{}", page.fd())).unwrap();
        worker.set_len(at + layout.bytes).unwrap();
        worker.write_all_at(b"kept", at + layout.spans[0].payload_at).unwrap();
        page.fields().unwrap().hand_over(0, 9);
        let dir = dir.join(name::temporary(5, "0-a"));
        let boxes = layout.boxes;
        let shard = StagedShard {
            step: 5,
            epoch: 1,
            dir,
            metric: None,
            ticket: 9,
            at,
            boxes,
            blake3: false,
            blocked: 0.0,
            must: false,
        };
        (page, shard)
    }

    #[test]
    fn a_snapshot_is_written_and_given_back_once() {
        let dir = tempfile::tempdir().unwrap();
        let (page, shard) = page_with_shard(dir.path());
        let to = shard.dir.clone();
        let mut snapshots = Snapshots::default();
        snapshots.keep(WORKER, &page, shard);
        let snapshot = snapshots.take((WORKER, 9)).unwrap();
        assert!(snapshots.take((WORKER, 9)).is_err());
        let table = snapshot.write(&to, 3).unwrap();
        let bytes = std::fs::read(to.join(name::shard(3))).unwrap();
        assert_eq!((table.file, bytes.windows(4).any(|window| window == b"kept")), (name::shard(3), true));
        assert!(!page.fields().unwrap().is_free(0));
        drop(snapshot);
        assert!(page.fields().unwrap().is_free(0) && snapshots.0.is_empty());
    }

    #[test]
    fn one_that_was_not_written_is_kept_until_it_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let (page, shard) = page_with_shard(dir.path());
        let mut snapshots = Snapshots::default();
        snapshots.keep(WORKER, &page, shard);
        for _ in 0..2 {
            let snapshot = snapshots.take((WORKER, 9)).unwrap();
            assert!(snapshot.write(Path::new("/proc/none"), 0).is_err());
            snapshots.returned((WORKER, 9), snapshot);
            assert!(!page.fields().unwrap().is_free(0));
        }
        snapshots.release((WORKER, 9));
        assert!(page.fields().unwrap().is_free(0));
        assert!(snapshots.0.is_empty());
    }

    #[test]
    fn memory_that_is_not_there_is_refused_and_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let (page, shard) = page_with_shard(dir.path());
        let mut snapshots = Snapshots::default();
        snapshots.keep(WORKER, &page, StagedShard { at: 1 << 40, ..shard });
        assert!(page.fields().unwrap().is_free(0));
        let failure = snapshots.take((WORKER, 9)).unwrap_err();
        assert!(failure.error.contains("cannot be mapped"), "{}", failure.error);
        assert!(snapshots.take((WORKER, 8)).is_err());
    }
}
