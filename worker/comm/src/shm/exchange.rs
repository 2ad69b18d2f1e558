//! The collectives of a shared-memory group, chunk by chunk.
//!
//! Among two ranks, or when little is to be added, every rank writes all it has and adds up all. Else every rank writes the
//! shares of the others into its area, adds up its own share of all areas in the order of the ranks, puts the result where
//! its own share would have been, and copies the others' results. While one chunk is added up, the next one is written.
//!
//! **Invariant:** a rank writes to its area of a slot only when all ranks are done with the last chunk that used the slot.

use super::{
    fault::{CollectiveCall, Fault},
    layout::{SLOTS, Word},
    reducible::{self, Reducible},
    region::SharedRegion,
    ring::Ring,
};
use crate::Reduce;
use std::{fmt, ops::Range, sync::Arc, time::Instant};

/// Numbers added up at a time: they stay in the first-level cache from the first rank's to the last one's.
const BLOCK: usize = 1024;

const ALL_REDUCE: u64 = 1;
const BROADCAST: u64 = 2;
const BARRIER: u64 = 3;

impl CollectiveCall {
    fn all_reduce<T: Reducible>(reduce: Reduce, kind: u8, count: usize) -> Self {
        let what = ALL_REDUCE | (reduce as u64) << 8 | u64::from(kind) << 16;
        Self { what, bytes: (count * size_of::<T>()) as u64, at: 0 }
    }
}

impl fmt::Display for CollectiveCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes;
        match self.what & 0xff {
            ALL_REDUCE => {
                let reduce = ["sum", "min", "max"].get((self.what >> 8 & 0xff) as usize).unwrap_or(&"?");
                write!(f, "all_reduce {reduce} of {bytes} bytes of kind {}", self.what >> 16 & 0xff)?;
                if self.at == 0 { Ok(()) } else { write!(f, " in shared tensor {:x}", self.at) }
            }
            BROADCAST => write!(f, "broadcast of {bytes} bytes from rank {}", self.what >> 32),
            BARRIER => write!(f, "barrier"),
            other => write!(f, "unknown collective {other}"),
        }
    }
}

/// This rank's part in the collectives: the ring, and where in it the rank is.
pub(super) struct Exchange {
    pub(super) ring: Arc<Ring>,
    /// Number of the next chunk.
    next: u32,
}

impl Exchange {
    pub(super) fn new(ring: Arc<Ring>) -> Self {
        Self { ring, next: 1 }
    }

    /// Reduces `data` over all ranks. `kind` is only compared.
    pub(super) fn all_reduce<T: Reducible>(
        &mut self,
        data: &mut [T],
        reduce: Reduce,
        kind: u8,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let call = CollectiveCall::all_reduce::<T>(reduce, kind, data.len());
        let per = self.ring.layout.chunk_bytes / size_of::<T>();
        let whole = self.ring.layout.is_whole(size_of_val(data));
        let first = self.next;
        let chunks = data.len().div_ceil(per).max(1);
        let range = |index: usize| index * per..((index + 1) * per).min(data.len());
        let ranges: Vec<Range<usize>> = (0..chunks).map(range).collect();
        for (index, range) in ranges.iter().enumerate() {
            let chunk = first.wrapping_add(index as u32);
            if index == 0 {
                self.send(chunk, &data[range.clone()], whole, call, deadline)?;
            }
            if let Some(following) = ranges.get(index + 1) {
                self.send(chunk.wrapping_add(1), &data[following.clone()], whole, call, deadline)?;
            }
            self.ring.await_all(Word::Arrived, chunk, deadline)?;
            if index == 0 {
                self.ring.compare(chunk, call)?;
            }
            let data = &mut data[range.clone()];
            if whole {
                self.add_all(chunk, data, reduce);
            } else {
                self.add_share(chunk, data, reduce);
                self.ring.publish(Word::Added, chunk);
                self.take_results(chunk, data, deadline)?;
            }
            self.ring.publish(Word::Done, chunk);
        }
        self.next = first.wrapping_add(chunks as u32);
        Ok(())
    }

    /// Reduces numbers in a shared region: each rank adds up its share and writes the result to all ranks' tensors, without further
    /// copies.
    pub(super) fn all_reduce_shared<T: Reducible>(
        &mut self,
        region: &SharedRegion,
        start: usize,
        count: usize,
        reduce: Reduce,
        kind: u8,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let call = CollectiveCall { at: region.mark(start), ..CollectiveCall::all_reduce::<T>(reduce, kind, count) };
        let chunk = self.next;
        self.open(chunk, call, deadline)?;
        self.meet(chunk, call, deadline)?;
        let Ring { layout, rank, size, .. } = &*self.ring;
        let share = layout.share(count, size_of::<T>(), *rank);
        let mut sum = [T::default(); BLOCK];
        for from in share.clone().step_by(BLOCK) {
            let sum = &mut sum[..BLOCK.min(share.end - from)];
            let at = |rank: u32| region.at(rank) + start + from * size_of::<T>();
            add_in_order(sum, *size, |rank| region.segment.view(at(rank), BLOCK.min(share.end - from)), reduce);
            (0..*size).for_each(|rank| region.segment.put(at(rank), sum));
        }
        self.ring.publish(Word::Done, chunk);
        self.ring.await_all(Word::Done, chunk, deadline)?;
        self.next = chunk.wrapping_add(1);
        Ok(())
    }

