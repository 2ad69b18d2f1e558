//! The sum itself: what is copied to whom, and who waits for what.
//!
//! Every rank sends each other rank its values of that one's part, adds up its own part, and sends the sums to all. Who begins another
//! sum has heard from all that they have read what lay in their scratch: one scratch is enough.
//!
//! **Invariant:** the device is given work in one order, the same on all ranks, and each rank gives before it waits: whatever streams share
//! a queue of the device, somebody can go on.

use super::{
    mmap::Told,
    region::Region,
    work::{LinkWork, Member},
};
use crate::backend::link::LinkError;
use crate::comm::Cut;
use std::{
    cell::RefCell,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Bytes of a float.
const FLOAT: usize = 4;
/// Parts begin at multiples of so many floats: the widest load.
const PACK: usize = 4;
/// Most bytes of scratch of one rank: the others' values of its part of an array of 100 MB.
const SCRATCH_MAX: usize = 96 << 20;
/// Pause between looks at a device that is to come to rest.
const PAUSE: Duration = Duration::from_millis(1);

/// How long a device whose waits have ended may take to come to rest.
const REST_MAX: Duration = Duration::from_secs(2);

/// What this rank's device sums with.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) member: Arc<Member>,
    regions: RefCell<Vec<Arc<Region>>>,
    scratch: RefCell<Option<Arc<Region>>>,
}

/// Which part of an array every rank gets, and where in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parts {
    elements: usize,
    part: usize,
}

impl Parts {
    /// An array in as many parts as there are ranks, the last of which may be shorter.
    fn of(elements: usize, size: usize) -> Self {
        Self { elements, part: elements.div_ceil(size).next_multiple_of(PACK) }
    }

    /// First element, and number of elements, of what `rank` gets of at most `room` elements from the one `from` of each part on.
    fn piece(self, rank: usize, from: usize, room: usize) -> (usize, usize) {
        let begin = (rank * self.part + from).min(self.elements);
        let end = (rank * self.part + (from + room).min(self.part)).min(self.elements);
        (begin, end - begin)
    }
}

impl Engine {
    pub(super) fn new(member: Member) -> Self {
        Self { member: Arc::new(member), regions: RefCell::default(), scratch: RefCell::default() }
    }

    /// Bytes of scratch that an array of so many wants and is not there yet.
    pub(super) fn scratch_for(&self, bytes: usize) -> Option<usize> {
        let size = self.member.size as usize;
        let parts = Parts::of(bytes / FLOAT, size);
        let wanted = (parts.part * (size - 1) * FLOAT).min(SCRATCH_MAX);
        let there = self.scratch.borrow().as_ref().map_or(0, |scratch| scratch.own.bytes());
        (wanted > there).then_some(wanted)
    }

    /// Uses scratch from now on; what used the one before has ended.
    pub(super) fn set_scratch(&self, scratch: Region) {
        *self.scratch.borrow_mut() = Some(Arc::new(scratch));
    }

    /// Sums arrays in that memory from now on.
    pub(super) fn add(&self, region: Region) {
        self.regions.borrow_mut().push(Arc::new(region));
    }

    /// Whether there is memory in which arrays are summed.
    pub(super) fn has_memory(&self) -> bool {
        !self.regions.borrow().is_empty()
    }

    /// Forgets the memory that was added last.
    pub(super) fn take_back(&self) {
        self.regions.borrow_mut().pop();
    }

