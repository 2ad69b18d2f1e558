//! Synchronisation of the ranks: counters of chunks, a bell (futex) per rank, and the conditions that end a wait.
//!
//! A waiting rank spins briefly, then marks itself asleep and sleeps on its own bell. A rank that advances a counter
//! rings the bells of sleepers; so do the watcher and `abort`. **Invariant:** a sleeper marks itself before its last check,
//! and a ringer looks for sleepers after it advanced its counter: no wake-up is lost.

use super::{
    fault::{CollectiveCall, Fault, RankState},
    layout::{SLOTS, SegmentLayout, Word},
    mmap::SharedSegment,
    sys,
};
use crate::AbortHandle;
use std::{
    hint,
    sync::atomic::{AtomicBool, Ordering, fence},
    time::Instant,
};

/// Checks of a counter before sleeping, if every rank can have a core of its own; a few microseconds. More would keep a
/// peer on the same core from working.
const SPINS: u32 = 200;

/// State that the threads of this rank share.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(super) segment: SharedSegment,
    pub(super) layout: SegmentLayout,
    pub(super) rank: u32,
    pub(super) size: u32,
    /// Whether this rank has aborted the group.
    aborted: AtomicBool,
    /// Ranks whose process is gone.
    gone: Box<[AtomicBool]>,
    spins: u32,
}

impl Ring {
    pub(super) fn new(segment: SharedSegment, rank: u32, size: u32, cores: usize) -> Self {
        let gone = (0..size).map(|_| AtomicBool::new(false)).collect();
        let spins = if cores >= size as usize { SPINS } else { 0 };
        let layout = SegmentLayout::of(size);
        Self { segment, layout, rank, size, aborted: AtomicBool::new(false), gone, spins }
    }

    pub(super) fn slot(chunk: u32) -> u32 {
        chunk % SLOTS
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = u32> + use<> {
        let own = self.rank;
        (0..self.size).filter(move |peer| *peer != own)
    }

    fn word(&self, rank: u32, word: Word) -> &std::sync::atomic::AtomicU32 {
        self.segment.word32(self.layout.word(rank, word))
    }

    /// Whether `rank`'s counter is at `chunk` or beyond; counters may wrap.
    fn reached(&self, rank: u32, counter: Word, chunk: u32) -> bool {
        self.word(rank, counter).load(Ordering::Acquire).wrapping_sub(chunk).cast_signed() >= 0
    }

    /// Publishes this rank's counter: earlier writes are visible to every rank that sees the new count.
    pub(super) fn publish(&self, counter: Word, chunk: u32) {
        self.word(self.rank, counter).store(chunk, Ordering::Release);
        self.wake_sleepers();
    }

    fn wake_sleepers(&self) {
        fence(Ordering::SeqCst);
        for peer in self.peers() {
            let asleep = self.word(peer, Word::Asleep);
            if asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::AcqRel) != 0 {
                self.ring(peer);
            }
        }
    }

    fn ring(&self, rank: u32) {
        let bell = self.word(rank, Word::Bell);
        bell.fetch_add(1, Ordering::Release);
        sys::futex_wake(bell);
    }

    /// Waits until every other rank's counter is at `chunk`.
    pub(super) fn await_all(&self, counter: Word, chunk: u32, deadline: Instant) -> Result<(), Fault> {
        self.peers().try_for_each(|peer| self.await_one(peer, counter, chunk, deadline))
    }

    /// Waits until `peer`'s counter is at `chunk`.
    pub(super) fn await_one(&self, peer: u32, counter: Word, chunk: u32, deadline: Instant) -> Result<(), Fault> {
        if self.reached(peer, counter, chunk) {
            return Ok(());
        }
        for _ in 0..self.spins {
            hint::spin_loop();
            if self.reached(peer, counter, chunk) {
                return Ok(());
            }
        }
        let bell = self.word(self.rank, Word::Bell);
        let asleep = self.word(self.rank, Word::Asleep);
        loop {
            let rung = bell.load(Ordering::Acquire);
            asleep.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            // The fault first: a peer that counted and then left or died did its part.
            let fault = self.fault(peer);
            if self.reached(peer, counter, chunk) {
                asleep.store(0, Ordering::Relaxed);
                return Ok(());
            }
            if let Some(fault) = fault {
                return Err(fault);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Fault::Silent { peer });
            }
            sys::futex_wait(bell, rung, left);
        }
    }

    /// Returns the fault because of which a wait for `awaited` cannot succeed, if there is one.
    fn fault(&self, awaited: u32) -> Option<Fault> {
        if self.is_aborted() {
            return Some(Fault::Aborted);
        }
        self.peers().find_map(|peer| {
            // `gone` is read first: a peer may announce that it leaves between the two reads, but not after it is gone.
            let gone = self.gone[peer as usize].load(Ordering::Acquire);
            match RankState::read(self.word(peer, Word::RankState).load(Ordering::Acquire)) {
                RankState::Member => gone.then_some(Fault::Died { peer }),
                RankState::Left => (peer == awaited).then_some(Fault::Left { peer }),
                RankState::Aborted => Some(Fault::PeerAborted { peer }),
                RankState::GaveUp(about) if about == self.rank => Some(Fault::PeerAborted { peer }),
                RankState::GaveUp(about) => Some(Fault::GivenUp { peer: about }),
            }
        })
    }

    /// Publishes this rank's state. Only the first change has an effect.
    pub(super) fn say(&self, state: RankState) {
        let word = self.word(self.rank, Word::RankState);
        let first = word.compare_exchange(RankState::Member.word(), state.word(), Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            self.wake_sleepers();
        }
    }

    /// Whether this rank has aborted the group.
    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Notes that the process of `peer` is gone.
    pub(super) fn note_gone(&self, peer: u32) {
        self.gone[peer as usize].store(true, Ordering::Release);
        self.ring(self.rank);
    }

    /// Publishes the call of this rank in `chunk`.
    pub(super) fn announce(&self, chunk: u32, call: CollectiveCall) {
        let [what, bytes, at] = self.layout.call(self.rank, Self::slot(chunk));
        self.segment.word64(what).store(call.what, Ordering::Relaxed);
        self.segment.word64(bytes).store(call.bytes, Ordering::Relaxed);
        self.segment.word64(at).store(call.at, Ordering::Relaxed);
    }

    /// Compares this rank's call with those of the others, which have all arrived at `chunk`.
    pub(super) fn compare(&self, chunk: u32, mine: CollectiveCall) -> Result<(), Fault> {
        self.peers().try_for_each(|peer| {
            let [what, bytes, at] = self.layout.call(peer, Self::slot(chunk));
            let word = |at| self.segment.word64(at).load(Ordering::Relaxed);
            let theirs = CollectiveCall { what: word(what), bytes: word(bytes), at: word(at) };
            if theirs == mine { Ok(()) } else { Err(Fault::OutOfStep { peer, mine, theirs }) }
        })
    }
}

impl AbortHandle for Ring {
    /// Ends every wait of this rank, now and later, and publishes the abort.
    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.ring(self.rank);
        self.say(RankState::Aborted);
    }
}
