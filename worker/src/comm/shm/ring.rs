//! Waiting for the other ranks and telling them: counters of chunks, a bell per rank, and the ends of a wait.
//!
//! A rank that finds nothing to do spins for a moment, then says that it sleeps and sleeps on its own bell. Whoever counts
//! up looks who sleeps and rings; so does the watcher, and so does `abort`. **Invariant:** a sleeper has said so before it
//! looked for the last time, and a ringer looks for sleepers after it counted: no ring is lost.

use super::{
    fault::{Call, Fault, State},
    layout::{Layout, SLOTS, Word},
    mmap::Segment,
    sys,
};
use crate::comm::Cut;
use std::{
    hint,
    sync::atomic::{AtomicBool, Ordering, fence},
    time::Instant,
};

/// Looks at a counter before sleeping, when every rank can have a core of its own; a few microseconds. More would keep a
/// peer on the same core from working.
const SPINS: u32 = 200;

/// What the threads of this rank share.
#[derive(Debug)]
pub(in crate::comm) struct Ring {
    pub(super) segment: Segment,
    pub(super) layout: Layout,
    pub(super) rank: u32,
    pub(super) size: u32,
    /// This rank wants no more.
    aborted: AtomicBool,
    /// Ranks whose process is gone.
    gone: Box<[AtomicBool]>,
    spins: u32,
}

impl Ring {
    pub(super) fn new(segment: Segment, (rank, size): (u32, u32), cores: usize) -> Self {
        let gone = (0..size).map(|_| AtomicBool::new(false)).collect();
        let spins = if cores >= size as usize { SPINS } else { 0 };
        let layout = Layout::of(size);
        Self { segment, layout, rank, size, aborted: AtomicBool::new(false), gone, spins }
    }

    /// The slot chunk number `chunk` uses.
    pub(super) fn slot(chunk: u32) -> u32 {
        chunk % SLOTS
    }

    /// The other ranks.
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

    /// Says that this rank's counter is at `chunk`: what was written before is seen by whoever sees the count.
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

    /// What keeps a wait for `awaited` from ever ending well.
    fn fault(&self, awaited: u32) -> Option<Fault> {
        if self.is_aborted() {
            return Some(Fault::Aborted);
        }
        self.peers().find_map(|peer| {
            // Whether it is gone first: it may say that it leaves between the two looks, but not after it is gone.
            let gone = self.gone[peer as usize].load(Ordering::Acquire);
            match State::read(self.word(peer, Word::State).load(Ordering::Acquire)) {
                State::Member => gone.then_some(Fault::Died { peer }),
                State::Left => (peer == awaited).then_some(Fault::Left { peer }),
                State::Aborted => Some(Fault::PeerAborted { peer }),
                State::GaveUp(about) if about == self.rank => Some(Fault::PeerAborted { peer }),
                State::GaveUp(about) => Some(Fault::GivenUp { peer: about }),
            }
        })
    }

    /// Tells the other ranks how this one stands to the group. The first word stays.
    pub(super) fn say(&self, state: State) {
        let word = self.word(self.rank, Word::State);
        let first = word.compare_exchange(State::Member.word(), state.word(), Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            self.wake_sleepers();
        }
    }

    /// Ends every wait of this rank, now and later, and tells the others.
    pub(super) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.ring(self.rank);
        self.say(State::Aborted);
    }

    /// Whether this rank wants no more.
    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Notes that the process of `peer` is gone.
    pub(super) fn note_gone(&self, peer: u32) {
        self.gone[peer as usize].store(true, Ordering::Release);
        self.ring(self.rank);
    }

    /// Writes down what this rank calls in `chunk`.
    pub(super) fn announce(&self, chunk: u32, call: Call) {
        let [what, bytes, at] = self.layout.call(self.rank, Self::slot(chunk));
        self.segment.word64(what).store(call.what, Ordering::Relaxed);
        self.segment.word64(bytes).store(call.bytes, Ordering::Relaxed);
        self.segment.word64(at).store(call.at, Ordering::Relaxed);
    }

    /// Compares what the others, who all arrived at `chunk`, call there.
    pub(super) fn compare(&self, chunk: u32, mine: Call) -> Result<(), Fault> {
        self.peers().try_for_each(|peer| {
            let [what, bytes, at] = self.layout.call(peer, Self::slot(chunk));
            let word = |at| self.segment.word64(at).load(Ordering::Relaxed);
            let theirs = Call { what: word(what), bytes: word(bytes), at: word(at) };
            if theirs == mine { Ok(()) } else { Err(Fault::OutOfStep { peer, mine, theirs }) }
        })
    }
}

impl Cut for Ring {
    fn cut(&self) {
        self.abort();
    }
}
