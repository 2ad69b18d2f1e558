//! The fork server: first a question to its Python, then a process that imports and waits, then workers.
//!
//! Nothing here blocks but a request for a worker, which waits two seconds at most. The owner polls [`ForkServer::fds`] and calls
//! [`ForkServer::advance`].
//!
//! **Invariant:** the workers' own command is started with our hook in front only after the same Python has shown that it runs the
//! hook: one that does not would run the script.

use super::{
    Preload,
    hook::Hook,
    link::{IMPORT, Link, Probed, Ready, Said},
    recipe::Recipe,
    request::{self, Inherited, JoinRequest, NotForked, Waiting},
    search::Search,
};
use crate::process::{Guard, ignored_signals};
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

/// Longest time that a Python may take to say what it has, and a server that is ready to answer.
const PROBE_MAX: Duration = Duration::from_secs(10);
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Longest time that imports may take: a network file system that holds PyTorch can need most of a minute.
const IMPORT_MAX: Duration = Duration::from_secs(180);
/// What of the server's own output is shown when it fails.
const SAID_BYTES_MAX: u64 = 4 << 10;
/// A command that does nothing: the hook answers before.
pub(super) const QUESTION: [&str; 3] = ["-u", "-c", "pass"];

/// What became of a server.
#[derive(Debug)]
pub(crate) enum Change {
    /// It takes requests from now on.
    Ready(Ready),
    /// There is none any more. `None`: nobody has to know why.
    Gone(Option<String>),
}

/// What the server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerPhase {
    /// The Python is asked what it has.
    Probing,
    /// A warm server is asked whether it fits.
    Asking,
    /// The server imports.
    Importing,
    /// It takes requests.
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
    /// Among the warm servers of this user; `None`: the run has a server of its own.
    search: Option<Search>,
    /// The Python has said what it has.
    probed: bool,
    /// Sentences for the user.
    told: Vec<String>,
}

