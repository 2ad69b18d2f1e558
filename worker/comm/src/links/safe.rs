//! The collectives of copy engines: copies between ranks, and the waits between them.
//!
//! Each collective consists of turns. In a turn every rank sends data to each other rank, processes the received data, and answers. In a
//! sum every rank sends each other rank the values of that rank's part, adds up its own part, and answers with the sums. A rank begins the
//! next turn only after all others have read their scratch, so one scratch is enough.
//!
//! An abort ends waits early, and the scratch then holds undefined data. Sums and gathers may contain it, but are invalid after an abort;
//! norms are NaN then. A broadcast may go to ranks that hold valid state: its data is first copied to private scratch, and taken only if no
//! abort was announced by then.
//!
//! **Invariant:** work is queued in the same order on all ranks, and each rank queues its copies before its waits: there is no deadlock,
//! even if streams share a hardware queue.

use super::{
    mmap::WordKind,
    region::LinkRegion,
    work::{LinkMember, LinkWork},
};
use crate::AbortHandle;
use enn_core::backend::link::{LinkError, PartReduction, RankReduction, StreamEvent};
use std::{
    cell::RefCell,
    collections::VecDeque,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tch::{Kind, Tensor};

/// Alignment of pieces in bytes, that of the widest load.
const PACK_BYTES: usize = 16;
/// Bytes of scratch of one rank: the others' values of its part of an array of 100 MB, followed by a private area for sums of squares, or
/// for received data and the abort word.
pub(super) const SCRATCH_BYTES: usize = VALUES_BYTES + OWN_BYTES;
const VALUES_BYTES: usize = 96 << 20;
const OWN_BYTES: usize = 16 << 20;
/// Most bytes of a broadcast that are taken at once.
const TAKEN_BYTES_MAX: usize = OWN_BYTES - PACK_BYTES;
/// Least number of values per sum of squares.
const SQUARED: usize = 512;
/// Arrays outside shared regions below this size are sent to all ranks whole: another turn takes as long as sending this much.
const PARTS_BYTES_MIN: usize = 1 << 20;
/// Pause between checks whether a device is idle.
const PAUSE: Duration = Duration::from_millis(1);

/// Longest time that a device may take to become idle after its waits have ended.
const REST_MAX: Duration = Duration::from_secs(2);

/// Runs the collectives of this rank's device.
#[derive(Debug)]
pub(super) struct CopyEngine {
    pub(super) member: Arc<LinkMember>,
    /// Shared regions, each with the norms of its array's parts.
    regions: RefCell<Vec<(LinkRegion, Tensor)>>,
    scratch: Arc<LinkRegion>,
    /// Tensors that the device may still access, in the order of their events.
    kept: RefCell<VecDeque<(Arc<StreamEvent>, Tensor)>>,
}

/// Division of an array into one part per rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Partition {
    elements: usize,
    part: usize,
}

impl Partition {
    /// Divides an array into `size` parts that begin at multiples of `pack`; the last ones may be shorter.
    fn of(elements: usize, size: usize, pack: usize) -> Self {
        Self { elements, part: elements.div_ceil(size).next_multiple_of(pack) }
    }

    /// Returns first element and length of the piece of `rank`'s part from its element `from` on, of at most `room` elements.
    fn piece(self, rank: usize, from: usize, room: usize) -> (usize, usize) {
        let begin = (rank * self.part + from).min(self.elements);
        let end = (rank * self.part + (from + room).min(self.part)).min(self.elements);
        (begin, end - begin)
    }
}

#[derive(Debug, Clone, Copy)]
struct DeviceArray {
    at: u64,
    elements: usize,
    kind: Kind,
}

impl DeviceArray {
    fn of(tensor: &Tensor) -> Self {
        Self { at: tensor.data_ptr().addr() as u64, elements: tensor.numel(), kind: tensor.kind() }
    }

    fn element_bytes(self) -> usize {
        self.kind.elt_size_in_bytes()
    }

    fn bytes(self) -> usize {
        self.elements * self.element_bytes()
    }

    fn place(self, element: usize) -> u64 {
        self.at + (element * self.element_bytes()) as u64
    }
}

#[derive(Debug, Clone, Copy)]
struct PeerCopy {
    from: u64,
    to: u64,
    bytes: usize,
}

const NOTHING: [Option<PeerCopy>; 2] = [None; 2];

/// Bytes of a part's norm.
const NORM_BYTES: usize = size_of::<f32>();

/// Whether norms of the sums of an array in a shared region are measured.
fn is_measured(array: DeviceArray, parts: Partition, reduction: RankReduction) -> bool {
    let room = parts.part.div_ceil(SQUARED) * size_of::<f64>() <= OWN_BYTES / 2;
    room && array.kind == Kind::Float && reduction == RankReduction::Sum
}

