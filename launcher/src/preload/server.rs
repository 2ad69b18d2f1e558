//! The fork server: first a question to its Python, then a process that imports and waits, then workers.
//!
//! Nothing here blocks but a request for a worker, which waits two seconds at most. The owner polls [`ForkServer::fds`] and calls
//! [`ForkServer::advance`].
//!
//! **Invariant:** the workers' own command is started with our hook in front only after the same Python has shown that it runs the
//! hook: one that does not would run the script.

use super::{
    Preload,
    frame::FrameReader,
    hook::Hook,
    request::{self, Inherited, NotForked, Waiting},
};
use crate::process::{
    Binding, Exit, Guard, Inlet, Outlet, Outlets, Process, StartError, ignored_signals, variables_of, wait_ready,
};
use enn_common::secrets;
use nix::{
    poll::{PollFd, PollFlags},
    sys::{
        signal::Signal,
        stat::{Mode, umask},
    },
};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// Longest time that a Python may take to say what it has.
const PROBE_MAX: Duration = Duration::from_secs(10);
/// Longest time that imports may take: a network file system that holds PyTorch can need most of a minute.
const IMPORT_MAX: Duration = Duration::from_secs(180);
/// Longest wait for the exit code of a server whose socket is closed, and for the end of one that was killed.
const LAST_WAIT: Duration = Duration::from_millis(200);
const KILL_WAIT: Duration = Duration::from_secs(2);
/// What of the server's own output is shown when it fails.
const SAID_BYTES_MAX: u64 = 4 << 10;
/// A command that does nothing: the hook answers before.
pub(super) const QUESTION: [&str; 3] = ["-u", "-c", "pass"];
/// The hook's folder comes before what the workers themselves find.
const PYTHONPATH: &str = "PYTHONPATH";
/// The least share of time that the scheduler knows for a session, sched(7).
const LEAST_TIME: &str = "19";
/// Begins the names of variables that only the hook reads.
const OURS: &str = "ENN_FORKSERVER_";

/// What the hook says once.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    /// What a Python has.
    Probe(Probed),
    /// The imports are done.
    Ready(Ready),
    /// No worker can be forked here.
    Refuse(String),
}

#[derive(Debug, Deserialize)]
struct Probed {
    found: BTreeMap<String, bool>,
    refuse: Option<String>,
    /// Name of the interpreter as it was executed, by a wrapper or by us; bytes as digits, for they need not be text.
    argv0: String,
    /// Its variables at its start, `NAME=VALUE` with a NUL byte between them; likewise.
    environment: String,
}

/// A server that waits for requests.
#[derive(Debug, Deserialize)]
pub(crate) struct Ready {
    /// Modules that were imported.
    pub(crate) modules: Vec<String>,
    /// Those that could not be.
    #[serde(default)]
    pub(crate) missing: Vec<Missing>,
    /// Time that the imports took.
    pub(crate) seconds: f64,
}

/// A module that could not be imported.
#[derive(Debug, Deserialize)]
pub(crate) struct Missing {
    /// Its name.
    pub(crate) name: String,
    /// The error's text.
    pub(crate) why: String,
}

/// What became of a server.
#[derive(Debug)]
pub(crate) enum Change {
    /// It takes requests from now on.
    Ready(Ready),
    /// There is none any more. `None`: nobody has to know why.
    Gone(Option<String>),
}

#[derive(Debug)]
enum ServerPhase {
    Probing,
    Importing,
    Serving,
}

/// A process of the server with its control socket.
#[derive(Debug)]
struct Child {
    process: Process,
    control: UnixStream,
    frames: FrameReader,
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
    child: Child,
    phase: ServerPhase,
    until: Option<Instant>,
}