    /// Waits until this rank's area of the chunk's slot is free.
    fn open(&self, chunk: u32, call: CollectiveCall, deadline: Instant) -> Result<usize, Fault> {
        self.ring.await_all(Word::Done, chunk.wrapping_sub(SLOTS), deadline)?;
        self.ring.announce(chunk, call);
        Ok(self.ring.layout.area(Ring::slot(chunk), self.ring.rank))
    }

    fn send<T: Reducible>(
        &self,
        chunk: u32,
        data: &[T],
        whole: bool,
        call: CollectiveCall,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let area = self.open(chunk, call, deadline)?;
        if whole {
            self.ring.segment.put(area, data);
        } else {
            for peer in self.ring.peers() {
                let share = self.ring.layout.share(data.len(), size_of::<T>(), peer);
                self.ring.segment.put(area + share.start * size_of::<T>(), &data[share]);
            }
        }
        self.ring.publish(Word::Arrived, chunk);
        Ok(())
    }

    fn add_all<T: Reducible>(&self, chunk: u32, data: &mut [T], reduce: Reduce) {
        let Ring { segment, layout, rank, size, .. } = &*self.ring;
        let count = data.len();
        let part = |rank: u32| segment.view::<T>(layout.area(Ring::slot(chunk), rank), count);
        match (*size, *rank) {
            (1, _) => {}
            // This rank's own numbers are still in `data`.
            (2, 0) => reducible::fold(reduce, data, part(1)),
            (2, _) => reducible::fold_under(reduce, data, part(0)),
            _ => add_in_order(data, *size, part, reduce),
        }
    }

    fn add_share<T: Reducible>(&self, chunk: u32, data: &mut [T], reduce: Reduce) {
        let Ring { segment, layout, rank, size, .. } = &*self.ring;
        let slot = Ring::slot(chunk);
        let share = layout.share(data.len(), size_of::<T>(), *rank);
        let mut sum = [T::default(); BLOCK];
        for start in share.clone().step_by(BLOCK) {
            let block = start..(start + BLOCK).min(share.end);
            let at = |rank: u32| layout.area(slot, rank) + start * size_of::<T>();
            let sum = &mut sum[..block.len()];
            let part = |other: u32| {
                if other == *rank { &data[block.clone()] } else { segment.view::<T>(at(other), block.len()) }
            };
            add_in_order(sum, *size, part, reduce);
            segment.put(at(*rank), sum);
            data[block].copy_from_slice(sum);
        }
    }

    fn take_results<T: Reducible>(&self, chunk: u32, data: &mut [T], deadline: Instant) -> Result<(), Fault> {
        let Ring { segment, layout, .. } = &*self.ring;
        for peer in self.ring.peers() {
            self.ring.await_one(peer, Word::Added, chunk, deadline)?;
            let share = layout.share(data.len(), size_of::<T>(), peer);
            let at = layout.area(Ring::slot(chunk), peer) + share.start * size_of::<T>();
            let results = segment.view::<T>(at, share.len());
            data[share].copy_from_slice(results);
        }
        Ok(())
    }

    /// Publishes the arrival at `chunk`, waits for all ranks, and compares their calls.
    fn meet(&self, chunk: u32, call: CollectiveCall, deadline: Instant) -> Result<(), Fault> {
        self.ring.publish(Word::Arrived, chunk);
        self.ring.await_all(Word::Arrived, chunk, deadline)?;
        self.ring.compare(chunk, call)
    }

    /// Copies `root`'s bytes to all ranks.
    pub(super) fn broadcast(&mut self, data: &mut [u8], root: u32, kind: u8, deadline: Instant) -> Result<(), Fault> {
        let what = BROADCAST | u64::from(kind) << 16 | u64::from(root) << 32;
        let call = CollectiveCall { what, bytes: data.len() as u64, at: 0 };
        let per = self.ring.layout.chunk_bytes;
        let first = self.next;
        let chunks = data.len().div_ceil(per).max(1);
        for index in 0..chunks {
            let chunk = first.wrapping_add(index as u32);
            let data = &mut data[index * per..((index + 1) * per).min(call.bytes as usize)];
            let own = self.open(chunk, call, deadline)?;
            if root == self.ring.rank {
                self.ring.segment.put(own, data);
            }
            if index == 0 {
                self.meet(chunk, call, deadline)?;
            } else {
                self.ring.publish(Word::Arrived, chunk);
            }
            if root != self.ring.rank {
                self.ring.await_one(root, Word::Arrived, chunk, deadline)?;
                let at = self.ring.layout.area(Ring::slot(chunk), root);
                data.copy_from_slice(self.ring.segment.view(at, data.len()));
            }
            self.ring.publish(Word::Done, chunk);
        }
        self.next = first.wrapping_add(chunks as u32);
        Ok(())
    }

    pub(super) fn barrier(&mut self, deadline: Instant) -> Result<(), Fault> {
        let chunk = self.next;
        let call = CollectiveCall { what: BARRIER, bytes: 0, at: 0 };
        self.open(chunk, call, deadline)?;
        self.meet(chunk, call, deadline)?;
        self.ring.publish(Word::Done, chunk);
        self.next = chunk.wrapping_add(1);
        Ok(())
    }
}

/// `out = part(0) ∘ part(1) ∘ …`, always in this order, so that rounding is the same on every rank.
fn add_in_order<'a, T: Reducible>(out: &mut [T], size: u32, part: impl Fn(u32) -> &'a [T], reduce: Reduce) {
    reducible::join(reduce, out, part(0), part(1));
    for rank in 2..size {
        reducible::fold(reduce, out, part(rank));
    }
}
