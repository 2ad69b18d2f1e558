//! Processes that train folds, a bounded number at a time. Signals that ask to stop go to all of them.

use crate::process::{
    Binding, Exit, Guard, Inlet, Outlet, Outlets, Process, STOP_SIGNALS, Signals, StartError, wait_ready,
};
use nix::{
    poll::{PollFd, PollFlags},
    sys::signal::Signal,
};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// Bytes of a log's end that a cause is looked for in.
const LOG_BYTES_MAX: usize = 64 * 1024;

/// A fold to train.
#[derive(Debug)]
pub struct Task {
    /// Number of the fold.
    pub fold: usize,
    /// What trains it.
    pub command: Command,
    /// Where its standard output and error go.
    pub log: PathBuf,
}

/// A fold that was trained, or was not.
#[derive(Debug, PartialEq)]
pub struct Ended {
    /// Number of the fold.
    pub fold: usize,
    /// Why it is not trained to the end.
    pub failed: Option<String>,
    /// Duration, seconds.
    pub seconds: f64,
}

/// Why no fold can be trained.
#[derive(Debug, thiserror::Error)]
pub enum CrewError {
    /// The machine refuses something.
    #[error("cannot {what}: {source}")]
    Machine {
        /// What was tried.
        what: &'static str,
        source: io::Error,
    },
}

fn machine(what: &'static str) -> impl FnOnce(io::Error) -> CrewError {
    move |source| CrewError::Machine { what, source }
}

/// A process under way.
#[derive(Debug)]
struct Worker {
    task: Task,
    seat: usize,
    process: Process,
    began: Instant,
}

/// The processes.
#[derive(Debug)]
pub struct Crew {
    guard: Guard,
    signals: Option<Signals>,
    workers: Vec<Worker>,
    stopped: Option<Signal>,
}

impl Crew {
    /// Nobody yet. Call it from the thread that calls the rest: processes die with it.
    ///
    /// # Errors
    /// The machine refuses a process or a signal handler.
    pub fn new(handle_signals: bool) -> Result<Self, CrewError> {
        let guard = Guard::start(None, None).map_err(machine("start the guard process"))?;
        let signals = if handle_signals { Signals::install(&STOP_SIGNALS) } else { Ok(None) };
        let signals = signals.map_err(machine("handle signals"))?;
        Ok(Self { guard, signals, workers: Vec::new(), stopped: None })
    }

    /// The signal that asked to stop.
    pub fn stopped(&self) -> Option<Signal> {
        self.stopped
    }

    /// Trains `tasks`, one on each seat at a time, in order; `ended` hears of each. After a signal no more are begun. A seat is what
    /// `CUDA_VISIBLE_DEVICES` is for who has it; `None`: what it is here.
    ///
    /// # Errors
    /// The machine refuses to wait; a process that cannot be started is a fold that failed.
    pub fn work(
        &mut self,
        tasks: Vec<Task>,
        seats: &[Option<String>],
        ended: &mut dyn FnMut(Ended),
    ) -> Result<(), CrewError> {
        let mut tasks = tasks.into_iter();
        loop {
            while self.stopped.is_none() {
                let is_free = |seat: &usize| self.workers.iter().all(|worker| worker.seat != *seat);
                let Some(seat) = (0..seats.len()).find(is_free) else { break };
                let Some(mut task) = tasks.next() else { break };
                task.command.envs(seats[seat].iter().map(|devices| ("CUDA_VISIBLE_DEVICES", devices)));
                self.start(task, seat).unwrap_or_else(&mut *ended);
            }
            if self.workers.is_empty() {
                return Ok(());
            }
            self.wait()?;
            let mut index = 0;
            while index < self.workers.len() {
                let worker = &mut self.workers[index];
                match worker.process.reap(&mut self.guard) {
                    None => index += 1,
                    Some(exit) => {
                        let Worker { task, began, .. } = self.workers.remove(index);
                        let stopped = self.stopped.filter(|_| exit != Exit::Code(0));
                        let failed = match stopped {
                            Some(signal) => Some(format!("stopped by {signal}, to be gone on with by --resume")),
                            None => cause(exit, &task.log),
                        };
                        ended(Ended { fold: task.fold, failed, seconds: began.elapsed().as_secs_f64() });
                    }
                }
            }
        }
    }

    fn start(&mut self, task: Task, seat: usize) -> Result<(), Ended> {
        let failed = |cause: io::Error| Ended {
            fold: task.fold,
            failed: Some(format!("cannot start {}: {cause}", task.command.get_program().display())),
            seconds: 0.0,
        };
        let log = File::create(&task.log).map_err(failed)?;
        let outlets =
            Outlets { stdin: Inlet::Empty, stdout: log.try_clone().map_err(failed)?.into(), stderr: Outlet::from(log) };
        let process = Process::start(&task.command, outlets, Binding::default(), &mut self.guard);
        let process = process.map_err(|(StartError::Spawn(error) | StartError::Watch(error))| failed(error))?;
        self.workers.push(Worker { task, seat, process, began: Instant::now() });
        Ok(())
    }

    /// Waits until a process has ended or a signal has come, and passes signals on.
    fn wait(&mut self) -> Result<(), CrewError> {
        let processes = self.workers.iter().map(|worker| worker.process.pidfd());
        let signals = self.signals.iter().map(Signals::fd);
        let mut fds: Vec<PollFd<'_>> = processes.chain(signals).map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        wait_ready(&mut fds, None).map_err(machine("wait for a fold"))?;
        for signal in self.signals.iter_mut().flat_map(Signals::take).collect::<Vec<_>>() {
            self.stopped.get_or_insert(signal);
            self.workers.iter().for_each(|worker| worker.process.signal(signal));
        }
        Ok(())
    }
}

/// Why a process did not do its work; `None`: it did.
fn cause(exit: Exit, log: &Path) -> Option<String> {
    let code = match exit {
        Exit::Code(0) => return None,
        Exit::Signal(signal) => {
            let name = Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |name| name.to_string());
            return Some(format!("its launcher was ended by {name}"));
        }
        Exit::Code(code) => code,
    };
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_BYTES_MAX)..]).into_owned();
    let said = text.rfind("error: ").map(|at| text[at + "error: ".len()..].trim());
    Some(said.map_or_else(|| format!("it ended with code {code}, see {}", log.display()), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seat_has_one_task_at_a_time_and_its_own_devices() {
        let dir = tempfile::tempdir().unwrap();
        let task = |fold: usize| {
            let mut command = Command::new("sh");
            // Nobody else has the seat meanwhile.
            command.current_dir(dir.path()).args(["-c", "mkdir seat$CUDA_VISIBLE_DEVICES && sleep 0.1 && rmdir seat$CUDA_VISIBLE_DEVICES && echo $CUDA_VISIBLE_DEVICES"]);
            Task { fold, command, log: dir.path().join(format!("{fold}.log")) }
        };
        let mut crew = Crew::new(false).unwrap();
        let seats = ["0,1", "2,3"].map(|seat| Some(seat.to_owned()));
        let mut all = Vec::new();
        crew.work((0..6).map(task).collect(), &seats, &mut |ended| all.push(ended)).unwrap();
        assert!(all.iter().all(|ended| ended.failed.is_none()), "{all:?}");
        let log = |fold: usize| fs::read_to_string(dir.path().join(format!("{fold}.log"))).unwrap();
        let mut had: Vec<String> = (0..6).map(log).collect();
        assert_eq!((had[0].as_str(), had[1].as_str()), ("0,1\n", "2,3\n"));
        had.dedup();
        assert!(had.len() > 2, "both are used on: {had:?}");
    }
}
