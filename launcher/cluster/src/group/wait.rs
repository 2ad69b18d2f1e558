//! Waiting for everything at once: signals, ends of workers, news of the rendezvous, and the next deadline.

use super::{error::GroupError, watchdog::Watchdog, worker::Worker};
use crate::rendezvous::Rendezvous;
use enn_process::{Signals, preload::Starter, wait_ready};
use nix::{
    poll::{PollFd, PollFlags},
    sys::signal::Signal,
};
use std::{
    os::fd::BorrowedFd,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// A blocked poll lasted at least this long.
const BLOCKED_MIN: Duration = Duration::from_millis(1);

/// Longest wait for a timer.
const TIMER_WAIT_MAX: Duration = Duration::from_secs(3600);

/// Now, as workers know the time.
pub(super) fn seconds_since_epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// What can happen to a group, in the order in which simultaneous ones are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A signal came.
    Signalled(Signal),
    /// The worker with this index ended, at most `late` ago.
    Ended { worker: usize, late: Duration },
    /// The fork server said something, or took too long.
    Preload,
    /// The rendezvous has news.
    News,
    /// A worker said something of its timers, or one expired.
    Timers,
    /// The deadline came.
    TimeUp,
}

/// What a group waits on besides its workers.
pub(super) struct Sources {
    pub(super) rendezvous: Rendezvous,
    pub(super) signals: Option<Signals>,
    pub(super) watchdog: Option<Watchdog>,
    returned: Instant,
}

impl Sources {
    pub(super) fn new(rendezvous: Rendezvous, signals: Option<Signals>, watchdog: Option<Watchdog>) -> Self {
        Self { rendezvous, signals, watchdog, returned: Instant::now() }
    }

    /// When the next timer of a worker expires.
    fn timer_at(&self, now: Instant) -> Option<Instant> {
        let left = self.watchdog.as_ref()?.next()? - seconds_since_epoch();
        // One that is further away than that is looked at again.
        let left = Duration::try_from_secs_f64(left.max(0.0)).unwrap_or(TIMER_WAIT_MAX).min(TIMER_WAIT_MAX);
        now.checked_add(left)
    }

    /// Waits until something happens, or until `deadline`.
    pub(super) fn wait(
        &mut self,
        workers: &[Worker],
        starter: &Starter,
        deadline: Option<Instant>,
    ) -> Result<Vec<Event>, GroupError> {
        let began = Instant::now();
        let living: Vec<usize> = (0..workers.len()).filter(|index| workers[*index].process.exit().is_none()).collect();
        let timer_at = self.timer_at(began);
        let loaded_at = starter.deadline();
        let (signalled, news, ended, timers, preload) = {
            let mut watched: Vec<BorrowedFd<'_>> = vec![self.rendezvous.fd()];
            watched.extend(living.iter().map(|index| workers[*index].process.pidfd()));
            watched.extend(self.signals.as_ref().map(Signals::fd));
            let behind = watched.len();
            watched.extend(self.watchdog.as_ref().map(Watchdog::fd));
            let last = watched.len();
            watched.extend(starter.fds());
            let count = watched.len();
            let mut fds: Vec<PollFd<'_>> = watched.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            let until = [deadline, timer_at, loaded_at].into_iter().flatten().min();
            wait_ready(&mut fds, until).map_err(|source| GroupError::System { what: "wait for events", source })?;
            let ready = |index: usize| fds.get(index).is_some_and(|fd| fd.any().unwrap_or(false));
            let ended: Vec<usize> =
                living.iter().enumerate().filter(|(at, _)| ready(at + 1)).map(|(_, worker)| *worker).collect();
            let signalled = self.signals.is_some() && ready(living.len() + 1);
            (signalled, ready(0), ended, behind < last && ready(behind), (last..count).any(ready))
        };
        let now = Instant::now();
        // A poll that blocked was listening when the death came; else it may be as old as the poll before.
        let late = if now.duration_since(began) >= BLOCKED_MIN { Duration::ZERO } else { now - self.returned };
        self.returned = now;
        let mut events = Vec::new();
        if let Some(signals) = self.signals.as_mut().filter(|_| signalled) {
            events.extend(signals.take().into_iter().map(Event::Signalled));
        }
        events.extend(ended.into_iter().map(|worker| Event::Ended { worker, late }));
        if preload || loaded_at.is_some_and(|at| now >= at) {
            events.push(Event::Preload);
        }
        if news {
            self.rendezvous.clear();
            events.push(Event::News);
        }
        if timers || timer_at.is_some_and(|at| now >= at) {
            events.push(Event::Timers);
        }
        if deadline.is_some_and(|deadline| now >= deadline) {
            events.push(Event::TimeUp);
        }
        Ok(events)
    }
}
