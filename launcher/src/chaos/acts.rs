//! Faults that last: what each worker should suffer now, and its undoing.
//!
//! **Invariant:** whoever was stopped is continued and whoever was limited is let go, at the latest when this is dropped. Two
//! faults of one worker do not undo each other.

use super::{policy::Kind, target::Target};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// A slow worker stands for this long, then goes for this long.
const SLOW_HALF: Duration = Duration::from_millis(50);
/// Bytes a starved worker's files may have.
const STARVED_BYTES: u64 = 0;

/// One fault that lasts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Act {
    pub(super) kind: Kind,
    pub(super) rank: u32,
    pub(super) pid: u32,
    began: Instant,
    ends: Instant,
}

impl Act {
    fn stops(&self, now: Instant) -> bool {
        match self.kind {
            Kind::Stop => true,
            Kind::Slow => {
                (now.saturating_duration_since(self.began).as_millis() / SLOW_HALF.as_millis()).is_multiple_of(2)
            }
            Kind::Kill | Kind::Enospc => false,
        }
    }

    /// When something changes next.
    fn wakes(&self, now: Instant) -> Instant {
        if self.kind != Kind::Slow {
            return self.ends;
        }
        let halves = now.saturating_duration_since(self.began).as_millis() / SLOW_HALF.as_millis();
        let next = u32::try_from(halves + 1).ok().and_then(|halves| self.began.checked_add(SLOW_HALF * halves));
        next.map_or(self.ends, |next| next.min(self.ends))
    }
}

/// A worker under some of them.
#[derive(Debug)]
struct Held {
    target: Target,
    stopped: bool,
    /// Its limit before.
    limited: Option<u64>,
}

/// All that last now.
#[derive(Debug, Default)]
pub(super) struct Acts {
    acts: Vec<Act>,
    held: Vec<Held>,
}

impl Acts {
    /// Begins one; false: the worker is gone, or the system refuses.
    pub(super) fn begin(&mut self, (kind, rank): (Kind, u32), target: Target, now: Instant, length: Duration) -> bool {
        let pid = target.pid();
        if kind == Kind::Kill {
            return target.signal(Signal::SIGKILL);
        }
        let held = match self.held.iter().position(|held| held.target.pid() == pid) {
            Some(known) => known,
            None => {
                self.held.push(Held { target, stopped: false, limited: None });
                self.held.len() - 1
            }
        };
        let done = match kind {
            Kind::Kill => false,
            Kind::Stop | Kind::Slow => self.held[held].stop(),
            Kind::Enospc => self.held[held].limit(),
        };
        if done {
            self.acts.push(Act { kind, rank, pid, began: now, ends: now + length });
        }
        self.settle(now);
        done
    }

    /// Brings everybody to where they should be; returns the faults that are over.
    pub(super) fn settle(&mut self, now: Instant) -> Vec<Act> {
        let over = self.acts.extract_if(.., |act| act.ends <= now).collect();
        let acts = &self.acts;
        self.held.retain_mut(|held| {
            let mut own = acts.iter().filter(|act| act.pid == held.target.pid()).peekable();
            if own.peek().is_none() {
                held.free();
                return false;
            }
            let mut stop = false;
            let mut limit = false;
            own.for_each(|act| {
                stop |= act.stops(now);
                limit |= act.kind == Kind::Enospc;
            });
            match stop {
                true => held.stop(),
                false => held.resume(),
            };
            if !limit {
                held.unlimit();
            }
            true
        });
        over
    }

    /// When `settle` has something to do.
    pub(super) fn wakes(&self, now: Instant) -> Option<Instant> {
        self.acts.iter().map(|act| act.wakes(now)).min()
    }
}

impl Drop for Acts {
    fn drop(&mut self) {
        self.held.iter_mut().for_each(Held::free);
    }
}

impl Held {
    fn stop(&mut self) -> bool {
        if !self.stopped {
            self.stopped = self.target.signal(Signal::SIGSTOP);
        }
        self.stopped
    }

    fn resume(&mut self) -> bool {
        if self.stopped {
            self.target.resume();
        }
        self.stopped = false;
        true
    }

    fn limit(&mut self) -> bool {
        if self.limited.is_none() {
            self.limited = self.target.limit_files(STARVED_BYTES);
        }
        self.limited.is_some()
    }

    fn unlimit(&mut self) {
        if let Some(before) = self.limited.take() {
            let _gone = self.target.limit_files(before);
        }
    }

    fn free(&mut self) {
        self.resume();
        self.unlimit();
    }
}

#[cfg(test)]
mod tests {
    use super::{super::target::Identity, *};
    use std::process::{Child, Command, Stdio};

    fn sleeper() -> Child {
        Command::new("/bin/sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
    }

    fn aim(child: &Child) -> Target {
        Target::aim(child.id(), Identity::of(std::process::id()).unwrap()).unwrap()
    }

    /// Whether it comes to be in this state; a signal takes its moment.
    fn comes_to(child: &Child, stopped: bool) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            if stat.rsplit_once(") ").unwrap().1.starts_with('T') == stopped {
                return true;
            }
        }
        false
    }

    #[test]
    fn two_stops_of_one_worker_last_as_long_as_the_longer_one() {
        let mut child = sleeper();
        let mut acts = Acts::default();
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert!(acts.begin((Kind::Stop, 3), aim(&child), now, second));
        assert!(acts.begin((Kind::Stop, 3), aim(&child), now, 2 * second));
        assert!(comes_to(&child, true));
        assert_eq!(acts.wakes(now), Some(now + second));
        assert_eq!(acts.settle(now + second).len(), 1);
        assert!(comes_to(&child, true));
        let over = acts.settle(now + 2 * second);
        assert!(over[0].rank == 3 && comes_to(&child, false) && acts.wakes(now).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_slow_worker_stands_and_goes() {
        let mut child = sleeper();
        let mut acts = Acts::default();
        let now = Instant::now();
        acts.begin((Kind::Slow, 0), aim(&child), now, Duration::from_secs(1));
        assert!(comes_to(&child, true));
        assert_eq!(acts.wakes(now), Some(now + SLOW_HALF));
        acts.settle(now + SLOW_HALF);
        assert!(comes_to(&child, false));
        acts.settle(now + 2 * SLOW_HALF);
        assert!(comes_to(&child, true));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_end_of_chaos_frees_everybody_and_a_kill_needs_no_end() {
        let mut stopped = sleeper();
        let mut starved = sleeper();
        let mut killed = sleeper();
        let mut acts = Acts::default();
        let now = Instant::now();
        let long = Duration::from_secs(99);
        assert!(acts.begin((Kind::Stop, 0), aim(&stopped), now, long));
        assert!(acts.begin((Kind::Enospc, 1), aim(&starved), now, long));
        assert!(acts.begin((Kind::Kill, 2), aim(&killed), now, long));
        assert!(!killed.wait().unwrap().success());
        assert!(comes_to(&stopped, true));
        drop(acts);
        assert!(comes_to(&stopped, false));
        assert_ne!(aim(&starved).limit_files(0), Some(STARVED_BYTES));
        for child in [&mut stopped, &mut starved] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
