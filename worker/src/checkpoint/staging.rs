//! Copies a shard into memory of the launcher, in the layout of the file, so that training waits for a copy only.
//!
//! ```text
//! free ─► written by the worker ─► handed over, with a ticket ─► written to disk or dropped by the launcher ─► free
//! ```
//! A GPU copies asynchronously, where the system allows its pages to be locked: training continues after the copy has
//! begun, until a step is about to change the state ([`Staging::copying`]).
//!
//! **Invariant:** a snapshot that the launcher owns is not written; memory is taken only while half of the available
//! memory stays free.

use super::{CheckpointError, host_bytes, save::ShardContent, sys::copy_into};
use enn_common::{
    fs::{FileError, memory, mmap::SharedPart, space},
    wire::control::{ControlPage, SNAPSHOTS_MAX},
};
use enn_core::backend::{
    copier::{Copier, PendingCopy},
    pinned::PinnedBuffer,
    torch::ShimError,
};
use nix::fcntl::{FallocateFlags, fallocate};
use std::{
    fs::File,
    io,
    ops::Range,
    path::Path,
    sync::{Mutex, PoisonError},
    thread::JoinHandle,
};
use tch::{Device, Tensor};

/// Alignment of snapshots, in offset and length.
const GRAIN_BYTES: u64 = 2 << 20;
/// Number of bytes that one thread copies at a time.
const STRETCH_BYTES: usize = 16 << 20;

/// The memory behind a control page.
#[derive(Debug)]
pub struct StagingMemory {
    /// File that begins with the control page and can be extended.
    pub file: File,
    pub page: ControlPage<'static>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagedSnapshot {
    /// Offset in the memory.
    pub at: u64,
    /// Number with which the launcher returns the snapshot.
    pub ticket: u64,
    /// Whether the device still copies to the snapshot, until [`Staging::finish`].
    pub pending: bool,
}

/// Snapshots in the launcher's memory.
#[derive(Debug)]
pub struct Staging {
    memory: StagingMemory,
    /// Device of the tensors that are saved.
    device: Device,
    /// Copies in parallel with the computation; created on first use.
    copier: Option<Copier>,
    /// Reason for which pages are not locked.
    unlocked: Option<ShimError>,
    snapshots: [Snapshot; SNAPSHOTS_MAX],
    tickets: u64,
}

#[derive(Debug, Default)]
struct Snapshot {
    at: u64,
    room: u64,
    part: SnapshotState,
}

#[derive(Debug, Default)]
enum SnapshotState {
    #[default]
    Absent,
    Allocating(JoinHandle<io::Result<(PinnedBuffer, Result<(), ShimError>)>>),
    Allocated(PinnedBuffer),
    Filling(PendingCopy),
}

/// A tensor on the device, and its byte range in the shard.
type DeviceCopy = (Tensor, Range<usize>);

impl Staging {
    /// Creates staging for tensors on `device`. No memory is allocated yet.
    pub fn new(memory: StagingMemory, device: Device) -> Self {
        Self { memory, device, copier: None, unlocked: None, snapshots: Default::default(), tickets: 0 }
    }

    /// Returns why the device does not copy asynchronously, once per occurrence.
    pub fn unlocked(&mut self) -> Option<ShimError> {
        self.unlocked.take()
    }

    /// Whether the device copies asynchronously to the `index`-th snapshot.
    pub fn is_pinned(&self, index: usize) -> bool {
        match &self.snapshots[index].part {
            SnapshotState::Allocated(part) => part.is_pinned(),
            SnapshotState::Filling(_) => true,
            SnapshotState::Absent | SnapshotState::Allocating(_) => false,
        }
    }

    /// Begins to allocate memory for shards of `bytes`, so that the first save takes no longer than others.
    ///
    /// # Errors
    /// [`CheckpointError::Memory`] when too little is available; errors of the system.
    pub fn prepare(&mut self, bytes: u64) -> Result<(), CheckpointError> {
        match self.free() {
            Some(index) => self.make_room(index, bytes),
            None => Ok(()),
        }
    }

