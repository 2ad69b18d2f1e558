//! The loop of `enn chaos`: follow the journal, wait for the next fault, do it, undo it.
//!
//! **Invariant:** it ends with the run, with its time, or by a signal, and then everything is undone.

use super::{
    ChaosError, Fault, Schedule,
    acts::Acts,
    crew::Crew,
    record::{Deed, Record},
    target::{Identity, Target},
};
use crate::{
    process::{STOP_SIGNALS, Signals},
    run_dir,
    ui::follow::Follower,
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
};
use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

/// Longest sleep, milliseconds: where files cannot be watched the run's end is seen then.
const SLEEP_MAX_MS: u128 = 1_000;

/// What is disturbed, and how.
#[derive(Debug)]
pub struct Means<'a> {
    pub run_dir: &'a Path,
    /// This host, as the journal names it.
    pub host: &'a str,
    /// The faults.
    pub schedule: Schedule,
    /// After so many seconds no fault begins and all that last are undone.
    pub until_s: Option<f64>,
    /// Only this rank.
    pub rank: Option<u32>,
}

/// Why it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The run is over.
    WithTheRun,
    /// The time is over.
    InTime,
    /// A signal asked for it.
    BySignal(Signal),
}

/// Disturbs a run that is under way. Each deed is told to `tell` as a line.
///
/// # Errors
/// The run is over or elsewhere; what is done cannot be written down or told.
pub fn run(means: Means<'_>, tell: &mut dyn FnMut(&str) -> io::Result<()>) -> Result<Ended, ChaosError> {
    let lock = run_dir::lock_path(means.run_dir);
    if !run_dir::is_living(means.run_dir) {
        return Err(ChaosError::NotUnderWay { path: means.run_dir.to_owned() });
    }
    let launcher = Identity::holder(&lock).ok_or_else(|| ChaosError::Elsewhere { path: means.run_dir.to_owned() })?;
    let signals = Signals::install(&STOP_SIGNALS);
    let signals = signals.map_err(|source| ChaosError::System { what: "handle signals", source })?;
    let mut chaos = Chaos {
        follower: Follower::open(means.run_dir, &lock)?,
        record: Record::open(means.run_dir)?,
        crew: Crew::new(means.host),
        acts: Acts::default(),
        began: Instant::now(),
        launcher,
        signals,
        next: None,
        means,
    };
    chaos.next = chaos.means.schedule.next();
    chaos.run(tell)
}

struct Chaos<'a> {
    means: Means<'a>,
    follower: Follower,
    record: Record,
    crew: Crew,
    acts: Acts,
    began: Instant,
    launcher: Identity,
    signals: Option<Signals>,
    next: Option<Fault>,
}

impl Chaos<'_> {
    fn run(&mut self, tell: &mut dyn FnMut(&str) -> io::Result<()>) -> Result<Ended, ChaosError> {
        loop {
            if let Some(signal) = self.signals.as_mut().and_then(|signals| signals.take().pop()) {
                return Ok(Ended::BySignal(signal));
            }
            let crew = &mut self.crew;
            self.follower.read(|event| crew.apply(&event))?;
            if Identity::of(self.launcher.pid) != Some(self.launcher) || !run_dir::is_living(self.means.run_dir) {
                return Ok(Ended::WithTheRun);
            }
            let now = Instant::now();
            let at_s = now.duration_since(self.began).as_secs_f64();
            for act in self.acts.settle(now) {
                self.told(Deed::Over { kind: act.kind, rank: act.rank, pid: act.pid }, at_s, tell)?;
            }
            if self.means.until_s.is_some_and(|until| at_s >= until) {
                return Ok(Ended::InTime);
            }
            match self.next.filter(|fault| fault.at_s <= at_s) {
                Some(fault) => {
                    let deed = self.hit(fault, now);
                    self.told(deed, at_s, tell)?;
                    self.next = self.means.schedule.next();
                }
                None => self.sleep(now)?,
            }
        }
    }

    /// Does a fault to one of those who live. One that ended in this moment is passed over for the next.
    fn hit(&mut self, fault: Fault, now: Instant) -> Deed {
        let Fault { kind, length_s, pick, .. } = fault;
        let living = self.crew.living(self.means.rank);
        let first = pick.checked_rem(living.len() as u64).unwrap_or(0) as usize;
        for member in living.iter().cycle().skip(first).take(living.len()) {
            let Some(target) = Target::aim(member.pid, self.launcher) else { continue };
            if self.acts.begin((kind, member.rank), target, now, Duration::from_secs_f64(length_s)) {
                return Deed::Done { kind, rank: member.rank, pid: member.pid, seconds: length_s };
            }
        }
        Deed::Missed { kind }
    }

    fn told(&mut self, deed: Deed, at_s: f64, tell: &mut dyn FnMut(&str) -> io::Result<()>) -> Result<(), ChaosError> {
        self.record.write(&deed, at_s)?;
        tell(&deed.line(at_s)).map_err(ChaosError::Output)
    }

    /// Until the next fault, the end of one, news of the run, or a signal.
    fn sleep(&self, now: Instant) -> Result<(), ChaosError> {
        let seconds = [self.next.map(|fault| fault.at_s), self.means.until_s];
        let timed = seconds
            .into_iter()
            .flatten()
            .filter_map(|at_s| self.began.checked_add(Duration::try_from_secs_f64(at_s).ok()?));
        let wake = timed.chain(self.acts.wakes(now)).min();
        // Rounded up: to wake before the time would be to spin.
        let wait = wake.map_or(SLEEP_MAX_MS, |wake| wake.saturating_duration_since(now).as_micros().div_ceil(1_000));
        let wait = PollTimeout::try_from(wait.min(SLEEP_MAX_MS)).unwrap_or(PollTimeout::ZERO);
        let fds = [self.follower.fd(), self.signals.as_ref().map(Signals::fd)];
        let mut fds: Vec<PollFd<'_>> = fds.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut fds, wait) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(ChaosError::System { what: "wait", source: error.into() }),
        }
    }
}
