//! The start of a run's workers: executed, or forked by the fork server and executed where that is impossible.

use super::{
    ForkServer, Preload,
    link::Ready,
    recipe::Recipe,
    request::{NotForked, PausedWorker},
    server::ServerChange,
};
use crate::{Binding, Guard, Inlet, Outlets, Process, StartError};
use std::{
    collections::BTreeSet,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// Time for the executed workers' own imports before the server begins with the same.
const BEHIND: Duration = Duration::from_secs(10);

/// Limit on the distinct notes of workers that are reported in a run.
const NOTES_MAX: usize = 16;

pub struct WorkerStart<'a> {
    /// Program, arguments and variables.
    pub command: &'a Command,
    pub outlets: Outlets,
    /// Session, CPUs and control group.
    pub binding: Binding,
}

pub struct Started {
    pub process: Process,
    /// A forked worker waits until it is released; an executed one is running.
    pub held: Option<PausedWorker>,
}

#[derive(Debug)]
struct DelayedServer {
    preload: Preload,
    command: Recipe,
    run_dir: PathBuf,
    at: Instant,
}

/// Starts the workers of a run on this node.
#[derive(Debug, Default)]
pub struct Starter {
    server: Option<ForkServer>,
    later: Option<DelayedServer>,
    /// Whether workers wait for a server that is starting; in the first round they do not when it starts behind them.
    awaited: bool,
    /// Whether the user requested a server.
    asked: bool,
    reported: BTreeSet<String>,
    messages: Vec<String>,
    ready: Option<Ready>,
}

impl Starter {
    pub fn execute() -> Self {
        Self::default()
    }

    /// Makes a starter that forks workers, once a server is ready. `command` has the variables that all of them get.
    pub fn fork(preload: Preload, command: &Command, run_dir: &Path, guard: &mut Guard) -> Self {
        let behind = preload.behind;
        let command = Recipe::of(command);
        let mut starter = Self { awaited: !behind, asked: preload.asked, ..Self::default() };
        let at = Instant::now() + if behind { BEHIND } else { Duration::ZERO };
        starter.later = Some(DelayedServer { preload, command, run_dir: run_dir.to_owned(), at });
        starter.start_server(guard);
        starter
    }

    /// Starts the server when it is due.
    fn start_server(&mut self, guard: &mut Guard) {
        let Some(later) = self.later.take_if(|later| later.at <= Instant::now()) else { return };
        match ForkServer::start(later.preload, later.command, &later.run_dir, guard) {
            Ok(server) => self.server = Some(server),
            Err(error) => self.report(format!("no fork server: {error}; workers are executed")),
        }
    }

    /// Returns whether workers should not be started yet.
    pub fn is_loading(&self) -> bool {
        self.awaited && self.server.as_ref().is_some_and(ForkServer::is_loading)
    }

    /// Returns whether a server is there, or is going to be, that is not ready yet.
    pub fn is_expected(&self) -> bool {
        self.later.is_some() || self.server.as_ref().is_some_and(ForkServer::is_loading)
    }

    /// Returns descriptors that are readable when [`Starter::advance`] has work.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.server.iter().flat_map(ForkServer::fds).collect()
    }

    /// Returns the time at which [`Starter::advance`] must be called.
    pub fn deadline(&self) -> Option<Instant> {
        let later = self.later.as_ref().map(|later| later.at);
        later.or_else(|| self.server.as_ref()?.deadline())
    }

    /// Returns the processes of the server, which are no workers and no orphans.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.server.iter().flat_map(ForkServer::pids)
    }

    /// Handles messages from the server and notes from its workers.
    pub fn advance(&mut self, guard: &mut Guard) {
        self.start_server(guard);
        let Some(server) = &mut self.server else { return };
        let notes = server.take_notes();
        match server.advance(guard) {
            None => {}
            Some(ServerChange::Ready(ready)) => {
                for missing in &ready.missing {
                    self.messages.push(format!("--preload: {} cannot be imported: {}", missing.name, missing.why));
                }
                self.ready = Some(ready);
            }
            Some(ServerChange::Gone(why)) => {
                let hint = if self.asked { "" } else { "\nhint: --preload none does not try" };
                self.messages.extend(why.map(|why| format!("{why}{hint}")));
                self.end(guard);
            }
        }
        notes.into_iter().for_each(|note| self.report(note));
    }

    /// Starts a worker.
    ///
    /// # Errors
    /// The program cannot be executed, or its process cannot be watched.
    pub fn start(&mut self, worker: WorkerStart<'_>, guard: &mut Guard) -> Result<Started, StartError> {
        let WorkerStart { command, outlets, binding } = worker;
        self.awaited = true;
        // A forked worker has the launcher's own standard input.
        let can_fork = |server: &&ForkServer| !server.is_loading() && outlets.stdin == Inlet::Inherited;
        if let Some(server) = self.server.as_ref().filter(can_fork) {
            match server.fork(command, outlets.fds()) {
                Ok(waiting) => {
                    let parent = server.is_warm().then(|| waiting.warm_parent()).transpose();
                    match parent.and_then(|parent| Process::adopt(waiting.pid, parent, &binding, guard)) {
                        Ok(process) => return Ok(Started { process, held: Some(waiting) }),
                        Err(error) => {
                            self.report(format!("a forked worker cannot be watched: {error}; it is executed"))
                        }
                    }
                }
                Err(NotForked::Refused(why)) => self.report(format!("a worker is executed, not forked: {why}")),
                Err(NotForked::Lost(error)) => {
                    self.report(format!("the fork server does not answer: {error}; workers are executed"));
                    self.end(guard);
                }
            }
        }
        Process::start(command, outlets, binding, guard).map(|process| Started { process, held: None })
    }

    /// Returns messages for the user, each sentence once.
    pub fn take_messages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.messages)
    }

    /// Returns the server that has just become ready.
    pub fn take_ready(&mut self) -> Option<Ready> {
        self.ready.take()
    }

    /// Ends the server. Workers continue.
    pub fn end(&mut self, guard: &mut Guard) {
        self.later = None;
        if let Some(server) = self.server.take() {
            server.end(guard);
        }
    }

    fn report(&mut self, message: String) {
        if self.reported.len() < NOTES_MAX && self.reported.insert(message.clone()) {
            self.messages.push(message);
        }
    }
}
