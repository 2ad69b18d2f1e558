//! A share left in memory of the launcher's, laid out as the file that it is to become: training waits for a copy only.
//!
//! ```text
//! free ─► copied into ─► handed over, with a ticket ─► the launcher writes it, or gives it up ─► given back: free
//! ```
//! A GPU copies to it by itself, where the system lets its pages be locked: training waits only until that was asked for, and goes on as
//! long as it changes nothing of the state ([`Staging::copying`]).
//!
//! **Invariant:** a snapshot that is the launcher's is not touched; memory is taken only while half of what is left stays free.

use super::{CheckpointError, host_bytes, save::Share, sys::copy_into};
use crate::backend::{
    copier::{Copier, Copying},
    locked::Locked,
    torch::ShimError,
};
use enn_common::{
    fs::{FileError, memory, mmap::SharedPart, space},
    wire::control::{ControlPage, SNAPSHOTS_MAX},
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

/// Where snapshots begin is a multiple of this, and how long they are.
const GRAIN_BYTES: u64 = 2 << 20;
/// Bytes that one thread copies at a time.
const STRETCH_BYTES: usize = 16 << 20;

/// The memory behind a control page.
#[derive(Debug)]
pub struct StagingMemory {
    /// It begins with the page, and may be made longer.
    pub file: File,
    pub page: ControlPage<'static>,
}

/// Where a share was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Offset in the memory.
    pub at: u64,
    /// For the launcher to give it back with.
    pub ticket: u64,
    /// The device still copies to it, until [`Staging::finish`].
    pub coming: bool,
}

/// Snapshots in the launcher's memory.
#[derive(Debug)]
pub struct Staging {
    memory: StagingMemory,
    /// Where what is copied lies.
    device: Device,
    /// Copies beside the computation; made when it is first needed.
    copier: Option<Copier>,
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
    /// The device copies to it.
    Filling(Copying),
}

/// A tensor of the device, and which bytes of the shard its elements are.
type Job = (Tensor, Range<usize>);

impl Staging {
    /// For what lies on `device`. No memory is taken yet.
    pub fn new(memory: StagingMemory, device: Device) -> Self {
        Self { memory, device, copier: None, unlocked: None, snapshots: Default::default(), tickets: 0 }
    }

    /// Why the device does not copy by itself, since this was asked last.
    pub fn unlocked(&mut self) -> Option<ShimError> {
        self.unlocked.take()
    }

    /// Whether the device copies by itself to the `index`-th snapshot.
    pub fn is_locked(&self, index: usize) -> bool {
        match &self.snapshots[index].part {
            Part::There(part) => part.is_locked(),
            Part::Filling(_) => true,
            Part::Absent | Part::Coming(_) => false,
        }
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

    /// Copies the share into the `index`-th snapshot, which is free, and hands it over. Where the device copies by itself, that was
    /// asked for when this returns: nobody may look at the snapshot before [`Staging::finish`], nor change what is saved on the device
    /// without [`Staging::copying`].
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
            // A snapshot that is free is not filled.
            Part::Absent | Part::Filling(_) => return Err(refused("map")(io::Error::from(io::ErrorKind::NotFound))),
        };
        let by_device = part.is_locked();
        let (part, begun) = match copy(share, part.bytes_mut(), (threads, by_device)) {
            Ok(jobs) if jobs.is_empty() => (Part::There(part), Ok(())),
            Ok(jobs) => match self.begin(jobs, part) {
                Ok(copying) => (Part::Filling(copying), Ok(())),
                Err((part, error)) => (Part::There(part), Err(error.into())),
            },
            Err(error) => (Part::There(part), Err(error)),
        };
        let snapshot = &mut self.snapshots[index];
        snapshot.part = part;
        begun?;
        self.tickets += 1;
        self.memory.page.hand_over(index, self.tickets);
        Ok(Left { at: snapshot.at, ticket: self.tickets, coming: matches!(snapshot.part, Part::Filling(_)) })
    }

    /// What a step must hold for before it changes anything of the state on the device, which still copies from it.
    pub fn copying(&self) -> Option<&Copier> {
        self.filling().next().map(Copying::copier)
    }

    /// Whether [`Staging::finish`] will not wait.
    pub fn is_filled(&self) -> bool {
        self.filling().all(Copying::is_done)
    }

    /// Waits until the device has copied what it was asked to.
    ///
    /// # Errors
    /// What the device says: what was left last is not whole, and is to be given back.
    pub fn finish(&mut self) -> Result<(), CheckpointError> {
        let mut done = Ok(());
        for snapshot in &mut self.snapshots {
            match std::mem::take(&mut snapshot.part) {
                Part::Filling(copying) => {
                    let (part, copied) = copying.finish();
                    snapshot.part = Part::There(part);
                    done = done.and(copied);
                }
                part => snapshot.part = part,
            }
        }
        Ok(done?)
    }

    /// Takes back what was left with this ticket: it was not told of, and never will be.
    pub fn take_back(&self, ticket: u64) {
        self.memory.page.give_back(ticket);
    }

    fn filling(&self) -> impl Iterator<Item = &Copying> {
        self.snapshots.iter().filter_map(|snapshot| match &snapshot.part {
            Part::Filling(copying) => Some(copying),
            _ => None,
        })
    }

    fn begin(&mut self, jobs: Vec<Job>, part: Locked) -> Result<Copying, (Locked, ShimError)> {
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
        if snapshot.room >= bytes && snapshot.room > 0 && !matches!(snapshot.part, Part::Absent) {
            return Ok(());
        }
        if snapshot.room > 0 {
            // It was made for a smaller share, and is ours. That its memory cannot be given back costs memory only.
            let at = snapshot.at.cast_signed();
            let room = snapshot.room.cast_signed();
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

/// Copies the elements of all items to their places in the shard, but for those that the device copies `by_device`.
fn copy(share: &Share, out: &mut [u8], (threads, by_device): (usize, bool)) -> Result<Vec<Job>, CheckpointError> {
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
            // Where the system refuses a thread, the others do its part.
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