    /// Begins to sum `elements` floats at `address` over the ranks, in place. Afterwards all of them are sums, or, when the array has equal
    /// parts and is not to be gathered, those of the part with this rank's number. Nothing where the address is not in memory of all.
    pub(super) fn sum(
        &self,
        operation: &'static str,
        (address, elements): (u64, usize),
        gather: bool,
    ) -> Result<Option<LinkWork>, LinkError> {
        let bytes = elements * FLOAT;
        let found = |region: &Arc<Region>| Some((Arc::clone(region), region.find(address, bytes)?));
        let Some((region, start)) = self.regions.borrow().iter().find_map(found) else { return Ok(None) };
        let Some(scratch) = self.scratch.borrow().clone() else { return Ok(None) };
        let beside = &self.member.beside;
        if elements == 0 || beside.records()? {
            return Ok(None);
        }
        let size = self.member.size as usize;
        let parts = if gather { Parts::of(elements, size) } else { Parts { elements, part: elements / size } };
        let room = scratch.own.bytes() / FLOAT / (size - 1) / PACK * PACK;
        let made = beside.after_current()?;
        for from in (0..parts.part).step_by(room) {
            self.piece((&region, start), &scratch, |rank| parts.piece(rank, from, room), room, gather)?;
        }
        let done = beside.moment()?;
        Ok(Some(LinkWork { operation, member: Arc::clone(&self.member), made, done }))
    }

    /// One piece of every part, as much as the scratch takes.
    fn piece(
        &self,
        (region, start): (&Region, usize),
        scratch: &Region,
        piece: impl Fn(usize) -> (usize, usize),
        room: usize,
        gather: bool,
    ) -> Result<(), LinkError> {
        let Member { beside, turns, rank, size, .. } = &*self.member;
        let (rank, size) = (*rank as usize, *size as usize);
        let turn = turns.next();
        // Another one first for each: nobody's memory is written by two at once.
        let others = || (1..size).map(|distance| (rank + distance) % size);
        let place = |at: usize| start + at * FLOAT;
        let own = |at: usize| region.own.at() + place(at) as u64;
        for other in others() {
            let (at, count) = piece(other);
            // The others' values lie in the order of the ranks, without the reader's own.
            let slot = if rank < other { rank } else { rank - 1 };
            if let Some(to) = scratch.of(other, slot * room * FLOAT).filter(|_| count > 0) {
                // SAFETY: the piece lies in the region, and has at most `room` elements; both stay until this engine has come to rest.
                unsafe { beside.copy(own(at), to, count * FLOAT) }?;
            }
            // SAFETY: the words stay as long as the engine.
            unsafe { beside.tell(turns.word(other, rank, Told::Part), turn) }?;
        }
        for other in others() {
            // SAFETY: as above.
            unsafe { beside.hear(turns.word(rank, other, Told::Part), turn) }?;
        }
        let (at, count) = piece(rank);
        // SAFETY: the piece lies in the region, and the others' values of it in the scratch.
        unsafe { beside.sum(own(at), scratch.own.at(), (count, room), (rank as u32, size as u32)) }?;
        for other in others() {
            if let Some(to) = region.of(other, place(at)).filter(|_| gather && count > 0) {
                // SAFETY: the piece lies in the other's region, too, which is as long.
                unsafe { beside.copy(own(at), to, count * FLOAT) }?;
            }
            // SAFETY: as above.
            unsafe { beside.tell(turns.word(other, rank, Told::Sums), turn) }?;
        }
        for other in others() {
            // SAFETY: as above.
            unsafe { beside.hear(turns.word(rank, other, Told::Sums), turn) }?;
        }
        Ok(())
    }

    /// Waits until the device has done what it was given, at most `timeout`; whether it has. After a cut it need not wait for others.
    #[expect(clippy::disallowed_methods, reason = "a device tells no descriptor that could be waited for")]
    pub(super) fn rest(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while !self.member.beside.is_idle() {
            if Instant::now() >= deadline {
                return false;
            }
            if self.member.turns.is_cut() {
                // A rank that goes on may have written over it.
                self.member.turns.release();
            }
            thread::sleep(PAUSE);
        }
        true
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.rest(Duration::ZERO) {
            return;
        }
        self.member.turns.cut();
        if !self.rest(REST_MAX) {
            tracing::warn!("a device does not come to rest; the memory that it sums in is not given back");
            std::mem::forget((self.regions.take(), self.scratch.take(), Arc::clone(&self.member)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_element_once() {
        for (elements, size, room) in [(1, 2, 4), (7, 3, 4), (1000, 4, 64), (1021, 8, 16), (12, 3, 100), (5, 4, 4)] {
            let parts = Parts::of(elements, size);
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
