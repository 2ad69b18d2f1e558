//! The fork server: first a probe of its Python, then a process that imports and waits, then workers.
//!
//! Nothing here blocks except a request for a worker, which waits at most two seconds. The owner polls [`ForkServer::fds`] and
//! calls [`ForkServer::advance`].
//!
//! **Invariant:** the workers' own command is started with the hook only after the same Python has shown that it runs the
//! hook: one that does not would run the script.

use super::{
    Preload,
    hook::Hook,
    link::{HookMessage, IMPORT, Link, Probed, Ready},
    recipe::Recipe,
    request::{self, Inherited, JoinRequest, NotForked, PausedWorker},
    search::WarmSearch,
};
use crate::{Guard, ignored_signals};
use nix::sys::stat::{Mode, umask};
use serde::Deserialize;
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::fd::{BorrowedFd, RawFd},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// Longest waits for a Python's answer to the probe, and for the answer of a server that is ready.
const PROBE_MAX: Duration = Duration::from_secs(10);
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Longest wait for the imports: a network file system that holds PyTorch can need most of a minute.
const IMPORT_MAX: Duration = Duration::from_secs(180);
/// Limit on the bytes of the server's log that are read when it fails.
const LOG_BYTES_MAX: u64 = 4 << 10;
/// A command that does nothing: the hook answers first.
pub(super) const QUESTION: [&str; 3] = ["-u", "-c", "pass"];

#[derive(Debug)]
pub(crate) enum ServerChange {
    /// The server takes requests from now on.
    Ready(Ready),
    /// The server has ended. `None`: for a reason that is not reported.
    Gone(Option<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerPhase {
    Probing,
    /// A warm server is queried whether it fits.
    Asking,
    Importing,
    Serving,
}

/// The server of one run on one node.
#[derive(Debug)]
pub(crate) struct ForkServer {
    preload: Preload,
    /// The workers' command, with the variables that all of them get.
    command: Recipe,
    hook: Hook,
    cwd: PathBuf,
    umask: u32,
    ignored: Vec<i32>,
    link: Option<Link>,
    phase: ServerPhase,
    until: Option<Instant>,
    began: Instant,
    /// Search among the warm servers of this user; `None`: the run has a server of its own.
    search: Option<WarmSearch>,
    probed: bool,
    /// Sentences for the user.
    notes: Vec<String>,
}

impl ForkServer {
    /// Begins with a probe of the Python of `command`, whose variables are those of every worker, or with a query of warm servers.
    pub(super) fn start(preload: Preload, command: Recipe, run_dir: &Path, guard: &mut Guard) -> io::Result<Self> {
        // The mask can only be read by setting it; this process makes no file in between.
        let mask = umask(Mode::empty());
        umask(mask);
        let search = preload.warm.as_ref().map(WarmSearch::new).transpose()?;
        let mut server = Self {
            preload,
            command,
            hook: Hook::create(run_dir)?,
            cwd: std::env::current_dir()?,
            umask: mask.bits(),
            ignored: ignored_signals(),
            link: None,
            phase: ServerPhase::Probing,
            until: None,
            began: Instant::now(),
            search,
            probed: false,
            notes: Vec::new(),
        };
        // The effect of a wrapper depends on its working directory and on its own files.
        if server.search.is_none() || server.command.is_wrapped() || !server.ask_next() {
            server.probe(guard)?;
        }
        Ok(server)
    }

    fn probe(&mut self, guard: &mut Guard) -> io::Result<()> {
        let question = self.command.with_args(QUESTION).command();
        self.link = Some(Link::start(question, "probe", &self.preload, &self.hook, guard)?);
        self.phase = ServerPhase::Probing;
        self.until = Some(Instant::now() + PROBE_MAX);
        Ok(())
    }

    /// Queries the next warm server; `false`: there is none.
    fn ask_next(&mut self) -> bool {
        let Ok(request) = self.join_request() else { return false };
        let Some(search) = &mut self.search else { return false };
        let Some(link) = search.next(&request) else { return false };
        self.until = Some(Instant::now() + if search.is_importing() { IMPORT_MAX } else { ANSWER_MAX });
        self.link = Some(link);
        self.phase = ServerPhase::Asking;
        true
    }

    fn join_request(&self) -> io::Result<JoinRequest> {
        let leave = self.preload.warm.as_ref().is_some_and(|warm| warm.leave);
        JoinRequest::new(&self.command.command(), leave, &self.inherited(&self.hook.notes_path()))
    }

    fn inherited<'a>(&'a self, notes: &'a Path) -> Inherited<'a> {
        Inherited { cwd: &self.cwd, umask: self.umask, notes, ignored: &self.ignored }
    }

    /// Returns whether workers should wait for the server.
    pub(crate) fn is_loading(&self) -> bool {
        self.phase != ServerPhase::Serving
    }

    /// Returns the server's processes among the launcher's children.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        let started = self.search.as_ref().and_then(|search| search.started);
        self.link.as_ref().and_then(Link::pid).into_iter().chain(started)
    }

    /// Returns descriptors that are readable when [`ForkServer::advance`] has work.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.link.iter().map(Link::fd).chain(self.hook.notes_fd())
    }

