//! The collectives themselves: what is copied to whom, and who waits for what.
//!
//! All are turns. In a turn every rank sends each other one something, does something with what came, and answers. In a sum every rank
//! sends each other one its values of that one's part, adds up its own part, and answers with the sums. Who begins another turn has heard
//! from all that they have read what lay in their scratch: one scratch is enough.
//!
//! A cut ends waits before their time, and what lies in the scratch then is anything. It gets into what is summed or gathered, which nobody
//! counts after a cut; norms are no numbers then. What is broadcast goes to ranks that hold the same already, too (a state): it lies where
//! nobody else writes before it is looked for the cut, and is only taken where there was none.
//!
//! **Invariant:** the device is given work in one order, the same on all ranks, and each rank gives before it waits: whatever streams share
//! a queue of the device, somebody can go on.

use super::{
    mmap::Told,
    region::Region,
    work::{LinkWork, Member},
};
use crate::backend::link::{LinkError, Moment, Places, Together};
use crate::comm::Cut;
use std::{
    cell::RefCell,
    collections::VecDeque,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tch::{Kind, Tensor};

/// Pieces begin at multiples of so many bytes: the widest load.
const PACK_BYTES: usize = 16;
/// Bytes of scratch of one rank: the others' values of its part of an array of 100 MB, and behind them what only this rank writes: sums of
/// squares, or what came and whether it is to be taken.
pub(super) const SCRATCH_BYTES: usize = VALUES_BYTES + OWN_BYTES;
const VALUES_BYTES: usize = 96 << 20;
const OWN_BYTES: usize = 16 << 20;
/// Most bytes that are taken at once.
const TAKEN_BYTES_MAX: usize = OWN_BYTES - PACK_BYTES;
/// Values of which there is one sum of squares, at least.
const SQUARED: usize = 512;
/// Smaller arrays that lie apart are sent to all whole: a turn more takes as long as sending so much.
const PARTS_BYTES_MIN: usize = 1 << 20;
/// Pause between looks at a device that is to come to rest.
const PAUSE: Duration = Duration::from_millis(1);

/// How long a device whose waits have ended may take to come to rest.
const REST_MAX: Duration = Duration::from_secs(2);

/// What this rank's device does collectives with.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) member: Arc<Member>,
    /// Each with the norms of its parts.
    regions: RefCell<Vec<(Region, Tensor)>>,
    scratch: Arc<Region>,
    /// Tensors that the device may still read and write, in the order of their moments.
    kept: RefCell<VecDeque<(Arc<Moment>, Tensor)>>,
}

/// Which part of an array every rank gets, and where in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parts {
    elements: usize,
    part: usize,
}

impl Parts {
    /// An array in as many parts as there are ranks, the last of which may be shorter; they begin at multiples of `pack`.
    fn of(elements: usize, size: usize, pack: usize) -> Self {
        Self { elements, part: elements.div_ceil(size).next_multiple_of(pack) }
    }

    /// First element, and number of elements, of what `rank` gets of at most `room` elements from the one `from` of each part on.
    fn piece(self, rank: usize, from: usize, room: usize) -> (usize, usize) {
        let begin = (rank * self.part + from).min(self.elements);
        let end = (rank * self.part + (from + room).min(self.part)).min(self.elements);
        (begin, end - begin)
    }
}

/// Where numbers lie on this rank's device.
#[derive(Debug, Clone, Copy)]
struct Array {
    at: u64,
    elements: usize,
    kind: Kind,
}

impl Array {
    fn of(tensor: &Tensor) -> Self {
        Self { at: tensor.data_ptr().addr() as u64, elements: tensor.numel(), kind: tensor.kind() }
    }

    fn element_bytes(self) -> usize {
        self.kind.elt_size_in_bytes()
    }

    fn bytes(self) -> usize {
        self.elements * self.element_bytes()
    }

    /// Address of an element.
    fn place(self, element: usize) -> u64 {
        self.at + (element * self.element_bytes()) as u64
    }
}

/// From where to where, and how many bytes.
type Copy = (u64, u64, usize);

const NOTHING: [Option<Copy>; 2] = [None; 2];