impl ForkServer {
    /// Begins with the question to the Python of `command`, whose variables are those of every worker.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start(preload: Preload, command: Recipe, run_dir: &Path, guard: &mut Guard) -> io::Result<Self> {
        let hook = Hook::create(run_dir)?;
        let probe = Recipe { args: QUESTION.map(OsString::from).to_vec(), ..command.clone() };
        let child = Child::start(probe.command(), "probe", &preload, &hook, guard)?;
        // The mask can only be read by setting it; this process makes no file in between.
        let mask = umask(Mode::empty());
        umask(mask);
        Ok(Self {
            preload,
            command,
            hook,
            cwd: std::env::current_dir()?,
            umask: mask.bits(),
            ignored: ignored_signals(),
            child,
            phase: ServerPhase::Probing,
            until: Some(Instant::now() + PROBE_MAX),
        })
    }

    /// Whether workers should wait for it.
    pub(crate) fn is_loading(&self) -> bool {
        !matches!(self.phase, ServerPhase::Serving)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.process.pid()
    }

    /// Readable when [`ForkServer::advance`] has something to do.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(self.child.control.as_fd()), self.hook.notes_fd()].into_iter().flatten()
    }

    /// When it has to be looked at, whatever comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Notes that workers left: why one was executed after all, or what it ignored.
    pub(crate) fn take_notes(&self) -> Vec<String> {
        #[derive(Deserialize)]
        struct Note {
            why: String,
        }
        let text = |bytes: &Vec<u8>| serde_json::from_slice::<Note>(bytes).ok().map(|note| note.why);
        self.hook.take_notes().iter().filter_map(text).collect()
    }

    /// Reads what the server said, and goes on.
    pub(crate) fn advance(&mut self, guard: &mut Guard) -> Option<Change> {
        let said = match self.child.frames.read(&mut self.child.control) {
            Ok(Some(frame)) => {
                serde_json::from_slice(&frame).map_err(|error| format!("it said what is no answer: {error}"))
            }
            Ok(None) if self.until.is_some_and(|until| Instant::now() >= until) => {
                Err("it said nothing in time".to_owned())
            }
            Ok(None) => return None,
            Err(_) => Err(self.ended(guard)),
        };
        let change = match (&self.phase, said) {
            (_, Err(why)) => gone(&why),
            (_, Ok(Said::Refuse(why))) => gone(&why),
            (ServerPhase::Probing, Ok(Said::Probe(probed))) => return self.probed(probed, guard),
            (ServerPhase::Importing, Ok(Said::Ready(ready))) => {
                self.phase = ServerPhase::Serving;
                self.until = None;
                Change::Ready(ready)
            }
            (_, Ok(_)) => gone("it answered what it was not asked"),
        };
        Some(change)
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
        match Child::start(self.command.command(), "serve", &self.preload, &self.hook, guard) {
            Ok(child) => {
                let mut probe = std::mem::replace(&mut self.child, child);
                probe.kill(guard);
                self.phase = ServerPhase::Importing;
                self.until = Some(Instant::now() + IMPORT_MAX);
                None
            }
            Err(error) => Some(gone(&format!("it cannot be started: {error}"))),
        }
    }

    /// Asks for a worker. It waits until it is released.
    ///
    /// # Errors
    /// The server will not, or cannot any more.
    pub(super) fn fork(&self, command: &Command, streams: [RawFd; 3]) -> Result<Waiting, NotForked> {
        let command = &self.command.resolved(command);
        let notes = self.hook.notes_path();
        let inherited = Inherited { cwd: &self.cwd, umask: self.umask, notes: &notes, ignored: &self.ignored };
        request::fork(&self.child.control, command, streams, &inherited)
    }

    /// Ends the server. Its workers live on.
    pub(crate) fn end(mut self, guard: &mut Guard) {
        self.child.kill(guard);
    }

    /// How the process ended, and what it wrote.
    fn ended(&mut self, guard: &mut Guard) -> String {
        self.child.wait(LAST_WAIT);
        let how = match self.child.process.reap(guard) {
            Some(Exit::Code(code)) => format!("it ended with code {code}"),
            Some(Exit::Signal(signal)) => format!("it ended by signal {signal}"),
            None => "it closed its socket".to_owned(),
        };
        match self.last_words() {
            Some(said) => format!("{how}: {said}"),
            None => how,
        }
    }

    /// The last line that the server wrote.
    fn last_words(&self) -> Option<String> {
        let (_, path) = self.hook.log().ok()?;
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

impl Child {
    /// Starts a Python with the hook in front.
    fn start(mut command: Command, what: &str, preload: &Preload, hook: &Hook, guard: &mut Guard) -> io::Result<Self> {
        let (control, theirs) = UnixStream::pair()?;
        control.set_nonblocking(true)?;
        let own = variables_of(&command).into_iter().find(|(name, _)| name == PYTHONPATH);
        let mut paths = hook.path().as_os_str().to_owned();
        // An empty one is as good as none, and behind a colon would be the working directory.
        if let Some((_, own)) = own.filter(|(_, own)| !own.is_empty()) {
            paths.push(":");
            paths.push(own);
        }
        command
            .env(PYTHONPATH, paths)
            .env("ENN_FORKSERVER_FD", theirs.as_raw_fd().to_string())
            .env("ENN_FORKSERVER_PRELOAD", preload.modules.join(","))
            .env("ENN_FORKSERVER_WHAT", what);
        let log = Outlet::from(hook.log()?.0);
        let outlets = Outlets { stdin: Inlet::Empty, stdout: log.try_clone()?, stderr: log };
        let binding = Binding::inheriting(theirs.as_raw_fd()).in_new_session();
        let process = Process::start(&command, outlets, binding, guard);
        let process = process.map_err(|error| match error {
            StartError::Spawn(error) | StartError::Watch(error) => error,
        })?;
        if preload.behind {
            // It gets the time that workers leave. Each of them leads a session, and so has a group of its own for the scheduler.
            let _refused = fs::write(format!("/proc/{}/autogroup", process.pid()), LEAST_TIME);
        }
        Ok(Self { process, control, frames: FrameReader::default() })
    }

    /// Kills and reaps it.
    fn kill(&mut self, guard: &mut Guard) {
        self.process.signal(Signal::SIGKILL);
        self.wait(KILL_WAIT);
        self.process.reap(guard);
    }

    fn wait(&self, longest: Duration) {
        let mut fds = [PollFd::new(self.process.pidfd(), PollFlags::POLLIN)];
        // One that cannot be waited for is reaped where it is dropped.
        let _failed = wait_ready(&mut fds, Some(Instant::now() + longest));
    }
}

/// A command that is started more than once.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    program: OsString,
    args: Vec<OsString>,
    /// Changes of the launcher's own variables.
    changes: Vec<(OsString, Option<OsString>)>,
    /// What a wrapper around the interpreter changes besides.
    wrapped: Vec<(OsString, Option<OsString>)>,
}

