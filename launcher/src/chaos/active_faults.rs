//! Active faults: which state each worker must be in now, and how it is undone.
//!
//! **Invariant:** a stopped worker is continued and the limits of a limited one are restored, at the latest when this is
//! dropped. Two faults of one worker do not undo each other.

use super::{policy::FaultKind, target::Target};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// A slow worker is stopped for this long, then runs for this long.
const SLOW_HALF: Duration = Duration::from_millis(50);
/// Limit of file sizes under `FaultKind::Enospc`, bytes.
const STARVED_BYTES: u64 = 0;

/// A fault that was injected and has not ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ActiveFault {
    pub(super) kind: FaultKind,
    pub(super) rank: u32,
    pub(super) pid: u32,
    began: Instant,
    ends: Instant,
}

impl ActiveFault {
    fn stops(&self, now: Instant) -> bool {
        match self.kind {
            FaultKind::Stop => true,
            FaultKind::Slow => {
                (now.saturating_duration_since(self.began).as_millis() / SLOW_HALF.as_millis()).is_multiple_of(2)
            }
            FaultKind::Kill | FaultKind::Enospc => false,
        }
    }

    /// Returns when the fault next changes what its worker must do: at the next half of a slow fault, or at its end.
    fn next_change(&self, now: Instant) -> Instant {
        if self.kind != FaultKind::Slow {
            return self.ends;
        }
        let halves = now.saturating_duration_since(self.began).as_millis() / SLOW_HALF.as_millis();
        let next = u32::try_from(halves + 1).ok().and_then(|halves| self.began.checked_add(SLOW_HALF * halves));
        next.map_or(self.ends, |next| next.min(self.ends))
    }
}

/// A worker with at least one active fault.
#[derive(Debug)]
struct FaultedWorker {
    target: Target,
    stopped: bool,
    /// The file size limit before the fault, bytes; `None` while it is not limited.
    limited: Option<u64>,
}

/// All active faults, with the workers that they affect.
#[derive(Debug, Default)]
pub(super) struct ActiveFaults {
    faults: Vec<ActiveFault>,
    workers: Vec<FaultedWorker>,
}

impl ActiveFaults {
    /// Injects a fault. Returns false when the worker is gone or the system refuses.
    pub(super) fn begin(&mut self, kind: FaultKind, rank: u32, target: Target, now: Instant, length: Duration) -> bool {
        let pid = target.pid();
        if kind == FaultKind::Kill {
            return target.signal(Signal::SIGKILL);
        }
        let index = match self.workers.iter().position(|worker| worker.target.pid() == pid) {
            Some(known) => known,
            None => {
                self.workers.push(FaultedWorker { target, stopped: false, limited: None });
                self.workers.len() - 1
            }
        };
        let done = match kind {
            FaultKind::Kill => false,
            FaultKind::Stop | FaultKind::Slow => self.workers[index].stop(),
            FaultKind::Enospc => self.workers[index].limit(),
        };
        if done {
            self.faults.push(ActiveFault { kind, rank, pid, began: now, ends: now + length });
        }
        self.update(now);
        done
    }

    /// Stops, continues and limits every worker as its active faults demand, and returns the faults that have ended.
    pub(super) fn update(&mut self, now: Instant) -> Vec<ActiveFault> {
        let over = self.faults.extract_if(.., |fault| fault.ends <= now).collect();
        let faults = &self.faults;
        self.workers.retain_mut(|worker| {
            let mut own = faults.iter().filter(|fault| fault.pid == worker.target.pid()).peekable();
            if own.peek().is_none() {
                worker.release();
                return false;
            }
            let mut stop = false;
            let mut limit = false;
            own.for_each(|fault| {
                stop |= fault.stops(now);
                limit |= fault.kind == FaultKind::Enospc;
            });
            match stop {
                true => worker.stop(),
                false => worker.resume(),
            };
            if !limit {
                worker.unlimit();
            }
            true
        });
        over
    }

    /// Returns when [`Self::update`] next has something to do.
    pub(super) fn next_change(&self, now: Instant) -> Option<Instant> {
        self.faults.iter().map(|fault| fault.next_change(now)).min()
    }
}

impl Drop for ActiveFaults {
    fn drop(&mut self) {
        self.workers.iter_mut().for_each(FaultedWorker::release);
    }
}

impl FaultedWorker {
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

    fn release(&mut self) {
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

    fn open(child: &Child) -> Target {
        Target::open(child.id(), Identity::of(std::process::id()).unwrap()).unwrap()
    }

    /// Waits until the process has this state; a signal takes a moment. Returns false after ten seconds.
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
        let mut active_faults = ActiveFaults::default();
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert!(active_faults.begin(FaultKind::Stop, 3, open(&child), now, second));
        assert!(active_faults.begin(FaultKind::Stop, 3, open(&child), now, 2 * second));
        assert!(comes_to(&child, true));
        assert_eq!(active_faults.next_change(now), Some(now + second));
        assert_eq!(active_faults.update(now + second).len(), 1);
        assert!(comes_to(&child, true));
        let over = active_faults.update(now + 2 * second);
        assert!(over[0].rank == 3 && comes_to(&child, false) && active_faults.next_change(now).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_slow_worker_stands_and_goes() {
        let mut child = sleeper();
        let mut active_faults = ActiveFaults::default();
        let now = Instant::now();
        active_faults.begin(FaultKind::Slow, 0, open(&child), now, Duration::from_secs(1));
        assert!(comes_to(&child, true));
        assert_eq!(active_faults.next_change(now), Some(now + SLOW_HALF));
        active_faults.update(now + SLOW_HALF);
        assert!(comes_to(&child, false));
        active_faults.update(now + 2 * SLOW_HALF);
        assert!(comes_to(&child, true));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_end_of_chaos_frees_everybody_and_a_kill_needs_no_end() {
        let mut stopped = sleeper();
        let mut starved = sleeper();
        let mut killed = sleeper();
        let mut active_faults = ActiveFaults::default();
        let now = Instant::now();
        let long = Duration::from_secs(99);
        assert!(active_faults.begin(FaultKind::Stop, 0, open(&stopped), now, long));
        assert!(active_faults.begin(FaultKind::Enospc, 1, open(&starved), now, long));
        assert!(active_faults.begin(FaultKind::Kill, 2, open(&killed), now, long));
        assert!(!killed.wait().unwrap().success());
        assert!(comes_to(&stopped, true));
        drop(active_faults);
        assert!(comes_to(&stopped, false));
        assert_ne!(open(&starved).limit_files(0), Some(STARVED_BYTES));
        for child in [&mut stopped, &mut starved] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