impl CopyEngine {
    pub(super) fn new(member: LinkMember, scratch: LinkRegion) -> Self {
        let regions = RefCell::default();
        let kept = RefCell::default();
        Self { member: Arc::new(member), regions, scratch: Arc::new(scratch), kept }
    }

    /// Adds a shared region with the norms of its parts. Sums in it write their answers directly into the others' arrays.
    pub(super) fn add(&self, region: LinkRegion, norms: Tensor) {
        self.regions.borrow_mut().push((region, norms));
    }

    /// Returns the norms of the parts of an array that begins at the start of a shared region.
    pub(super) fn norms_of(&self, tensor: &Tensor) -> Option<Tensor> {
        let array = DeviceArray::of(tensor);
        let regions = self.regions.borrow();
        let (_, norms) = regions.iter().find(|(region, _)| region.find(array.at, array.bytes()) == Some(0))?;
        let parts = Partition::of(array.elements, self.ranks().1, PACK_BYTES / array.element_bytes());
        is_measured(array, parts, RankReduction::Sum).then(|| norms.shallow_clone())
    }

    fn ranks(&self) -> (usize, usize) {
        (self.member.rank as usize, self.member.size as usize)
    }

    /// Returns the bytes of scratch per other rank.
    fn room(&self) -> usize {
        VALUES_BYTES / (self.ranks().1 - 1) / PACK_BYTES * PACK_BYTES
    }

    /// Returns the offset of `writer`'s slot in the scratch of `reader`; slots are ordered by rank, without the reader.
    fn slot(&self, reader: usize, writer: usize) -> usize {
        self.room() * if writer < reader { writer } else { writer - 1 }
    }

    /// Returns the address to which this rank sends data for `other`.
    fn sent_to(&self, other: usize) -> Option<u64> {
        self.scratch.of(other, self.slot(other, self.ranks().0))
    }

    /// Returns the address of the data that `other` sent.
    fn came_from(&self, other: usize) -> u64 {
        self.scratch.own.at() + self.slot(self.ranks().0, other) as u64
    }

    /// Begins to reduce a tensor over the ranks, in place.
    pub(super) fn all_reduce(&self, tensor: &Tensor, reduction: RankReduction) -> Result<LinkWork, LinkError> {
        let array = DeviceArray::of(tensor);
        let regions = self.regions.borrow();
        let found = regions.iter().find_map(|(region, _)| Some((region, region.find(array.at, array.bytes())?)));
        let parts = Partition::of(array.elements, self.ranks().1, PACK_BYTES / array.element_bytes());
        self.member.stream.make_ready(array.kind, reduction)?;
        self.begin("all_reduce", tensor, || {
            if found.is_some() {
                self.parts(array, parts, reduction, found)
            } else if array.bytes() < PARTS_BYTES_MIN {
                self.everything(array, reduction)
            } else {
                self.parts(array, parts, reduction, None)?;
                self.gather(array, parts)
            }
        })
    }

    /// Begins to sum an array of as many equal parts as there are ranks. Afterwards the part with this rank's number holds the sums.
    pub(super) fn reduce_scatter(&self, tensor: &Tensor) -> Result<LinkWork, LinkError> {
        let array = DeviceArray::of(tensor);
        self.member.stream.make_ready(array.kind, RankReduction::Sum)?;
        self.begin("reduce_scatter", tensor, || self.parts(array, self.equal(array), RankReduction::Sum, None))
    }

    pub(super) fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<LinkWork, LinkError> {
        let array = DeviceArray::of(tensor);
        let (rank, _) = self.ranks();
        self.begin("broadcast", tensor, || {
            let room = self.room().min(TAKEN_BYTES_MAX);
            for from in (0..array.bytes()).step_by(room) {
                let bytes = room.min(array.bytes() - from);
                let place = array.at + from as u64;
                let sends =
                    |other| Some(PeerCopy { from: place, to: self.sent_to(other)?, bytes }).filter(|_| rank == root);
                let takes = || match rank == root {
                    true => Ok(()),
                    false => self.take(PeerCopy { from: self.came_from(root), to: place, bytes }),
                };
                self.turn(sends, takes, |_| NOTHING)?;
            }
            Ok(())
        })
    }

    /// Begins to gather on every rank an array of as many equal parts as there are ranks, from the part that each rank holds.
    pub(super) fn all_gather(&self, tensor: &Tensor) -> Result<LinkWork, LinkError> {
        let array = DeviceArray::of(tensor);
        self.begin("all_gather", tensor, || self.gather(array, self.equal(array)))
    }

    fn equal(&self, array: DeviceArray) -> Partition {
        Partition { elements: array.elements, part: array.elements / self.ranks().1 }
    }