/// Bytes of the norm of a part.
const NORM_BYTES: usize = size_of::<f32>();

/// Whether the sums of an array in memory of all are measured.
fn is_measured(array: Array, parts: Parts, together: Together) -> bool {
    let room = parts.part.div_ceil(SQUARED) * size_of::<f64>() <= OWN_BYTES / 2;
    room && array.kind == Kind::Float && together == Together::Sum
}

impl Engine {
    pub(super) fn new(member: Member, scratch: Region) -> Self {
        let regions = RefCell::default();
        let kept = RefCell::default();
        Self { member: Arc::new(member), regions, scratch: Arc::new(scratch), kept }
    }

    /// Sums arrays in that memory, whose parts have those norms, without scratch for the answers from now on.
    pub(super) fn add(&self, region: Region, norms: Tensor) {
        self.regions.borrow_mut().push((region, norms));
    }

    /// The norms of the parts of an array that lies in memory of all, from its beginning on.
    pub(super) fn norms_of(&self, tensor: &Tensor) -> Option<Tensor> {
        let array = Array::of(tensor);
        let regions = self.regions.borrow();
        let (_, norms) = regions.iter().find(|(region, _)| region.find(array.at, array.bytes()) == Some(0))?;
        let parts = Parts::of(array.elements, self.ranks().1, PACK_BYTES / array.element_bytes());
        is_measured(array, parts, Together::Sum).then(|| norms.shallow_clone())
    }

    fn ranks(&self) -> (usize, usize) {
        (self.member.rank as usize, self.member.size as usize)
    }

    /// Bytes of scratch for one other rank.
    fn room(&self) -> usize {
        VALUES_BYTES / (self.ranks().1 - 1) / PACK_BYTES * PACK_BYTES
    }

    /// Where in the scratch of `reader` what `writer` sends lies: by rank, without the reader's own.
    fn slot(&self, reader: usize, writer: usize) -> usize {
        self.room() * if writer < reader { writer } else { writer - 1 }
    }

    /// Where this rank sends to `other`.
    fn sent_to(&self, other: usize) -> Option<u64> {
        self.scratch.of(other, self.slot(other, self.ranks().0))
    }

    /// Where lies what `other` sent.
    fn came_from(&self, other: usize) -> u64 {
        self.scratch.own.at() + self.slot(self.ranks().0, other) as u64
    }

    /// Brings the tensor's values together over the ranks, in place.
    pub(super) fn all_reduce(&self, tensor: &Tensor, together: Together) -> Result<LinkWork, LinkError> {
        let array = Array::of(tensor);
        let regions = self.regions.borrow();
        let found = regions.iter().find_map(|(region, _)| Some((region, region.find(array.at, array.bytes())?)));
        let parts = Parts::of(array.elements, self.ranks().1, PACK_BYTES / array.element_bytes());
        self.member.beside.make_ready((array.kind, together))?;
        self.begin("all_reduce", tensor, || {
            if found.is_some() {
                self.parts(array, parts, together, found)
            } else if array.bytes() < PARTS_BYTES_MIN {
                self.everything(array, together)
            } else {
                self.parts(array, parts, together, None)?;
                self.gather(array, parts)
            }
        })
    }

    /// Sums an array of as many equal parts as there are ranks; afterwards the part with this rank's number holds the sums.
    pub(super) fn reduce_scatter(&self, tensor: &Tensor) -> Result<LinkWork, LinkError> {
        let array = Array::of(tensor);
        self.member.beside.make_ready((array.kind, Together::Sum))?;
        self.begin("reduce_scatter", tensor, || self.parts(array, self.equal(array), Together::Sum, None))
    }

    /// Begins to give every rank what `root` has.
    pub(super) fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<LinkWork, LinkError> {
        let array = Array::of(tensor);
        let (rank, _) = self.ranks();
        self.begin("broadcast", tensor, || {
            let room = self.room().min(TAKEN_BYTES_MAX);
            for from in (0..array.bytes()).step_by(room) {
                let bytes = room.min(array.bytes() - from);
                let place = array.at + from as u64;
                let sends = |other| Some((place, self.sent_to(other)?, bytes)).filter(|_| rank == root);
                let takes = || match rank == root {
                    true => Ok(()),
                    false => self.take((self.came_from(root), place, bytes)),
                };
                self.turn(sends, takes, |_| NOTHING)?;
            }
            Ok(())
        })
    }

