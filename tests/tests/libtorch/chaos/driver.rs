//! One launch of `enn train` that is disturbed as it goes: events are read as they come, and each fault waits for its moment.
//!
//! **Invariant:** only processes are signalled that this launch's journal names and whose parent is this launch.

use super::schedule::{Deed, Fault, Moment, Schedule};
use enn_common::event::{Event, EventKind};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// A launch that takes longer hangs: it takes a few seconds on an idle machine.
pub(super) const LAUNCH_MAX: Duration = Duration::from_secs(150);

/// What became of a launch.
pub(super) struct Launch {
    /// Exit code; `None`: killed.
    pub(super) code: Option<i32>,
    pub(super) events: Vec<Event>,
    pub(super) stderr: String,
    /// Workers and spares that were killed by us.
    pub(super) killed: Vec<u32>,
    /// Whether it was told to end before its work was done.
    pub(super) cut: bool,
    /// Faults whose moment has not come.
    pub(super) left: Vec<Fault>,
}

struct Driver {
    enn: Child,
    lines: Receiver<String>,
    events: Vec<Event>,
    /// Processes that live: their rank, or none for a spare.
    living: BTreeMap<u32, Option<u32>>,
    paused: Vec<(Instant, u32)>,
    killed: Vec<u32>,
    cut: bool,
    longest: Duration,
}

/// Launches the run in `dir` and disturbs it by `faults`; `resume` goes on with a run. It takes `longest` at most.
pub(super) fn launch(
    dir: &Path,
    (schedule, longest): (&Schedule, Duration),
    faults: &[Fault],
    resume: Option<&Path>,
) -> Launch {
    let mut command = Command::new(enn_tests::launch::enn());
    command.current_dir(dir).arg("train").arg("chaos.toml").arg("--json").args(["--runs-dir", "runs"]);
    let workers = schedule.shape.workers;
    match schedule.fewest {
        Some(fewest) => command.args(["--workers", &format!("{fewest}:{workers}")]),
        None => command.args(["--nproc-per-node", &workers.to_string()]),
    };
    command.args(["--spares", &schedule.spares.to_string()]);
    let collectives = if schedule.shape.gloo { "gloo" } else { "auto" };
    command.args(["--set", &format!("cluster.collectives=\"{collectives}\"")]);
    command.args(resume.into_iter().flat_map(|run| [OsStr::new("--resume"), run.as_os_str()]));
    // All that it starts carries the directory in its environment, and its sockets lie there.
    command.env("TMPDIR", dir.join("tmp")).env_remove("ENN_RUNS");
    let mut enn = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(enn.stdout.take().unwrap());
    let mut stderr = enn.stderr.take().unwrap();
    let (into, lines) = channel();
    std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| into.send(line)));
    let words: JoinHandle<String> = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ended = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let driver = Driver {
        enn,
        lines,
        events: Vec::new(),
        living: BTreeMap::new(),
        paused: Vec::new(),
        killed: Vec::new(),
        cut: false,
        longest,
    };
    driver.run(faults, words)
}