    /// Returns the snapshot to overwrite next, with a preference for one that has memory; `None` when the launcher owns
    /// all.
    pub fn free(&self) -> Option<usize> {
        let free = || (0..SNAPSHOTS_MAX).filter(|index| self.memory.page.is_free(*index));
        free().find(|index| self.snapshots[*index].room > 0).or_else(|| free().next())
    }

    /// Copies the shard into the `index`-th snapshot, which is free, and hands it over. With an asynchronous copy of
    /// the device, the copy is only begun: the snapshot must not be read before [`Staging::finish`], and the state on
    /// the device must not change without [`Staging::copying`].
    ///
    /// # Errors
    /// [`CheckpointError::Memory`] when too little is available; errors of libtorch or of the system.
    pub fn stage(
        &mut self,
        index: usize,
        share: &ShardContent,
        threads: usize,
    ) -> Result<StagedSnapshot, CheckpointError> {
        self.make_room(index, share.layout.bytes)?;
        let snapshot = &mut self.snapshots[index];
        let mut part = match std::mem::take(&mut snapshot.part) {
            SnapshotState::Allocated(part) => part,
            SnapshotState::Allocating(thread) => {
                let made =
                    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that allocated it panicked")));
                let (part, locked) = made.map_err(refused("map"))?;
                self.unlocked = locked.err();
                part
            }
            // A free snapshot has no pending copy.
            SnapshotState::Absent | SnapshotState::Filling(_) => {
                return Err(refused("map")(io::Error::from(io::ErrorKind::NotFound)));
            }
        };
        let by_device = part.is_pinned();
        let (part, begun) = match copy(share, part.bytes_mut(), threads, by_device) {
            Ok(jobs) if jobs.is_empty() => (SnapshotState::Allocated(part), Ok(())),
            Ok(jobs) => match self.begin(jobs, part) {
                Ok(copying) => (SnapshotState::Filling(copying), Ok(())),
                Err((part, error)) => (SnapshotState::Allocated(part), Err(error.into())),
            },
            Err(error) => (SnapshotState::Allocated(part), Err(error)),
        };
        let snapshot = &mut self.snapshots[index];
        snapshot.part = part;
        begun?;
        self.tickets += 1;
        self.memory.page.hand_over(index, self.tickets);
        Ok(StagedSnapshot {
            at: snapshot.at,
            ticket: self.tickets,
            pending: matches!(snapshot.part, SnapshotState::Filling(_)),
        })
    }

    /// Returns the copier that a step must wait for before it changes the state on the device.
    pub fn copying(&self) -> Option<&Copier> {
        self.filling().next().map(PendingCopy::copier)
    }

    /// Whether [`Staging::finish`] returns at once.
    pub fn is_filled(&self) -> bool {
        self.filling().all(PendingCopy::is_done)
    }

    /// Waits for the pending copies of the device.
    ///
    /// # Errors
    /// Errors of the device: the last snapshot is incomplete and must be returned.
    pub fn finish(&mut self) -> Result<(), CheckpointError> {
        let mut done = Ok(());
        for snapshot in &mut self.snapshots {
            match std::mem::take(&mut snapshot.part) {
                SnapshotState::Filling(copying) => {
                    let (part, copied) = copying.finish();
                    snapshot.part = SnapshotState::Allocated(part);
                    done = done.and(copied);
                }
                part => snapshot.part = part,
            }
        }
        Ok(done?)
    }

    /// Frees the snapshot with this ticket, which the launcher does not know of.
    pub fn release(&self, ticket: u64) {
        self.memory.page.give_back(ticket);
    }

    fn filling(&self) -> impl Iterator<Item = &PendingCopy> {
        self.snapshots.iter().filter_map(|snapshot| match &snapshot.part {
            SnapshotState::Filling(copying) => Some(copying),
            _ => None,
        })
    }