    /// Begins to give every rank all parts of an array of as many equal parts as there are ranks, of which each has its own.
    pub(super) fn all_gather(&self, tensor: &Tensor) -> Result<LinkWork, LinkError> {
        let array = Array::of(tensor);
        self.begin("all_gather", tensor, || self.gather(array, self.equal(array)))
    }

    fn equal(&self, array: Array) -> Parts {
        Parts { elements: array.elements, part: array.elements / self.ranks().1 }
    }

    /// Every rank sends all others everything, and does the same with it.
    fn everything(&self, array: Array, together: Together) -> Result<(), LinkError> {
        let room = self.room() / array.element_bytes();
        for from in (0..array.elements).step_by(room) {
            let count = room.min(array.elements - from);
            let place = array.place(from);
            let sends = |other| Some((place, self.sent_to(other)?, count * array.element_bytes()));
            let takes = || self.bring_together((place, None), (count, room), (array.kind, together)).map(|_none| ());
            self.turn(sends, takes, |_| NOTHING)?;
        }
        Ok(())
    }

    /// Every rank brings its part together; where the array lies in memory of all, it gives it to the others, and the norm of it.
    fn parts(
        &self,
        array: Array,
        parts: Parts,
        together: Together,
        shared: Option<(&Region, usize)>,
    ) -> Result<(), LinkError> {
        let rank = self.ranks().0;
        let width = array.element_bytes();
        let room = self.room() / width;
        let measured = shared.filter(|_| is_measured(array, parts, together));
        let mut written = 0;
        for from in (0..parts.part).step_by(room) {
            let (own, count) = parts.piece(rank, from, room);
            let sends = |other| {
                let (at, count) = parts.piece(other, from, room);
                Some((array.place(at), self.sent_to(other)?, count * width))
            };
            let last = from + room >= parts.part;
            let norm = measured.filter(|_| last).map(|(region, _)| (region, region.number(rank)));
            let answers = |other| {
                let sums = shared.and_then(|(region, start)| {
                    Some((array.place(own), region.of(other, start + own * width)?, count * width))
                });
                let norm = norm
                    .and_then(|(region, at)| Some((region.own.at() + at as u64, region.of(other, at)?, NORM_BYTES)));
                [sums, norm]
            };
            let takes = || {
                let free = measured.map(|_| self.own() + (written * size_of::<f64>()) as u64);
                written += self.bring_together((array.place(own), free), (count, room), (array.kind, together))?;
                let Some((region, at)) = norm else { return Ok(()) };
                let Member { beside, turns, .. } = &*self.member;
                // SAFETY: the squares lie in this rank's scratch, the number in its region, and the word stays as long as the engine.
                unsafe { beside.norm((self.own(), written), region.own.at() + at as u64, turns.cut_word()) }
            };
            self.turn(sends, takes, answers)?;
        }
        Ok(())
    }

    /// Every rank sends all others its part.
    fn gather(&self, array: Array, parts: Parts) -> Result<(), LinkError> {
        let room = self.room() / array.element_bytes();
        for from in (0..parts.part).step_by(room) {
            let part = |of: usize| {
                let (at, count) = parts.piece(of, from, room);
                (array.place(at), count * array.element_bytes())
            };
            let sends = |other| {
                let (place, bytes) = part(self.ranks().0);
                Some((place, self.sent_to(other)?, bytes))
            };
            let takes = |other| {
                let (place, bytes) = part(other);
                self.copy((self.came_from(other), place, bytes))
            };
            self.turn(sends, || self.others().try_for_each(takes), |_| NOTHING)?;
        }
        Ok(())
    }

    /// Where this rank's scratch is its own.
    fn own(&self) -> u64 {
        self.scratch.own.at() + VALUES_BYTES as u64
    }

