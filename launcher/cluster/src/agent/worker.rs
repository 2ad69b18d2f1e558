//! What is known of one worker process, from its start to its end, through all rounds it has a seat in.

use super::{
    body::Body,
    cause::Evidence,
    hang::Pulse,
    seats::{Candidate, Slot},
};
use enn_common::id::{Rank, Round, WorkerId};
use enn_process::Exit;
use std::time::{Duration, Instant};

/// Longest time from fork to Hello: loading libtorch from a cold network disk.
const HELLO_WAIT_MAX: Duration = Duration::from_secs(180);
/// Longest time from Hello, or from a new seat, to Ready: mapping data, making a device context, meeting the others. A spare has
/// as long to become warm.
const READY_WAIT_MAX: Duration = Duration::from_secs(900);
/// Warnings of one worker that are passed on.
pub(super) const WARNINGS_MAX: u32 = 100;

/// Where a worker is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Place {
    /// It stands by.
    Spare,
    /// It has a seat in the present round, or in the one that is just over.
    Seat(Seat),
    /// It lost the seat that it had in this round, and is to end.
    Dismissed(Round, Rank),
}

/// A seat in a round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seat {
    pub(super) rank: Rank,
    /// When it was given.
    pub(super) since: Instant,
    /// It has the state of training, kept from rounds before or made in this one.
    pub(super) stateful: bool,
    /// When the worker could do its first step.
    pub(super) ready: Option<Instant>,
    /// It has left the round, after so many whole steps, and waits.
    pub(super) halted: Option<u64>,
    /// Of the state it has no more than this share of so many.
    pub(super) share: Option<(u32, u32)>,
}

impl Seat {
    /// A seat given now.
    pub(super) fn new(rank: Rank, stateful: bool, since: Instant) -> Self {
        Self { rank, since, stateful, ready: None, halted: None, share: None }
    }
}

/// One worker process.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) id: WorkerId,
    pub(super) child: Body,
    /// Its node, and the index there: that of its seat, or the one it is prepared for.
    pub(super) slot: Slot,
    pub(super) place: Place,
    pub(super) started: Instant,
    pub(super) joined: Option<Instant>,
    /// It has loaded all that it can without a seat.
    pub(super) warm: bool,
    /// It entered a round, this one or one before.
    pub(super) entered: bool,
    /// Said Done, then: whether because it was asked to stop.
    pub(super) done: Option<(Instant, bool)>,
    /// What it said was wrong, or what is wrong with it.
    pub(super) words: Option<String>,
    /// It is not needed any more, and was killed or will be: that is no failure.
    pub(super) dismissed: bool,
    /// It was told to end, and is killed then.
    pub(super) kill_at: Option<Instant>,
    pub(super) killed: bool,
    pub(super) warnings: u32,
}

impl Worker {
    pub(super) fn new(id: WorkerId, child: Body, (slot, place): (Slot, Place), now: Instant) -> Self {
        Self {
            id,
            child,
            slot,
            place,
            started: now,
            joined: None,
            warm: false,
            entered: false,
            done: None,
            words: None,
            dismissed: false,
            kill_at: None,
            killed: false,
            warnings: 0,
        }
    }

    pub(super) fn lives(&self) -> bool {
        self.child.exit().is_none()
    }

    pub(super) fn seat(&self) -> Option<&Seat> {
        match &self.place {
            Place::Seat(seat) => Some(seat),
            Place::Spare | Place::Dismissed(..) => None,
        }
    }

    pub(super) fn seat_mut(&mut self) -> Option<&mut Seat> {
        match &mut self.place {
            Place::Seat(seat) => Some(seat),
            Place::Spare | Place::Dismissed(..) => None,
        }
    }

    /// Whether it has left its round whole and can go on in the next.
    pub(super) fn stands(&self) -> bool {
        self.lives() && self.kill_at.is_none() && self.seat().is_some_and(|seat| seat.halted.is_some())
    }

    /// The same, with the state of training.
    pub(super) fn keeps_state(&self) -> bool {
        self.stands() && self.seat().is_some_and(|seat| seat.stateful)
    }

    pub(super) fn rank(&self) -> Option<Rank> {
        self.seat().map(|seat| seat.rank)
    }

    pub(super) fn is_warm(&self) -> bool {
        self.warm && self.place == Place::Spare
    }

    pub(super) fn candidate(&self) -> Candidate {
        Candidate { worker: self.id, slot: self.slot }
    }

    /// What there is to judge it by, as the holder of its seat.
    pub(super) fn evidence(&self, rank: Rank) -> Evidence {
        let (phase, step) = self.child.place();
        let silent_death = self.words.is_none() && self.child.exit() != Some(Exit::Code(0));
        let stderr = if silent_death { self.child.stderr_tail() } else { String::new() };
        let words = self.words.clone();
        let exit = self.child.exit();
        let done = self.done.is_some();
        let intent = self.child.intent();
        Evidence { rank, words, exit, done, phase, step, intent, stderr }
    }

    /// Its control page, at `now_ns` of CLOCK_MONOTONIC. Readiness is a sign of progress too.
    pub(super) fn pulse(&self, now: Instant, now_ns: u64) -> Option<Pulse> {
        let ready = self.seat()?.ready?;
        let (phase, step) = self.child.place();
        let silent = self.child.silent(now_ns);
        let silent = silent.min(now.saturating_duration_since(ready));
        Some(Pulse { worker: self.id, phase, step, silent })
    }

    /// When the worker must have taken its next step towards its work, and what it is then accused of; an empty accusation means
    /// that it did its work but does not end.
    pub(super) fn deadline(&self, grace: Duration) -> Option<(Instant, String)> {
        if !self.lives() || self.dismissed || self.kill_at.is_some() {
            return None;
        }
        let late = |what: &str, wait: Duration, after: &str| format!("{what} within {} s of {after}", wait.as_secs());
        if let Some((at, _)) = self.done {
            return Some((at + grace, String::new()));
        }
        let Some(joined) = self.joined else {
            return Some((self.started + HELLO_WAIT_MAX, late("did not connect", HELLO_WAIT_MAX, "its start")));
        };
        match &self.place {
            Place::Spare if self.warm => None,
            Place::Spare => Some((joined + READY_WAIT_MAX, late("was not warm", READY_WAIT_MAX, "its connection"))),
            Place::Seat(Seat { ready: None, halted: None, since, .. }) => {
                let from = joined.max(*since);
                Some((from + READY_WAIT_MAX, late("was not ready", READY_WAIT_MAX, "its connection")))
            }
            Place::Seat(_) | Place::Dismissed(..) => None,
        }
    }
}