    fn begin(&mut self, jobs: Vec<DeviceCopy>, part: PinnedBuffer) -> Result<PendingCopy, (PinnedBuffer, ShimError)> {
        let Device::Cuda(device) = self.device else { unreachable!("pages are locked for a CUDA device only") };
        let copier = match &self.copier {
            Some(copier) => copier.clone(),
            None => match Copier::new(device) {
                Ok(copier) => self.copier.insert(copier).clone(),
                Err(error) => return Err((part, error)),
            },
        };
        copier.begin(jobs, part)
    }

    fn make_room(&mut self, index: usize, bytes: u64) -> Result<(), CheckpointError> {
        let snapshot = &mut self.snapshots[index];
        if snapshot.room >= bytes && snapshot.room > 0 && !matches!(snapshot.part, SnapshotState::Absent) {
            return Ok(());
        }
        if snapshot.room > 0 {
            // The memory was allocated for a smaller shard and belongs to this rank. A failure to return it costs
            // memory only.
            let at = snapshot.at.cast_signed();
            let room = snapshot.room.cast_signed();
            let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            // Locked pages cannot be returned, so they are unlocked first.
            *snapshot = Snapshot::default();
            let _kept = fallocate(&self.memory.file, punch, at, room);
        }
        let room = (bytes + GRAIN_BYTES / 2).next_multiple_of(GRAIN_BYTES);
        let available = memory::available_bytes().unwrap_or(u64::MAX);
        if room > available / 2 {
            return Err(CheckpointError::Memory {
                needed: space::readable(room),
                available: space::readable(available),
            });
        }
        let file = self.memory.file.try_clone().map_err(refused("use"))?;
        let at = file.metadata().map_err(refused("look at"))?.len().next_multiple_of(GRAIN_BYTES);
        file.set_len(at + room).map_err(refused("extend"))?;
        let device = self.device;
        let make = move || {
            let part = SharedPart::of(&file, at, usize::try_from(room).map_err(io::Error::other)?, true)?;
            Ok(PinnedBuffer::of(part, device))
        };
        let thread = std::thread::Builder::new().name("enn-staging".into()).spawn(make);
        *snapshot = Snapshot { at, room, part: SnapshotState::Allocating(thread.map_err(refused("make"))?) };
        Ok(())
    }
}

fn refused(action: &'static str) -> impl FnOnce(io::Error) -> CheckpointError {
    move |source| FileError::of(action, Path::new("the launcher's memory for checkpoints"))(source).into()
}