    /// Reduces by sending every rank's values to all others. Each rank computes the whole result.
    fn everything(&self, array: DeviceArray, reduction: RankReduction) -> Result<(), LinkError> {
        let room = self.room() / array.element_bytes();
        for from in (0..array.elements).step_by(room) {
            let count = room.min(array.elements - from);
            let place = array.place(from);
            let sends =
                |other| Some(PeerCopy { from: place, to: self.sent_to(other)?, bytes: count * array.element_bytes() });
            let takes = || self.reduce_parts(place, None, count, room, array.kind, reduction).map(|_none| ());
            self.turn(sends, takes, |_| NOTHING)?;
        }
        Ok(())
    }

    /// Reduces by parts: every rank computes its own part. In a shared region it also writes the results and their norm to the other ranks.
    fn parts(
        &self,
        array: DeviceArray,
        parts: Partition,
        reduction: RankReduction,
        shared: Option<(&LinkRegion, usize)>,
    ) -> Result<(), LinkError> {
        let rank = self.ranks().0;
        let width = array.element_bytes();
        let room = self.room() / width;
        let measured = shared.filter(|_| is_measured(array, parts, reduction));
        let mut written = 0;
        for from in (0..parts.part).step_by(room) {
            let (own, count) = parts.piece(rank, from, room);
            let sends = |other| {
                let (at, count) = parts.piece(other, from, room);
                Some(PeerCopy { from: array.place(at), to: self.sent_to(other)?, bytes: count * width })
            };
            let last = from + room >= parts.part;
            let norm = measured.filter(|_| last).map(|(region, _)| (region, region.number(rank)));
            let answers = |other| {
                let sums = shared.and_then(|(region, start)| {
                    let to = region.of(other, start + own * width)?;
                    Some(PeerCopy { from: array.place(own), to, bytes: count * width })
                });
                let norm = norm.and_then(|(region, at)| {
                    let to = region.of(other, at)?;
                    Some(PeerCopy { from: region.own.at() + at as u64, to, bytes: NORM_BYTES })
                });
                [sums, norm]
            };
            let takes = || {
                let free = measured.map(|_| self.own() + (written * size_of::<f64>()) as u64);
                written += self.reduce_parts(array.place(own), free, count, room, array.kind, reduction)?;
                let Some((region, at)) = norm else { return Ok(()) };
                let LinkMember { stream, turns, .. } = &*self.member;
                // SAFETY: the squares lie in this rank's scratch, the number in its region, and the word stays as long as the engine.
                unsafe { stream.norm(self.own(), written, region.own.at() + at as u64, turns.abort_word()) }
            };
            self.turn(sends, takes, answers)?;
        }
        Ok(())
    }

    /// Gathers by sending every rank's part to all others.
    fn gather(&self, array: DeviceArray, parts: Partition) -> Result<(), LinkError> {
        let room = self.room() / array.element_bytes();
        for from in (0..parts.part).step_by(room) {
            let part = |of: usize| {
                let (at, count) = parts.piece(of, from, room);
                (array.place(at), count * array.element_bytes())
            };
            let sends = |other| {
                let (place, bytes) = part(self.ranks().0);
                Some(PeerCopy { from: place, to: self.sent_to(other)?, bytes })
            };
            let takes = |other| {
                let (place, bytes) = part(other);
                self.copy(PeerCopy { from: self.came_from(other), to: place, bytes })
            };
            self.turn(sends, || self.others().try_for_each(takes), |_| NOTHING)?;
        }
        Ok(())
    }

    /// Returns the address of the private area of this rank's scratch.
    fn own(&self) -> u64 {
        self.scratch.own.at() + VALUES_BYTES as u64
    }

    /// Reduces the values of all ranks into the own ones at `own`. Returns the number of sums of squares written to `squares`.
    fn reduce_parts(
        &self,
        own: u64,
        squares: Option<u64>,
        elements: usize,
        stride: usize,
        kind: Kind,
        reduction: RankReduction,
    ) -> Result<usize, LinkError> {
        let LinkMember { stream, rank, size, .. } = &*self.member;
        let parts = self.scratch.own.at();
        let rank = *rank;
        let size = *size;
        let job = PartReduction { own, parts, squares, elements, stride, rank, size, kind, reduction };
        // SAFETY: the values are the tensor's, which is kept, and the others' and the squares lie in the scratch.
        unsafe { stream.sum(&job) }
    }

