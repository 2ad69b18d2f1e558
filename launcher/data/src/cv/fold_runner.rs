//! Processes that train folds, a bounded number at a time. Signals that ask to stop are forwarded to all of them.

use enn_process::{
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

/// Bytes at the end of a log that are searched for the cause of a failure.
const LOG_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub struct FoldTask {
    pub fold: usize,
    pub command: Command,
    pub log: PathBuf,
}

#[derive(Debug, PartialEq)]
pub struct FoldOutcome {
    pub fold: usize,
    /// Cause of the failure; `None` if training completed.
    pub failed: Option<String>,
    pub seconds: f64,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct FoldRunnerError {
    what: &'static str,
    source: io::Error,
}

fn machine(what: &'static str) -> impl FnOnce(io::Error) -> FoldRunnerError {
    move |source| FoldRunnerError { what, source }
}

#[derive(Debug)]
struct FoldProcess {
    task: FoldTask,
    seat: usize,
    process: Process,
    began: Instant,
}

/// Runs folds as child processes, one per seat at a time.
#[derive(Debug)]
pub struct FoldRunner {
    guard: Guard,
    signals: Option<Signals>,
    processes: Vec<FoldProcess>,
    stopped: Option<Signal>,
}

impl FoldRunner {
    /// Starts the guard process. Call this from the thread that calls the other methods: the children die with that thread.
    ///
    /// # Errors
    /// A process or a signal handler cannot be created.
    pub fn new(handle_signals: bool) -> Result<Self, FoldRunnerError> {
        let guard = Guard::start(None, None).map_err(machine("start the guard process"))?;
        let signals = if handle_signals { Signals::install(&STOP_SIGNALS) } else { Ok(None) };
        let signals = signals.map_err(machine("handle signals"))?;
        Ok(Self { guard, signals, processes: Vec::new(), stopped: None })
    }

    pub fn stopped(&self) -> Option<Signal> {
        self.stopped
    }

    /// Trains `tasks` in order, one on each seat at a time, and calls `ended` for each. After a signal no further task is started. A seat
    /// is a value of `CUDA_VISIBLE_DEVICES`; `None` inherits this process's value.
    ///
    /// # Errors
    /// Waiting for processes fails. A process that cannot be started is a failed fold instead.
    pub fn work(
        &mut self,
        tasks: Vec<FoldTask>,
        seats: &[Option<String>],
        ended: &mut dyn FnMut(FoldOutcome),
    ) -> Result<(), FoldRunnerError> {
        let mut tasks = tasks.into_iter();
        loop {
            while self.stopped.is_none() {
                let is_free = |seat: &usize| self.processes.iter().all(|running| running.seat != *seat);
                let Some(seat) = (0..seats.len()).find(is_free) else { break };
                let Some(mut task) = tasks.next() else { break };
                task.command.envs(seats[seat].iter().map(|devices| ("CUDA_VISIBLE_DEVICES", devices)));
                self.start(task, seat).unwrap_or_else(&mut *ended);
            }
            if self.processes.is_empty() {
                return Ok(());
            }
            self.wait()?;
            let mut index = 0;
            while index < self.processes.len() {
                let running = &mut self.processes[index];
                match running.process.reap(&mut self.guard) {
                    None => index += 1,
                    Some(exit) => {
                        let FoldProcess { task, began, .. } = self.processes.remove(index);
                        let stopped = self.stopped.filter(|_| exit != Exit::Code(0));
                        let failed = match stopped {
                            Some(signal) => Some(format!("stopped by {signal}; continue with --resume")),
                            None => cause(exit, &task.log),
                        };
                        ended(FoldOutcome { fold: task.fold, failed, seconds: began.elapsed().as_secs_f64() });
                    }
                }
            }
        }
    }

    fn start(&mut self, task: FoldTask, seat: usize) -> Result<(), FoldOutcome> {
        let failed = |cause: io::Error| FoldOutcome {
            fold: task.fold,
            failed: Some(format!("cannot start {}: {cause}", task.command.get_program().display())),
            seconds: 0.0,
        };
        let log = File::create(&task.log).map_err(failed)?;
        let outlets =
            Outlets { stdin: Inlet::Empty, stdout: log.try_clone().map_err(failed)?.into(), stderr: Outlet::from(log) };
        let process = Process::start(&task.command, outlets, Binding::default(), &mut self.guard);
        let process = process.map_err(|(StartError::Spawn(error) | StartError::Watch(error))| failed(error))?;
        self.processes.push(FoldProcess { task, seat, process, began: Instant::now() });
        Ok(())
    }

    /// Waits until a process has ended or a signal has come, and passes signals on.
    fn wait(&mut self) -> Result<(), FoldRunnerError> {
        let processes = self.processes.iter().map(|running| running.process.pidfd());
        let signals = self.signals.iter().map(Signals::fd);
        let mut fds: Vec<PollFd<'_>> = processes.chain(signals).map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        wait_ready(&mut fds, None).map_err(machine("wait for a fold"))?;
        for signal in self.signals.iter_mut().flat_map(Signals::take).collect::<Vec<_>>() {
            self.stopped.get_or_insert(signal);
            self.processes.iter().for_each(|running| running.process.signal(signal));
        }
        Ok(())
    }
}

/// Returns why a process failed; `None` if it succeeded.
fn cause(exit: Exit, log: &Path) -> Option<String> {
    let code = match exit {
        Exit::Code(0) => return None,
        Exit::Signal(signal) => {
            let name = Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |name| name.to_string());
            return Some(format!("its launcher was killed by {name}"));
        }
        Exit::Code(code) => code,
    };
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_BYTES_MAX)..]).into_owned();
    let error = text.rfind("error: ").map(|at| text[at + "error: ".len()..].trim());
    Some(error.map_or_else(|| format!("it ended with code {code}, see {}", log.display()), str::to_owned))
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
            FoldTask { fold, command, log: dir.path().join(format!("{fold}.log")) }
        };
        let mut runner = FoldRunner::new(false).unwrap();
        let seats = ["0,1", "2,3"].map(|seat| Some(seat.to_owned()));
        let mut all = Vec::new();
        runner.work((0..6).map(task).collect(), &seats, &mut |ended| all.push(ended)).unwrap();
        assert!(all.iter().all(|ended| ended.failed.is_none()), "{all:?}");
        let log = |fold: usize| fs::read_to_string(dir.path().join(format!("{fold}.log"))).unwrap();
        let mut had: Vec<String> = (0..6).map(log).collect();
        assert_eq!((had[0].as_str(), had[1].as_str()), ("0,1\n", "2,3\n"));
        had.dedup();
        assert!(had.len() > 2, "both are used on: {had:?}");
    }
}