impl ForkServer {
    /// Begins with the question to the Python of `command`, whose variables are those of every worker, or with one to warm servers.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start(preload: Preload, command: Recipe, run_dir: &Path, guard: &mut Guard) -> io::Result<Self> {
        // The mask can only be read by setting it; this process makes no file in between.
        let mask = umask(Mode::empty());
        umask(mask);
        let search = preload.warm.as_ref().map(Search::new).transpose()?;
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
            told: Vec::new(),
        };
        // What a wrapper does depends on where it is started, and on files of its own.
        if server.search.is_none() || server.command.is_wrapped() || !server.ask_next() {
            server.probe(guard)?;
        }
        Ok(server)
    }

    /// Asks the Python what it has.
    fn probe(&mut self, guard: &mut Guard) -> io::Result<()> {
        let question = self.command.with_args(QUESTION).command();
        self.link = Some(Link::start(question, "probe", &self.preload, &self.hook, guard)?);
        self.phase = ServerPhase::Probing;
        self.until = Some(Instant::now() + PROBE_MAX);
        Ok(())
    }

    /// Asks the next warm server whether it fits; `false`: there is none.
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

    /// Whether workers should wait for it.
    pub(crate) fn is_loading(&self) -> bool {
        self.phase != ServerPhase::Serving
    }

    /// Children of the launcher that are the server's.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        let started = self.search.as_ref().and_then(Search::started);
        self.link.as_ref().and_then(Link::pid).into_iter().chain(started)
    }

    /// Readable when [`ForkServer::advance`] has something to do.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.link.iter().map(Link::fd).chain(self.hook.notes_fd())
    }

    /// When it has to be looked at, whatever comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Sentences for the user: why a worker was executed after all or what it ignored, and why another server was needed.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        #[derive(Deserialize)]
        struct Note {
            why: String,
        }
        let text = |bytes: &Vec<u8>| serde_json::from_slice::<Note>(bytes).ok().map(|note| note.why);
        let mut notes = std::mem::take(&mut self.told);
        notes.extend(self.hook.take_notes().iter().filter_map(text));
        notes
    }

    /// Reads what the server said, and goes on.
    pub(crate) fn advance(&mut self, guard: &mut Guard) -> Option<Change> {
        let said = match self.link.as_mut()?.said(guard) {
            Ok(Some(said)) => Ok(said),
            Ok(None) if self.until.is_some_and(|until| Instant::now() >= until) => {
                Err("it said nothing in time".to_owned())
            }
            Ok(None) => return None,
            Err(how) => Err(self.last_words().map_or_else(|| how.clone(), |said| format!("{how}: {said}"))),
        };
        match (self.phase, said) {
            (ServerPhase::Asking, Err(why) | Ok(Said::Refuse(why))) => self.refused(why, guard),
            (_, Err(why) | Ok(Said::Refuse(why))) => Some(gone(&why)),
            (ServerPhase::Probing, Ok(Said::Probe(probed))) => self.probed(probed, guard),
            (ServerPhase::Asking | ServerPhase::Importing, Ok(Said::Ready(ready))) => self.ready(ready, guard),
            (_, Ok(_)) => Some(gone("it answered what it was not asked")),
        }
    }

    /// The server takes requests, if it is one for this run.
    fn ready(&mut self, mut ready: Ready, guard: &mut Guard) -> Option<Change> {
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
        // What else of PyTorch is imported was not asked for by name.
        ready.missing.retain(|missing| self.preload.modules.contains(&missing.name));
        self.phase = ServerPhase::Serving;
        self.until = None;
        Some(Change::Ready(ready))
    }

    /// A warm server does not fit: the next one is asked, or another one is started.
    fn refused(&mut self, why: String, guard: &mut Guard) -> Option<Change> {
        if let Some(search) = &mut self.search {
            search.refused(why);
        }
        if self.ask_next() {
            return None;
        }
        let begun = if self.probed { self.import(guard) } else { self.probe(guard) };
        begun.err().map(|error| gone(&format!("it cannot be started: {error}")))
    }

    /// The Python has shown that it runs the hook: the server itself is started, if there is something to import.
    fn probed(&mut self, probed: Probed, guard: &mut Guard) -> Option<Change> {
        if let Some(why) = probed.refuse {
            return Some(gone(&why));
        }
        if !probed.found.values().any(|found| *found) {
            // What the user did not ask for and does not have is no news.
            if !self.preload.asked {
                return Some(Change::Gone(None));
            }
            let names: Vec<&str> = probed.found.keys().map(String::as_str).collect();
            return Some(gone(&format!("its Python has no {}", names.join(", "))));
        }
        if self.command.resolve(&probed).is_none() {
            return Some(gone("it answered what is no environment"));
        }
        self.probed = true;
        if let Some(mut probe) = self.link.take() {
            probe.kill(guard);
        }
        if self.search.as_ref().is_some_and(|search| !search.has_begun()) && self.ask_next() {
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
                if let Some(why) = search.why() {
                    self.told.push(format!("no warm server fits: {why}; another one is started"));
                }
                search.start(&self.command, &self.preload, &request)?
            }
        });
        self.phase = ServerPhase::Importing;
        self.until = Some(Instant::now() + IMPORT_MAX);
        Ok(())
    }

    /// Asks for a worker. It waits until it is released.
    ///
    /// # Errors
    /// The server will not, or cannot any more.
    pub(super) fn fork(&self, command: &Command, streams: [RawFd; 3]) -> Result<Waiting, NotForked> {
        let Some(link) = &self.link else { return Err(NotForked::Lost(io::ErrorKind::NotConnected.into())) };
        let command = &self.command.resolved(command);
        let notes = self.hook.notes_path();
        request::fork(&link.control, command, streams, &self.inherited(&notes))
    }

    /// Whether it lives on between runs.
    pub(crate) fn is_warm(&self) -> bool {
        self.search.is_some()
    }

    /// Ends the server, or what a warm one did for this run. Its workers live on, unless a warm one forked them.
    pub(crate) fn end(mut self, guard: &mut Guard) {
        if let Some(link) = &mut self.link {
            link.kill(guard);
        }
    }

    /// The last line that the server wrote.
    fn last_words(&self) -> Option<String> {
        let path = match &self.search {
            Some(search) if self.phase == ServerPhase::Importing => search.log()?,
            _ => self.hook.log().ok()?.1,
        };
        let mut file = File::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(SAID_BYTES_MAX))).ok()?;
        let mut bytes = Vec::new();
        file.take(SAID_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    }
}

/// The end of a server, as a sentence for the user.
fn gone(why: &str) -> Change {
    Change::Gone(Some(format!("no fork server: {why}; workers are executed")))
}
