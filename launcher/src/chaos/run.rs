//! The loop of `enn chaos`: follow the journal, wait for the next fault, inject it, undo it.
//!
//! **Invariant:** the loop ends with the run, with its time, or by a signal, and then every fault is undone.

use super::{
    ChaosError, Fault, Schedule,
    active_faults::ActiveFaults,
    fault_log::{FaultEvent, FaultLog},
    live_workers::LiveWorkers,
    target::{Identity, Target},
};
use enn_process::{STOP_SIGNALS, Signals, run_dir, wait_ready};
use enn_ui::follow::Follower;
use nix::{
    poll::{PollFd, PollFlags},
    sys::signal::Signal,
};
use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

/// Longest sleep: where files cannot be watched, the end of the run is noticed after it.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The run to disturb, and the faults to inject.
#[derive(Debug)]
pub struct ChaosOptions<'a> {
    pub run_dir: &'a Path,
    /// This host, as the journal names it.
    pub host: &'a str,
    pub schedule: Schedule,
    /// Seconds after which no fault begins and all active ones are undone.
    pub until_s: Option<f64>,
    /// The only rank that is hit; `None`: any rank.
    pub rank: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChaosEnd {
    RunEnded,
    TimeElapsed,
    Signalled(Signal),
}

/// Injects faults into a run that is under way. Every event is passed to `print` as a line.
///
/// # Errors
/// The run is over or on another host, or an event cannot be recorded or printed.
pub fn run(options: ChaosOptions<'_>, print: &mut dyn FnMut(&str) -> io::Result<()>) -> Result<ChaosEnd, ChaosError> {
    let lock = run_dir::lock_path(options.run_dir);
    if !run_dir::is_living(options.run_dir) {
        return Err(ChaosError::NotUnderWay { path: options.run_dir.to_owned() });
    }
    let launcher = Identity::holder(&lock).ok_or_else(|| ChaosError::Elsewhere { path: options.run_dir.to_owned() })?;
    let signals = Signals::install(&STOP_SIGNALS);
    let signals = signals.map_err(|source| ChaosError::System { what: "handle signals", source })?;
    let mut chaos = Chaos {
        follower: Follower::open(options.run_dir, &lock)?,
        fault_log: FaultLog::open(options.run_dir)?,
        live_workers: LiveWorkers::new(options.host),
        active_faults: ActiveFaults::default(),
        began: Instant::now(),
        launcher,
        signals,
        next: None,
        options,
    };
    chaos.next = chaos.options.schedule.next();
    chaos.run(print)
}

struct Chaos<'a> {
    options: ChaosOptions<'a>,
    follower: Follower,
    fault_log: FaultLog,
    live_workers: LiveWorkers,
    active_faults: ActiveFaults,
    began: Instant,
    launcher: Identity,
    signals: Option<Signals>,
    next: Option<Fault>,
}

impl Chaos<'_> {
    fn run(&mut self, print: &mut dyn FnMut(&str) -> io::Result<()>) -> Result<ChaosEnd, ChaosError> {
        loop {
            if let Some(signal) = self.signals.as_mut().and_then(|signals| signals.take().pop()) {
                return Ok(ChaosEnd::Signalled(signal));
            }
            let live_workers = &mut self.live_workers;
            self.follower.read(|event| live_workers.apply(&event))?;
            if Identity::of(self.launcher.pid) != Some(self.launcher) || !run_dir::is_living(self.options.run_dir) {
                return Ok(ChaosEnd::RunEnded);
            }
            let now = Instant::now();
            let at_s = now.duration_since(self.began).as_secs_f64();
            for fault in self.active_faults.update(now) {
                self.record(FaultEvent::Ended { kind: fault.kind, rank: fault.rank, pid: fault.pid }, at_s, print)?;
            }
            if self.options.until_s.is_some_and(|until| at_s >= until) {
                return Ok(ChaosEnd::TimeElapsed);
            }
            match self.next.filter(|fault| fault.at_s <= at_s) {
                Some(fault) => {
                    let event = self.inject(fault, now);
                    self.record(event, at_s, print)?;
                    self.next = self.options.schedule.next();
                }
                None => self.sleep(now)?,
            }
        }
    }

    /// Injects a fault into one of the live workers. A worker that has ended meanwhile is passed over for the next one.
    fn inject(&mut self, fault: Fault, now: Instant) -> FaultEvent {
        let Fault { kind, length_s, pick, .. } = fault;
        let workers = self.live_workers.living(self.options.rank);
        let first = pick.checked_rem(workers.len() as u64).unwrap_or(0) as usize;
        for worker in workers.iter().cycle().skip(first).take(workers.len()) {
            let Some(target) = Target::open(worker.pid, self.launcher) else { continue };
            if self.active_faults.begin(kind, worker.rank, target, now, Duration::from_secs_f64(length_s)) {
                return FaultEvent::Injected { kind, rank: worker.rank, pid: worker.pid, seconds: length_s };
            }
        }
        FaultEvent::Missed { kind }
    }

    fn record(
        &mut self,
        event: FaultEvent,
        at_s: f64,
        print: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> Result<(), ChaosError> {
        self.fault_log.write(&event, at_s)?;
        print(&event.line(at_s)).map_err(ChaosError::Output)
    }

    /// Waits for the next fault, the end of one, a new event of the run, or a signal.
    fn sleep(&self, now: Instant) -> Result<(), ChaosError> {
        let seconds = [self.next.map(|fault| fault.at_s), self.options.until_s];
        let timed = seconds
            .into_iter()
            .flatten()
            .filter_map(|at_s| self.began.checked_add(Duration::try_from_secs_f64(at_s).ok()?));
        let wake = timed.chain(self.active_faults.next_change(now)).chain([now + SLEEP_MAX]).min();
        let fds = [self.follower.fd(), self.signals.as_ref().map(Signals::fd)];
        let mut fds: Vec<PollFd<'_>> = fds.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        wait_ready(&mut fds, wake).map_err(|source| ChaosError::System { what: "wait", source })
    }
}