impl Recipe {
    /// Of this command.
    pub(super) fn of(command: &Command) -> Self {
        let changes = command.get_envs().map(|(name, value)| (name.to_owned(), value.map(OsStr::to_owned)));
        Self {
            program: command.get_program().to_owned(),
            args: command.get_args().map(OsStr::to_owned).collect(),
            changes: changes.collect(),
            wrapped: Vec::new(),
        }
    }

    fn command(&self) -> Command {
        let mut command = secrets::command(&self.program);
        command.args(&self.args);
        for (name, value) in self.changes.iter().chain(&self.wrapped) {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Takes the interpreter itself in place of what stands before it, and what that does to the variables. `None`: it makes no sense.
    fn resolve(&mut self, probed: &Probed) -> Option<()> {
        let given: BTreeMap<OsString, OsString> = variables_of(&self.command()).into_iter().collect();
        let bytes = from_digits(&probed.environment)?;
        let entries = bytes.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
        let found = entries.map(|entry| {
            let end = entry.iter().position(|byte| *byte == b'=')?;
            Some((OsString::from_vec(entry[..end].to_vec()), OsString::from_vec(entry[end + 1..].to_vec())))
        });
        let found: BTreeMap<OsString, OsString> = found.collect::<Option<_>>()?;
        let ours = |name: &OsString| name == PYTHONPATH || name.as_bytes().starts_with(OURS.as_bytes());
        let set = found.iter().filter(|(name, value)| given.get(*name) != Some(*value));
        let set = set.map(|(name, value)| (name.clone(), Some(value.clone())));
        let unset = given.keys().filter(|name| !found.contains_key(*name)).map(|name| (name.clone(), None));
        self.wrapped = set.chain(unset).filter(|(name, _)| !ours(name)).collect();
        self.program = OsString::from_vec(from_digits(&probed.argv0)?);
        Some(())
    }

    /// The command of a worker with the interpreter itself.
    fn resolved(&self, command: &Command) -> Command {
        Self { program: self.program.clone(), wrapped: self.wrapped.clone(), ..Self::of(command) }.command()
    }
}

/// Bytes that were written as two digits each.
fn from_digits(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::try_from(digit(*pair.first()?)? * 16 + digit(*pair.get(1)?)?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digits(text: &str) -> String {
        text.bytes().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn what_a_wrapper_changes_is_given_to_every_worker() {
        let mut command = Command::new("python3");
        command.args(["-u", "a.py"]).env("KEPT", "1").env("REPLACED", "old").env("LOST", "x");
        let mut recipe = Recipe::of(&command);
        let mut seen: BTreeMap<OsString, OsString> = variables_of(&command).into_iter().collect();
        seen.remove(OsStr::new("LOST"));
        seen.insert("REPLACED".into(), "new".into());
        seen.insert("PYTHONPATH".into(), "/hook".into());
        seen.insert("ENN_FORKSERVER_FD".into(), "7".into());
        let entries: Vec<String> =
            seen.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect();
        let probed = Probed {
            found: BTreeMap::new(),
            refuse: None,
            argv0: digits("/real/python3"),
            environment: digits(&entries.join("\0")),
        };
        recipe.resolve(&probed).unwrap();
        let changed: Vec<(OsString, Option<OsString>)> =
            vec![("REPLACED".into(), Some("new".into())), ("LOST".into(), None)];
        assert_eq!(recipe.wrapped, changed);
        command.env("RANK", "1");
        let worker = recipe.resolved(&command);
        let variables: BTreeMap<OsString, OsString> = variables_of(&worker).into_iter().collect();
        let value = |name: &str| variables.get(OsStr::new(name)).map(|value| value.to_str().unwrap());
        assert_eq!(
            (value("RANK"), value("REPLACED"), value("LOST"), value("KEPT")),
            (Some("1"), Some("new"), None, Some("1"))
        );
        assert_eq!(worker.get_program(), "/real/python3");
        for wrong in ["0", "zz", "é"] {
            assert_eq!(from_digits(wrong), None);
        }
    }
}
