//! A share left in memory of the launcher's, laid out as the file that it is to become: training waits for a copy only.
//!
//! ```text
//! free ─► copied into ─► handed over, with a ticket ─► the launcher writes it, or gives it up ─► given back: free
//! ```
//! A GPU copies to it by itself: its pages are locked, where the system lets them be.
//!
//! **Invariant:** a snapshot that is the launcher's is not touched; memory is taken only while half of what is left stays free.

use super::{CheckpointError, host_bytes, save::Share, sys::copy_into};
use crate::backend::{locked::Locked, torch::ShimError};
use enn_common::{
    fs::{FileError, memory, mmap::SharedPart, space},
    wire::control::{ControlPage, SNAPSHOTS_MAX},
};
use nix::fcntl::{FallocateFlags, fallocate};
use std::{
    fs::File,
    io,
    path::Path,
    sync::{Mutex, PoisonError},
    thread::JoinHandle,
};
use tch::Device;

/// Where snapshots begin is a multiple of this, and how long they are.
const GRAIN_BYTES: u64 = 2 << 20;
/// Bytes that one thread copies at a time.
const STRETCH_BYTES: usize = 16 << 20;

/// The memory behind a control page.
#[derive(Debug)]
pub struct StagingMemory {
    /// It begins with the page, and may be made longer.
    pub file: File,
    /// The page.
    pub page: ControlPage<'static>,
}

/// Where a share was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Offset in the memory.
    pub at: u64,
    /// For the launcher to give it back with.
    pub ticket: u64,
}

/// Snapshots in the launcher's memory.
#[derive(Debug)]
pub struct Staging {
    memory: StagingMemory,
    /// Where what is copied lies.
    device: Device,
    /// Why its pages are not locked.
    unlocked: Option<ShimError>,
    snapshots: [Snapshot; SNAPSHOTS_MAX],
    tickets: u64,
}

#[derive(Debug, Default)]
struct Snapshot {
    at: u64,
    room: u64,
    part: Part,
}

#[derive(Debug, Default)]
enum Part {
    #[default]
    Absent,
    /// Its pages are being made.
    Coming(JoinHandle<io::Result<(Locked, Result<(), ShimError>)>>),
    There(Locked),
}

impl Staging {
    /// For what lies on `device`. No memory is taken yet.
    pub fn new(memory: StagingMemory, device: Device) -> Self {
        Self { memory, device, unlocked: None, snapshots: Default::default(), tickets: 0 }
    }

    /// Why the device does not copy by itself, since this was asked last.
    pub fn unlocked(&mut self) -> Option<ShimError> {
        self.unlocked.take()
    }

    /// Whether the device copies by itself to the `index`-th snapshot.
    pub fn is_locked(&self, index: usize) -> bool {
        matches!(&self.snapshots[index].part, Part::There(part) if part.is_locked())
    }

    /// Begins to make room for shares of so many bytes, so that the first save takes no longer than others.
    ///
    /// # Errors
    /// [`CheckpointError::Memory`] when there is too little; what the system says.
    pub fn prepare(&mut self, bytes: u64) -> Result<(), CheckpointError> {
        match self.free() {
            Some(index) => self.make_room(index, bytes),
            None => Ok(()),
        }
    }

    /// The snapshot to be overwritten next: one that has its memory, if there is one. `None`: all are the launcher's.
    pub fn free(&self) -> Option<usize> {
        let free = || (0..SNAPSHOTS_MAX).filter(|index| self.memory.page.is_free(*index));
        free().find(|index| self.snapshots[*index].room > 0).or_else(|| free().next())
    }