    /// Queues turns on the copy stream after the work that computes `tensor`, which is kept until they are done.
    fn begin(
        &self,
        operation: &'static str,
        tensor: &Tensor,
        turns: impl FnOnce() -> Result<(), LinkError>,
    ) -> Result<LinkWork, LinkError> {
        let stream = &self.member.stream;
        let mut kept = self.kept.borrow_mut();
        while kept.front().map_or(Ok(false), |(done, _)| done.is_past())? {
            kept.pop_front();
        }
        let made = stream.after_current()?;
        let given = turns();
        let done = Arc::new(stream.record_event()?);
        kept.push_back((Arc::clone(&done), tensor.shallow_clone()));
        given.map(|()| LinkWork { operation, member: Arc::clone(&self.member), made, done })
    }

    /// Returns the other ranks, beginning with the next one, so that no two ranks write to the same memory at once.
    fn others(&self) -> impl Iterator<Item = usize> {
        let (rank, size) = self.ranks();
        (1..size).map(move |distance| (rank + distance) % size)
    }

    /// Queues one turn: copies to each other rank, processing of the received data, and the answers.
    fn turn(
        &self,
        sends: impl Fn(usize) -> Option<PeerCopy>,
        takes: impl FnOnce() -> Result<(), LinkError>,
        answers: impl Fn(usize) -> [Option<PeerCopy>; 2],
    ) -> Result<(), LinkError> {
        let turn = self.member.turns.next();
        self.give(turn, WordKind::Part, |other| [sends(other), None])?;
        takes()?;
        self.give(turn, WordKind::Sums, answers)
    }

    /// Queues copies to every other rank with the word that announces them, then waits for the words of the others.
    fn give(&self, turn: u32, event: WordKind, what: impl Fn(usize) -> [Option<PeerCopy>; 2]) -> Result<(), LinkError> {
        let LinkMember { stream, turns, .. } = &*self.member;
        let rank = self.ranks().0;
        for other in self.others() {
            what(other).into_iter().flatten().try_for_each(|copy| self.copy(copy))?;
            // SAFETY: the words stay as long as the engine.
            unsafe { stream.write_word(turns.word(other, rank, event), turn) }?;
        }
        for other in self.others() {
            // SAFETY: as above.
            unsafe { stream.wait_word(turns.word(rank, other, event), turn) }?;
        }
        Ok(())
    }

    fn copy(&self, copy: PeerCopy) -> Result<(), LinkError> {
        let PeerCopy { from, to, bytes } = copy;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both lie in a tensor that is kept, in the scratch, at most a slot long, in a region, which is as long on every rank, or
        // are a turn's word; scratch, regions and words stay until this engine has come to rest.
        unsafe { self.member.stream.copy(from, to, bytes) }
    }

    /// Copies received data to its destination, unless a rank has aborted the group by the time that the data is in private scratch.
    fn take(&self, copy: PeerCopy) -> Result<(), LinkError> {
        let LinkMember { stream, turns, .. } = &*self.member;
        let own = self.own();
        let seen = self.own() + TAKEN_BYTES_MAX as u64;
        self.copy(PeerCopy { to: own, ..copy })?;
        self.copy(PeerCopy { from: turns.abort_word(), to: seen, bytes: size_of::<u32>() })?;
        // SAFETY: as in `copy`.
        unsafe { stream.take(own, copy.to, copy.bytes, seen) }
    }

    /// Waits until the copy stream is idle, at most `timeout`. Returns whether it is. After an abort the device does not wait for others.
    #[expect(clippy::disallowed_methods, reason = "a device tells no descriptor that could be waited for")]
    pub(super) fn rest(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while !self.member.stream.is_idle() {
            if Instant::now() >= deadline {
                return false;
            }
            if self.member.turns.aborted_by().is_some() {
                // Repeated, since another rank may have overwritten the words.
                self.member.turns.release();
            }
            thread::sleep(PAUSE);
        }
        true
    }
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        if self.rest(Duration::ZERO) {
            return;
        }
        self.member.turns.abort();
        if !self.rest(REST_MAX) {
            tracing::warn!("a device does not become idle; the memory of its sums is not released");
            std::mem::forget((
                self.regions.take(),
                self.kept.take(),
                Arc::clone(&self.scratch),
                Arc::clone(&self.member),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_element_once() {
        for (elements, size, room) in [(1, 2, 4), (7, 3, 4), (1000, 4, 64), (1021, 8, 16), (12, 3, 100), (5, 4, 4)] {
            let parts = Partition::of(elements, size, 4);
            let mut seen = vec![0; elements];
            for rank in 0..size {
                for from in (0..parts.part).step_by(room) {
                    let (at, count) = parts.piece(rank, from, room);
                    assert!(count <= room, "{count} of {room}");
                    seen[at..at + count].iter_mut().for_each(|times| *times += 1);
                }
            }
            assert!(seen.iter().all(|times| *times == 1), "{elements} over {size}: {seen:?}");
        }
    }
}