impl Driver {
    fn run(mut self, faults: &[Fault], words: JoinHandle<String>) -> Launch {
        let began = Instant::now();
        let mut faults = faults.iter().copied().peekable();
        let mut due: Option<Instant> = None;
        let mut fresh = 0;
        loop {
            let now = Instant::now();
            assert!(now - began < self.longest, "the run hangs; seen: {:#?}", self.events);
            self.resume_paused(now);
            // A happening serves one fault: the next one waits for a new one.
            while let Some(fault) = faults.peek() {
                if due.is_none() {
                    let met = (fresh..self.events.len()).position(|at| self.meets(fault.moment, at));
                    fresh = met.map_or(self.events.len(), |met| fresh + met + 1);
                    due = met.map(|_| now + Duration::from_millis(fault.delay_ms));
                }
                match due {
                    Some(at) if at <= now && !self.cut => {
                        self.act(*fault, now);
                        due = None;
                        faults.next();
                    }
                    _ => break,
                }
            }
            let wake = self.paused.iter().map(|(at, _)| *at).chain(due.filter(|at| *at > now)).min();
            let wait = wake.map_or(self.longest, |at| at.saturating_duration_since(now)).min(self.longest);
            match self.lines.recv_timeout(wait) {
                Ok(line) => self.hear(&line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let code = self.enn.wait().unwrap().code();
        let events = std::mem::take(&mut self.events);
        let killed = std::mem::take(&mut self.killed);
        Launch { code, events, stderr: words.join().unwrap(), killed, cut: self.cut, left: faults.collect() }
    }

    fn hear(&mut self, line: &str) {
        // The last line of a killed launch may be torn.
        let Ok(event) = serde_json::from_str::<Event>(line) else {
            assert!(self.cut, "no event: {line}");
            return;
        };
        match &event.what {
            EventKind::WorkerStarted { pid, rank, .. } | EventKind::SeatTaken { pid, rank, .. } => {
                self.living.insert(*pid, Some(rank.0));
            }
            EventKind::SpareStarted { pid, .. } => {
                self.living.insert(*pid, None);
            }
            EventKind::WorkerExited { pid, .. }
            | EventKind::SpareEnded { pid, .. }
            | EventKind::WorkerDismissed { pid, .. } => {
                self.living.remove(pid);
            }
            _ => {}
        }
        self.events.push(event);
    }

    fn act(&mut self, fault: Fault, now: Instant) {
        let mut seats: Vec<(u32, u32)> = self.living.iter().filter_map(|(pid, rank)| Some(((*rank)?, *pid))).collect();
        seats.sort_unstable();
        let mut seats: Vec<u32> = seats.into_iter().map(|(_, pid)| pid).collect();
        let spares: Vec<u32> = self.living.iter().filter(|(_, rank)| rank.is_none()).map(|(pid, _)| *pid).collect();
        let pick = |of: &[u32]| (!of.is_empty()).then(|| fault.pick as usize % of.len().max(1));
        match fault.deed {
            Deed::KillOne => pick(&seats).into_iter().for_each(|which| self.kill(seats[which])),
            Deed::KillTwo => {
                for _ in 0..2 {
                    pick(&seats).into_iter().for_each(|which| self.kill(seats.swap_remove(which)));
                }
            }
            Deed::KillFirst => seats.first().into_iter().for_each(|pid| self.kill(*pid)),
            Deed::KillSpare => pick(&spares).into_iter().for_each(|which| self.kill(spares[which])),
            Deed::KillAll => seats.iter().for_each(|pid| self.kill(*pid)),
            Deed::Pause(ms) => {
                if let Some(pid) = pick(&seats).map(|which| seats[which])
                    && self.signal(pid, Signal::SIGSTOP)
                {
                    self.paused.push((now + Duration::from_millis(ms), pid));
                }
            }
            Deed::KillEnn => self.end(Signal::SIGKILL),
            Deed::Interrupt(term) => self.end(if term { Signal::SIGTERM } else { Signal::SIGINT }),
        }
    }

    fn kill(&mut self, pid: u32) {
        if self.signal(pid, Signal::SIGKILL) {
            self.killed.push(pid);
        }
    }

    /// Signals a process that is a child of this launch.
    fn signal(&self, pid: u32, signal: Signal) -> bool {
        parent(pid) == Some(self.enn.id()) && kill(Pid::from_raw(pid.cast_signed()), signal).is_ok()
    }

    fn end(&mut self, signal: Signal) {
        self.cut = true;
        // Not yet waited for: its number is its own.
        kill(Pid::from_raw(self.enn.id().cast_signed()), signal).unwrap();
    }

    fn resume_paused(&mut self, now: Instant) {
        let (over, paused): (Vec<_>, Vec<_>) = self.paused.drain(..).partition(|(at, _)| *at <= now);
        self.paused = paused;
        for (_, pid) in over {
            self.signal(pid, Signal::SIGCONT);
        }
    }

    /// Whether the event at this place is that moment.
    fn meets(&self, moment: Moment, at: usize) -> bool {
        let begun = |event: &Event| matches!(event.what, EventKind::RoundStarted { .. });
        match (moment, &self.events[at].what) {
            (Moment::Starting, EventKind::WorkerStarted { .. }) | (Moment::SpareWarm, EventKind::SpareReady { .. }) => {
                true
            }
            (Moment::Step(at), EventKind::Stepped { step, .. }) => *step >= at,
            (Moment::Saving(at), EventKind::EpochEnded(report)) => report.epoch >= at,
            // Steps are told now and then; the epochs are ten steps long.
            (Moment::Validating(at), EventKind::Stepped { epoch, step, .. }) => *epoch >= at && step % 10 >= 7,
            (Moment::Regrouping, EventKind::RoundLeft { .. }) => true,
            // The first round of a launch that goes on from a checkpoint is a start, whatever its number.
            (Moment::Regrouping, EventKind::RoundStarted { .. }) => self.events[..at].iter().any(begun),
            _ => false,
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Ended already, when all went well; when not, its guard ends its workers.
        let _ended = self.enn.kill();
        let _reaped = self.enn.wait();
    }
}

/// The parent of a process that is no zombie.
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next()? == "Z" { None } else { fields.next()?.parse().ok() }
}