/// Copies the elements of all items to their positions in the shard, except those that the device copies, with
/// `by_device`.
fn copy(
    share: &ShardContent,
    out: &mut [u8],
    threads: usize,
    by_device: bool,
) -> Result<Vec<DeviceCopy>, CheckpointError> {
    let mut rest = out;
    let mut at = 0u64;
    let mut jobs: Vec<(&mut [u8], &[u8])> = Vec::new();
    let mut later = Vec::new();
    for (index, (part, span)) in share.parts.iter().zip(&share.layout.spans).enumerate() {
        let (_, behind) = rest.split_at_mut((span.payload_at - at) as usize);
        let (to, behind) = behind.split_at_mut(span.payload as usize);
        rest = behind;
        at = span.payload_at + span.payload;
        match host_bytes(part) {
            Some(from) => jobs.extend(to.chunks_mut(STRETCH_BYTES).zip(from.chunks(STRETCH_BYTES))),
            None if by_device && span.payload > 0 && part.device().is_cuda() && part.is_contiguous() => {
                let begin = span.payload_at as usize;
                later.push((part.shallow_clone(), begin..begin + span.payload as usize));
            }
            None => copy_into(part, to)
                .map_err(|source| CheckpointError::Copy { fqn: share.layout.boxes[index].fqn.clone(), source })?,
        }
    }
    let helpers = if share.layout.bytes > STRETCH_BYTES as u64 { threads.saturating_sub(1) } else { 0 };
    let jobs = Mutex::new(jobs);
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || {
        while let Some((to, from)) = next() {
            to.copy_from_slice(from);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            // Where the system refuses a thread, the other threads do its part.
            let _refused = std::thread::Builder::new().name("enn-staging".into()).spawn_scoped(scope, work);
        }
        work();
    });
    Ok(later)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Named, write_share};
    use enn_common::{
        checkpoint::write::{How, write_shard},
        fs::Disk,
        wire::control::PAGE_BYTES,
    };
    use std::sync::atomic::AtomicU64;
    use tch::{Kind, Tensor};

    fn staging() -> Staging {
        let words: &'static [AtomicU64] = Box::leak((0..PAGE_BYTES / 8).map(|_| AtomicU64::new(0)).collect());
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE_BYTES as u64).unwrap();
        Staging::new(StagingMemory { file, page: ControlPage::create(words).unwrap() }, Device::Cpu)
    }

    fn state(rows: i64) -> Vec<Named> {
        let random = |shape: &[i64]| Tensor::rand(shape, (Kind::Float, Device::Cpu));
        vec![
            Named::of("model.a", &random(&[rows, 1000])),
            Named::of("model.turned", &random(&[70, 30]).transpose(0, 1)),
            Named::of("step", &Tensor::from(3.5f64)),
            Named::of("empty", &Tensor::zeros([0, 4], (Kind::Int64, Device::Cpu))),
        ]
    }

    #[test]
    fn what_was_left_becomes_the_file_that_would_have_been_written() {
        let mut staging = staging();
        let dir = tempfile::tempdir().unwrap();
        // The second shard does not fit into the memory of the first.
        for (rows, rank) in [(700, 0), (6_000, 1), (10, 0)] {
            let items = state(rows);
            let share = ShardContent::of(&items, &[], rank, 2).unwrap();
            staging.prepare(share.layout.bytes).unwrap();
            let index = staging.free().unwrap();
            let left = staging.stage(index, &share, 2).unwrap();
            let page = staging.memory.page;
            assert!(!page.is_free(index));
            let bytes = SharedPart::of(&staging.memory.file, left.at, share.layout.bytes as usize, false).unwrap();
            let payload = |at: u64, length: u64| &bytes.bytes()[at as usize..(at + length) as usize];
            let payloads: Vec<&[u8]> =
                share.layout.spans.iter().map(|span| payload(span.payload_at, span.payload)).collect();
            let how = How { threads: 1, blake3: false };
            let staged = dir.path().join("staged");
            let table = write_shard(&Disk, &staged, rank, &share.layout, &payloads, how).unwrap();
            let plain = dir.path().join("plain");
            assert_eq!(write_share(&plain, rank, 2, &items).unwrap(), table);
            let read = |dir: &Path| std::fs::read(dir.join(format!("__{rank}_0.distcp"))).unwrap();
            assert!(read(&staged) == read(&plain));
            page.give_back(left.ticket);
            assert!(page.is_free(index));
        }
    }

    #[test]
    fn two_snapshots_and_no_third() {
        let mut staging = staging();
        let items = state(3);
        let share = ShardContent::of(&items, &[], 0, 1).unwrap();
        let mut left = Vec::new();
        while let Some(index) = staging.free() {
            left.push(staging.stage(index, &share, 1).unwrap());
        }
        assert_eq!(left.len(), SNAPSHOTS_MAX);
        assert_ne!(left[0].at, left[1].at);
        staging.memory.page.give_back(left[1].ticket);
        assert_eq!(staging.free(), Some(1));
    }

    #[test]
    fn memory_that_is_not_there_is_one_sentence() {
        let error = staging().prepare(1 << 60).unwrap_err().to_string();
        assert!(error.contains("are needed") && error.contains("available"), "{error}");
    }
}