    /// Returns the time at which [`ForkServer::advance`] must be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Returns sentences for the user: why a worker was executed or what it ignored, and why another server was needed.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        #[derive(Deserialize)]
        struct Note {
            why: String,
        }
        let text = |bytes: &Vec<u8>| serde_json::from_slice::<Note>(bytes).ok().map(|note| note.why);
        let mut notes = std::mem::take(&mut self.notes);
        notes.extend(self.hook.take_notes().iter().filter_map(text));
        notes
    }

    /// Receives the server's message and takes the next step.
    pub(crate) fn advance(&mut self, guard: &mut Guard) -> Option<ServerChange> {
        let message = match self.link.as_mut()?.receive(guard) {
            Ok(Some(message)) => Ok(message),
            Ok(None) if self.until.is_some_and(|until| Instant::now() >= until) => {
                Err("it did not answer in time".to_owned())
            }
            Ok(None) => return None,
            Err(how) => Err(self.last_log_line().map_or_else(|| how.clone(), |line| format!("{how}: {line}"))),
        };
        match (self.phase, message) {
            (ServerPhase::Asking, Err(why) | Ok(HookMessage::Refuse(why))) => self.refused(why, guard),
            (_, Err(why) | Ok(HookMessage::Refuse(why))) => Some(gone(&why)),
            (ServerPhase::Probing, Ok(HookMessage::Probe(probed))) => self.probed(probed, guard),
            (ServerPhase::Asking | ServerPhase::Importing, Ok(HookMessage::Ready(ready))) => self.ready(ready, guard),
            (_, Ok(_)) => Some(gone("its answer was unexpected")),
        }
    }

    /// Accepts a server that takes requests, if it fits this run.
    fn ready(&mut self, mut ready: Ready, guard: &mut Guard) -> Option<ServerChange> {
        if let Some(search) = &self.search {
            if let Err(why) = search.accept(&ready, &self.preload.modules) {
                return match self.phase {
                    ServerPhase::Asking => self.refused(why, guard),
                    _ => Some(gone(&why)),
                };
            }
            ready.warm = true;
            ready.seconds = self.began.elapsed().as_secs_f64();
        }
        // Further modules of PyTorch were not requested by name.
        ready.missing.retain(|missing| self.preload.modules.contains(&missing.name));
        self.phase = ServerPhase::Serving;
        self.until = None;
        Some(ServerChange::Ready(ready))
    }

    /// Continues after a warm server that does not fit: queries the next one, or starts another.
    fn refused(&mut self, why: String, guard: &mut Guard) -> Option<ServerChange> {
        if let Some(search) = &mut self.search {
            search.refused(why);
        }
        if self.ask_next() {
            return None;
        }
        let begun = if self.probed { self.import(guard) } else { self.probe(guard) };
        begun.err().map(|error| gone(&format!("it cannot be started: {error}")))
    }

    /// Handles the probe's answer: the server itself is started, if there is a module to import.
    fn probed(&mut self, probed: Probed, guard: &mut Guard) -> Option<ServerChange> {
        if let Some(why) = probed.refuse {
            return Some(gone(&why));
        }
        if !probed.found.values().any(|found| *found) {
            // Missing modules that the user did not request are not reported.
            if !self.preload.asked {
                return Some(ServerChange::Gone(None));
            }
            let names: Vec<&str> = probed.found.keys().map(String::as_str).collect();
            return Some(gone(&format!("its Python has no {}", names.join(", "))));
        }
        if self.command.resolve(&probed).is_none() {
            return Some(gone("its answer holds no valid environment"));
        }
        self.probed = true;
        if let Some(mut probe) = self.link.take() {
            probe.kill(guard);
        }
        if self.search.as_ref().is_some_and(|search| search.untried.is_none()) && self.ask_next() {
            return None;
        }
        self.import(guard).err().map(|error| gone(&format!("it cannot be started: {error}")))
    }

    /// Starts the server: one of this run's own, or a warm one.
    fn import(&mut self, guard: &mut Guard) -> io::Result<()> {
        let request = self.join_request()?;
        self.link = Some(match &mut self.search {
            None => Link::start(self.command.command(), IMPORT, &self.preload, &self.hook, guard)?,
            Some(search) => {
                if let Some(why) = &search.why {
                    self.notes.push(format!("no warm server fits: {why}; another one is started"));
                }
                search.start(&self.command, &self.preload, &request)?
            }
        });
        self.phase = ServerPhase::Importing;
        self.until = Some(Instant::now() + IMPORT_MAX);
        Ok(())
    }

    /// Requests a worker. It waits until it is released.
    ///
    /// # Errors
    /// The server refuses, or is gone.
    pub(super) fn fork(&self, command: &Command, streams: [RawFd; 3]) -> Result<PausedWorker, NotForked> {
        let Some(link) = &self.link else { return Err(NotForked::Lost(io::ErrorKind::NotConnected.into())) };
        let command = &self.command.resolved(command);
        let notes = self.hook.notes_path();
        request::fork(&link.control, command, streams, &self.inherited(&notes))
    }

    /// Returns whether the server continues between runs.
    pub(crate) fn is_warm(&self) -> bool {
        self.search.is_some()
    }

    /// Ends the server, or a warm server's part for this run. Its workers continue, unless a warm server forked them.
    pub(crate) fn end(mut self, guard: &mut Guard) {
        if let Some(link) = &mut self.link {
            link.kill(guard);
        }
    }

    fn last_log_line(&self) -> Option<String> {
        let path = match &self.search {
            Some(search) if self.phase == ServerPhase::Importing => search.log()?,
            _ => self.hook.log_path(),
        };
        let mut file = File::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_MAX))).ok()?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    }
}

/// Makes the change for a server's end, with a sentence for the user.
fn gone(why: &str) -> ServerChange {
    ServerChange::Gone(Some(format!("no fork server: {why}; workers are executed")))
}
