//! What is known of a round: its workers, what each said, and when something must have happened.

use super::{
    cause::{self, Evidence},
    child::Child,
    spec::Signal,
};
use crate::process::Exit;
use enn_common::id::{Rank, Round};
use std::time::{Duration, Instant};

/// Longest time from fork to Hello: loading libtorch from a cold network disk.
const HELLO_WAIT_MAX: Duration = Duration::from_secs(180);
/// Longest time from Hello to Ready: mapping data, making a device context, meeting the others.
const READY_WAIT_MAX: Duration = Duration::from_secs(900);
/// Time between TERM and KILL for the workers of a failed round. Nothing of theirs is needed.
const FAILED_GRACE: Duration = Duration::from_millis(500);
/// Warnings of one worker that are passed on.
pub(super) const WARNINGS_MAX: u32 = 100;

/// What the round as a whole is doing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mode {
    /// Working.
    Running,
    /// Asked to finish, checkpoint and end by then.
    Stopping(Instant),
    /// A worker failed; the others get TERM, and KILL then.
    Failing(Instant),
    /// Everybody got KILL.
    Killed,
}

/// One worker of the round.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) rank: Rank,
    pub(super) child: Child,
    pub(super) started: Instant,
    pub(super) joined: Option<Instant>,
    pub(super) ready: bool,
    /// Said Done, then: whether because it was asked to stop.
    pub(super) done: Option<(Instant, bool)>,
    /// What it said was wrong, or what is wrong with it.
    pub(super) words: Option<String>,
    /// Its end is known and everything it said has been heard.
    pub(super) judged: bool,
    /// It did its work, did not end, and was killed for it: that is no failure.
    pub(super) dismissed: bool,
    pub(super) warnings: u32,
}

impl Worker {
    pub(super) fn new(rank: Rank, child: Child, now: Instant) -> Self {
        Self {
            rank,
            child,
            started: now,
            joined: None,
            ready: false,
            done: None,
            words: None,
            judged: false,
            dismissed: false,
            warnings: 0,
        }
    }

    /// What there is to judge it by.
    pub(super) fn evidence(&self) -> Evidence {
        let (phase, step) = self.child.place();
        let silent_death = self.words.is_none() && self.child.exit() != Some(Exit::Code(0));
        let stderr = if silent_death { self.child.stderr_tail() } else { String::new() };
        let (words, exit) = (self.words.clone(), self.child.exit());
        let (rank, done, intent) = (self.rank, self.done.is_some(), self.child.intent());
        Evidence { rank, words, exit, done, phase, step, intent, stderr }
    }

    /// When the worker must have taken its next step towards its work, and what it is then accused of.
    fn deadline(&self, grace: Duration) -> Option<(Instant, String)> {
        if self.child.exit().is_some() || self.dismissed {
            return None;
        }
        let seconds = |wait: Duration| wait.as_secs();
        match (self.joined, self.ready, self.done) {
            (_, _, Some((at, _))) => Some((at + grace, String::new())),
            (None, ..) => Some((
                self.started + HELLO_WAIT_MAX,
                format!("did not connect within {} s of its start", seconds(HELLO_WAIT_MAX)),
            )),
            (Some(at), false, None) => {
                Some((at + READY_WAIT_MAX, format!("was not ready {} s after it connected", seconds(READY_WAIT_MAX))))
            }
            (Some(_), true, None) => None,
        }
    }
}

/// A round under way.
#[derive(Debug)]
pub(super) struct RoundState {
    pub(super) round: Round,
    pub(super) workers: Vec<Worker>,
    pub(super) mode: Mode,
    /// The first failure.
    pub(super) cause: Option<String>,
    pub(super) stop: Option<Signal>,
    pub(super) grace: Duration,
}

impl RoundState {
    pub(super) fn new(round: Round, grace: Duration) -> Self {
        Self { round, workers: Vec::new(), mode: Mode::Running, cause: None, stop: None, grace }
    }

    /// Every worker ended and was judged.
    pub(super) fn settled(&self) -> bool {
        self.workers.iter().all(|worker| worker.judged)
    }

    /// Any worker was ready.
    pub(super) fn was_ready(&self) -> bool {
        self.workers.iter().any(|worker| worker.ready)
    }

    /// The next moment at which something must be done.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.mode {
            Mode::Running => {
                self.workers.iter().filter_map(|worker| worker.deadline(self.grace)).map(|(at, _)| at).min()
            }
            Mode::Stopping(at) | Mode::Failing(at) => Some(at),
            Mode::Killed => None,
        }
    }

    /// Workers whose deadline passed while the round runs, with the accusation; an empty one means that the worker did its
    /// work but does not end.
    pub(super) fn overdue(&self, now: Instant) -> Vec<(usize, String)> {
        let late = |(index, worker): (usize, &Worker)| {
            let (at, accusation) = worker.deadline(self.grace)?;
            (at <= now).then_some((index, accusation))
        };
        self.workers.iter().enumerate().filter_map(late).collect()
    }

    /// When workers of a round that fails now are killed.
    pub(super) fn failing(now: Instant) -> Mode {
        Mode::Failing(now + FAILED_GRACE)
    }

    /// Keeps the first failure's sentence.
    pub(super) fn blame(&mut self, index: usize) {
        if self.cause.is_none() {
            self.cause = Some(cause::sentence(&self.workers[index].evidence()));
        }
    }

    /// Whether the workers ended because they were asked to, rather than because they were finished.
    pub(super) fn stopped_early(&self) -> bool {
        self.workers.iter().any(|worker| !matches!(worker.done, Some((_, false))))
    }
}