    /// Copies the share into the `index`-th snapshot, which is free, and hands it over.
    ///
    /// # Errors
    /// [`CheckpointError::Memory`] when there is too little; what libtorch or the system says.
    pub fn leave(&mut self, index: usize, share: &Share, threads: usize) -> Result<Left, CheckpointError> {
        self.make_room(index, share.layout.bytes)?;
        let snapshot = &mut self.snapshots[index];
        let mut part = match std::mem::take(&mut snapshot.part) {
            Part::There(part) => part,
            Part::Coming(thread) => {
                let made = thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that made it is gone")));
                let (part, locked) = made.map_err(refused("map"))?;
                self.unlocked = locked.err();
                part
            }
            Part::Absent => return Err(refused("map")(io::Error::from(io::ErrorKind::NotFound))),
        };
        copy(share, part.bytes_mut(), threads)?;
        snapshot.part = Part::There(part);
        self.tickets += 1;
        self.memory.page.hand_over(index, self.tickets);
        Ok(Left { at: snapshot.at, ticket: self.tickets })
    }

    fn make_room(&mut self, index: usize, bytes: u64) -> Result<(), CheckpointError> {
        let snapshot = &mut self.snapshots[index];
        if snapshot.room >= bytes && snapshot.room > 0 && !matches!(snapshot.part, Part::Absent) {
            return Ok(());
        }
        if snapshot.room > 0 {
            // It was made for a smaller share, and is ours. That its memory cannot be given back costs memory only.
            let (at, room) = (snapshot.at.cast_signed(), snapshot.room.cast_signed());
            let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            // Pages that are locked are not given back.
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
            Ok(Locked::of(part, device))
        };
        let thread = std::thread::Builder::new().name("enn-staging".into()).spawn(make);
        *snapshot = Snapshot { at, room, part: Part::Coming(thread.map_err(refused("make"))?) };
        Ok(())
    }
}

fn refused(action: &'static str) -> impl FnOnce(io::Error) -> CheckpointError {
    move |source| FileError::of(action, Path::new("the launcher's memory for checkpoints"))(source).into()
}

/// Copies the elements of all items to their places in the shard.
fn copy(share: &Share, out: &mut [u8], threads: usize) -> Result<(), CheckpointError> {
    let (mut rest, mut at) = (out, 0u64);
    let mut jobs: Vec<(&mut [u8], &[u8])> = Vec::new();
    for (index, (part, span)) in share.parts.iter().zip(&share.layout.spans).enumerate() {
        let (_, behind) = rest.split_at_mut((span.payload_at - at) as usize);
        let (to, behind) = behind.split_at_mut(span.payload as usize);
        (rest, at) = (behind, span.payload_at + span.payload);
        match host_bytes(part) {
            Some(from) => jobs.extend(to.chunks_mut(STRETCH_BYTES).zip(from.chunks(STRETCH_BYTES))),
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
            // Where the system refuses a thread, the others do its part.
            let _refused = std::thread::Builder::new().name("enn-staging".into()).spawn_scoped(scope, work);
        }
        work();
    });
    Ok(())
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
        let (mut staging, dir) = (staging(), tempfile::tempdir().unwrap());
        // The second does not fit where the first was.
        for (rows, rank) in [(700, 0), (6_000, 1), (10, 0)] {
            let items = state(rows);
            let share = Share::of((&items, &[]), rank, 2).unwrap();
            staging.prepare(share.layout.bytes).unwrap();
            let index = staging.free().unwrap();
            let left = staging.leave(index, &share, 2).unwrap();
            let page = staging.memory.page;
            assert!(!page.is_free(index));
            let bytes = SharedPart::of(&staging.memory.file, left.at, share.layout.bytes as usize, false).unwrap();
            let payload = |at: u64, length: u64| &bytes.bytes()[at as usize..(at + length) as usize];
            let payloads: Vec<&[u8]> =
                share.layout.spans.iter().map(|span| payload(span.payload_at, span.payload)).collect();
            let how = How { threads: 1, blake3: false };
            let staged = dir.path().join("staged");
            let table = write_shard(&Disk, (&staged, rank), (&share.layout, &payloads), how).unwrap();
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
        let share = Share::of((&items, &[]), 0, 1).unwrap();
        let mut left = Vec::new();
        while let Some(index) = staging.free() {
            left.push(staging.leave(index, &share, 1).unwrap());
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
