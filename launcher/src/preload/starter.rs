//! How the workers of a run become processes: executed, or forked by the fork server and executed where that cannot be.

use super::{
    ForkServer, Preload,
    link::Ready,
    recipe::Recipe,
    request::{NotForked, Waiting},
    server::Change,
};
use crate::process::{Binding, Guard, Inlet, Outlets, Process, StartError};
use std::{
    collections::BTreeSet,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// Time that executed workers have for their own imports before the server begins with the same.
const BEHIND: Duration = Duration::from_secs(10);

/// Distinct notes of workers that are told in a run.
const NOTES_MAX: usize = 16;

/// A worker that is to be started.
pub(crate) struct WorkerStart<'a> {
    /// Program, arguments and variables.
    pub(crate) command: &'a Command,
    /// Standard streams.
    pub(crate) outlets: Outlets,
    /// Session, CPUs and control group.
    pub(crate) binding: Binding,
}

/// A worker that was started.
pub(crate) struct Started {
    pub(crate) process: Process,
    /// A forked worker waits until it is released; an executed one is at work.
    pub(crate) held: Option<Held>,
}

/// A forked worker that waits. Dropping it ends the worker.
#[derive(Debug)]
pub(crate) struct Held(Waiting);

impl Held {
    /// Lets the worker begin.
    pub(crate) fn release(self) {
        self.0.release();
    }
}

/// A server that is started later.
#[derive(Debug)]
struct Later {
    preload: Preload,
    command: Recipe,
    run_dir: PathBuf,
    at: Instant,
}

/// Starts the workers of a run on this node.
#[derive(Debug, Default)]
pub(crate) struct Starter {
    server: Option<ForkServer>,
    later: Option<Later>,
    /// Workers wait for a server that is there; those of the first round do not where it is made behind them.
    awaited: bool,
    /// The user asked for a server.
    asked: bool,
    told: BTreeSet<String>,
    messages: Vec<String>,
    ready: Option<Ready>,
}

impl Starter {
    /// Executes every worker.
    pub(crate) fn execute() -> Self {
        Self::default()
    }

    /// Forks workers, once a server is ready. `command` has the variables that all of them get.
    pub(crate) fn fork(preload: Preload, command: &Command, run_dir: &Path, guard: &mut Guard) -> Self {
        let behind = preload.behind;
        let command = Recipe::of(command);
        let mut starter = Self { awaited: !behind, asked: preload.asked, ..Self::default() };
        let at = Instant::now() + if behind { BEHIND } else { Duration::ZERO };
        starter.later = Some(Later { preload, command, run_dir: run_dir.to_owned(), at });
        starter.start_server(guard);
        starter
    }

    /// Starts the server when its time has come.
    fn start_server(&mut self, guard: &mut Guard) {
        let Some(later) = self.later.take_if(|later| later.at <= Instant::now()) else { return };
        match ForkServer::start(later.preload, later.command, &later.run_dir, guard) {
            Ok(server) => self.server = Some(server),
            Err(error) => self.tell(format!("no fork server: {error}; workers are executed")),
        }
    }

    /// Whether workers should not be started yet.
    pub(crate) fn is_loading(&self) -> bool {
        self.awaited && self.server.as_ref().is_some_and(ForkServer::is_loading)
    }

    /// Readable when [`Starter::advance`] has something to do.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.server.iter().flat_map(ForkServer::fds).collect()
    }

    /// When [`Starter::advance`] is to be called, whatever comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let later = self.later.as_ref().map(|later| later.at);
        later.or_else(|| self.server.as_ref()?.deadline())
    }

    /// Processes of the server, which are no workers and no orphans.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.server.iter().flat_map(ForkServer::pids)
    }

    /// Takes what came from the server and from its workers.
    pub(crate) fn advance(&mut self, guard: &mut Guard) {
        self.start_server(guard);
        let Some(server) = &mut self.server else { return };
        let notes = server.take_notes();
        match server.advance(guard) {
            None => {}
            Some(Change::Ready(ready)) => {
                for missing in &ready.missing {
                    self.messages.push(format!("--preload: {} cannot be imported: {}", missing.name, missing.why));
                }
                self.ready = Some(ready);
            }
            Some(Change::Gone(why)) => {
                let hint = if self.asked { "" } else { "\nhint: --preload none does not try" };
                self.messages.extend(why.map(|why| format!("{why}{hint}")));
                self.end(guard);
            }
        }
        notes.into_iter().for_each(|note| self.tell(note));
    }

    /// Starts a worker.
    ///
    /// # Errors
    /// The program cannot be executed, or its process cannot be watched.
    pub(crate) fn start(&mut self, worker: WorkerStart<'_>, guard: &mut Guard) -> Result<Started, StartError> {
        let WorkerStart { command, outlets, binding } = worker;
        self.awaited = true;
        // A forked worker has the launcher's own standard input.
        let can_fork = |server: &&ForkServer| !server.is_loading() && outlets.stdin == Inlet::Inherited;
        if let Some(server) = self.server.as_ref().filter(can_fork) {
            match server.fork(command, outlets.fds()) {
                Ok(waiting) => {
                    let parent = server.is_warm().then(|| waiting.warm_parent()).transpose();
                    match parent.and_then(|parent| Process::adopt(waiting.pid, parent, &binding, guard)) {
                        Ok(process) => return Ok(Started { process, held: Some(Held(waiting)) }),
                        Err(error) => self.tell(format!("a forked worker cannot be watched: {error}; it is executed")),
                    }
                }
                Err(NotForked::Refused(why)) => self.tell(format!("a worker is executed, not forked: {why}")),
                Err(NotForked::Lost(error)) => {
                    self.tell(format!("the fork server does not answer: {error}; workers are executed"));
                    self.end(guard);
                }
            }
        }
        Process::start(command, outlets, binding, guard).map(|process| Started { process, held: None })
    }

    /// What the user is to know, each sentence once.
    pub(crate) fn take_messages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.messages)
    }

    /// The server that has just become ready.
    pub(crate) fn take_ready(&mut self) -> Option<Ready> {
        self.ready.take()
    }

    /// Ends the server. Workers live on.
    pub(crate) fn end(&mut self, guard: &mut Guard) {
        self.later = None;
        if let Some(server) = self.server.take() {
            server.end(guard);
        }
    }

    fn tell(&mut self, message: String) {
        if self.told.len() < NOTES_MAX && self.told.insert(message.clone()) {
            self.messages.push(message);
        }
    }
}