    /// What came of all ranks, at the place of the own values; how many sums of squares there are now, if there is a place for them.
    fn bring_together(
        &self,
        (own, squares): (u64, Option<u64>),
        (elements, stride): (usize, usize),
        how: (Kind, Together),
    ) -> Result<usize, LinkError> {
        let Member { beside, rank, size, .. } = &*self.member;
        let places = Places { own, parts: self.scratch.own.at(), squares };
        // SAFETY: the values are the tensor's, which is kept, and the others' and the squares lie in the scratch.
        unsafe { beside.sum(places, (elements, stride), (*rank, *size), how) }
    }

    /// Lets the device do those turns behind what computes `tensor`, which stays until they are done.
    fn begin(
        &self,
        operation: &'static str,
        tensor: &Tensor,
        turns: impl FnOnce() -> Result<(), LinkError>,
    ) -> Result<LinkWork, LinkError> {
        let beside = &self.member.beside;
        let mut kept = self.kept.borrow_mut();
        while kept.front().map_or(Ok(false), |(done, _)| done.is_past())? {
            kept.pop_front();
        }
        let made = beside.after_current()?;
        let given = turns();
        let done = Arc::new(beside.moment()?);
        kept.push_back((Arc::clone(&done), tensor.shallow_clone()));
        given.map(|()| LinkWork { operation, member: Arc::clone(&self.member), made, done })
    }

    /// The other ranks. Another one first for each: nobody's memory is written by two at once.
    fn others(&self) -> impl Iterator<Item = usize> {
        let (rank, size) = self.ranks();
        (1..size).map(move |distance| (rank + distance) % size)
    }

    /// One turn: what goes to each other rank, what is done when theirs is there, and what goes back.
    fn turn(
        &self,
        sends: impl Fn(usize) -> Option<Copy>,
        takes: impl FnOnce() -> Result<(), LinkError>,
        answers: impl Fn(usize) -> [Option<Copy>; 2],
    ) -> Result<(), LinkError> {
        let turn = self.member.turns.next();
        self.give(turn, Told::Part, |other| [sends(other), None])?;
        takes()?;
        self.give(turn, Told::Sums, answers)
    }

    /// Gives every other rank something and its word, and waits for theirs.
    fn give(&self, turn: u32, told: Told, what: impl Fn(usize) -> [Option<Copy>; 2]) -> Result<(), LinkError> {
        let Member { beside, turns, .. } = &*self.member;
        let rank = self.ranks().0;
        for other in self.others() {
            what(other).into_iter().flatten().try_for_each(|copy| self.copy(copy))?;
            // SAFETY: the words stay as long as the engine.
            unsafe { beside.tell(turns.word(other, rank, told), turn) }?;
        }
        for other in self.others() {
            // SAFETY: as above.
            unsafe { beside.hear(turns.word(rank, other, told), turn) }?;
        }
        Ok(())
    }

    fn copy(&self, (from, to, bytes): Copy) -> Result<(), LinkError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both lie in a tensor that is kept, in the scratch, at most a slot long, in a region, which is as long on every rank, or
        // are a turn's word; scratch, regions and words stay until this engine has come to rest.
        unsafe { self.member.beside.copy(from, to, bytes) }
    }

    /// What came, to where it belongs, unless a rank has cut the group by the time that all of it lies where nobody else writes.
    fn take(&self, (from, to, bytes): Copy) -> Result<(), LinkError> {
        let Member { beside, turns, .. } = &*self.member;
        let own = self.own();
        let seen = self.own() + TAKEN_BYTES_MAX as u64;
        self.copy((from, own, bytes))?;
        self.copy((turns.cut_word(), seen, size_of::<u32>()))?;
        // SAFETY: as in `copy`.
        unsafe { beside.take(own, to, bytes, seen) }
    }

    /// Waits until the device has done what it was given, at most `timeout`; whether it has. After a cut it need not wait for others.
    #[expect(clippy::disallowed_methods, reason = "a device tells no descriptor that could be waited for")]
    pub(super) fn rest(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while !self.member.beside.is_idle() {
            if Instant::now() >= deadline {
                return false;
            }
            if self.member.turns.cut_by().is_some() {
                // Again and again: a rank that goes on may have written over it.
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
            let parts = Parts::of(elements, size, 4);
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
