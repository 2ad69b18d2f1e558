//! The control server of a run: a socket on which `enn resize`, `pause`, `continue`, `drain` and `stop` ask for something.
//!
//! Its own thread reads one line of each caller within a deadline, hands one request after the other to the owner loop, and writes the
//! answers. **Invariant:** a caller that is slow, foreign or mad costs neither the run nor other callers anything; without
//! descriptors, a caller that says nothing makes room for the next one.

use crossbeam_channel::{Receiver, Sender, bounded};
use enn_broker::CONTROL_SOCKET;
use enn_common::descriptors::{self, Reserve};
use enn_common::wire::command::{Answer, LINE_BYTES_MAX, Request};
use enn_process::wait_ready;
use nix::{
    poll::{PollFd, PollFlags},
    sys::{
        eventfd::{EfdFlags, EventFd},
        socket::{getsockopt, sockopt::PeerCredentials},
    },
};
use std::{
    fs,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// File of the run directory that names the socket.
pub(crate) const CONTROL_FILE: &str = "control";
/// Time for a caller to send its request, and to read the answer.
const CALLER_WAIT_MAX: Duration = Duration::from_secs(5);
/// Callers at one time; the oldest that has said nothing makes room for another.
const CALLERS_MAX: usize = 64;
/// Rest after a caller could not be accepted.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Time for the owner loop to answer.
const OWNER_WAIT_MAX: Duration = Duration::from_secs(10);

/// A request and where its answer goes.
#[derive(Debug)]
pub(crate) struct ControlCommand {
    pub(crate) request: Request,
    pub(crate) reply: Sender<Answer>,
}

/// The control socket. Dropping it closes it, and removes the socket's file and the file that names it.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    commands: Receiver<ControlCommand>,
    wake: Arc<EventFd>,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
    file: PathBuf,
}

impl ControlSocket {
    /// Opens the socket in `directory`, which is private to the user, and names it in `run_dir`.
    pub(crate) fn open(directory: &Path, run_dir: &Path, host: &str) -> io::Result<Self> {
        let socket = directory.join(CONTROL_SOCKET);
        let file = run_dir.join(CONTROL_FILE);
        let listener = UnixListener::bind(&socket)?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Arc::new);
        let wake = event()?;
        let stop = event()?;
        let (commands_in, commands) = bounded(1);
        let server = ControlServer {
            listener,
            commands: commands_in,
            wake: wake.clone(),
            stop: stop.clone(),
            callers: Vec::new(),
            reserve: Reserve::new(),
            accept_at: None,
        };
        let thread = std::thread::Builder::new().name("enn-control".into()).spawn(move || server.serve())?;
        let control = Self { commands, wake, stop, thread: Some(thread), socket, file };
        let beside = control.file.with_extension("new");
        fs::write(&beside, format!("{}\n{host}\n", control.socket.display()))?;
        fs::rename(&beside, &control.file)?;
        Ok(control)
    }

    /// Returns a descriptor that is readable when requests wait.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Returns the requests that wait, and makes `fd` unreadable until the next one.
    pub(crate) fn take(&self) -> Vec<ControlCommand> {
        // Nothing to read means nothing to clear.
        let _empty = self.wake.read();
        self.commands.try_iter().collect()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Another node that leads the run by now has put its own name there.
        let named = fs::read_to_string(&self.file).is_ok_and(|text| text.lines().next() == self.socket.to_str());
        if named {
            // What cannot be removed is a leftover that leads nowhere.
            let _absent = fs::remove_file(&self.file);
        }
        // Whoever waits for an answer hears that none comes.
        drop(std::mem::replace(&mut self.commands, crossbeam_channel::never()));
        let _full = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
        let _absent = fs::remove_file(&self.socket);
    }
}

/// The thread's side.
struct ControlServer {
    listener: UnixListener,
    commands: Sender<ControlCommand>,
    wake: Arc<EventFd>,
    stop: Arc<EventFd>,
    /// In the order in which they came.
    callers: Vec<ControlCaller>,
    reserve: Reserve,
    /// When to accept again after it failed: until then a listener that stays ready is not looked at.
    accept_at: Option<Instant>,
}

struct ControlCaller {
    stream: UnixStream,
    line: Vec<u8>,
    /// Rest of the answer; `None` before the line is whole.
    answer: Option<Vec<u8>>,
    until: Instant,
}

enum CallerStep {
    Waits,
    /// The line is whole.
    Asks(Vec<u8>),
    Done,
}

impl ControlServer {
    fn serve(mut self) {
        while self.wait().is_ok_and(|open| open) {
            self.accept();
            let now = Instant::now();
            for mut caller in std::mem::take(&mut self.callers) {
                match caller.step() {
                    Ok(CallerStep::Waits) if now < caller.until => self.callers.push(caller),
                    Ok(CallerStep::Asks(line)) => {
                        caller.answer = Some(bytes(&self.answer(&line)));
                        caller.until = Instant::now() + CALLER_WAIT_MAX;
                        self.callers.push(caller);
                    }
                    Ok(CallerStep::Waits) => tracing::debug!("a caller at the control socket was too slow"),
                    Ok(CallerStep::Done) => {}
                    Err(error) => tracing::debug!(%error, "a caller at the control socket"),
                }
            }
        }
        // The answer to `enn stop` may be on its way.
        for caller in &mut self.callers {
            caller.finish();
        }
    }

    /// Waits until somebody comes, says or takes something, or somebody's time is over; false when the socket closes.
    fn wait(&self) -> io::Result<bool> {
        let listen = if self.accept_at.is_some() { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds =
            vec![PollFd::new(self.stop.as_fd(), PollFlags::POLLIN), PollFd::new(self.listener.as_fd(), listen)];
        fds.extend(self.callers.iter().map(|caller| {
            let wanted = if caller.answer.is_some() { PollFlags::POLLOUT } else { PollFlags::POLLIN };
            PollFd::new(caller.stream.as_fd(), wanted)
        }));
        wait_ready(&mut fds, self.callers.iter().map(|caller| caller.until).chain(self.accept_at).min())?;
        Ok(!fds[0].any().unwrap_or(true))
    }

    fn accept(&mut self) {
        if self.accept_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        self.accept_at = None;
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                    continue;
                }
                Err(error) => {
                    let exhausted = descriptors::are_exhausted(&error);
                    if exhausted && (self.evict() || self.reserve.refuse(|| self.listener.accept())) {
                        continue;
                    }
                    tracing::warn!(%error, "a caller at the control socket cannot be accepted; it waits");
                    self.accept_at = Some(Instant::now() + ACCEPT_REST);
                    return;
                }
            };
            if self.callers.len() >= CALLERS_MAX && !self.evict() {
                continue;
            }
            match ControlCaller::new(stream) {
                Ok(caller) => self.callers.push(caller),
                Err(error) => tracing::debug!(%error, "a caller at the control socket"),
            }
        }
    }

    /// Sends away the oldest caller that has not said what it wants; whether there was one.
    fn evict(&mut self) -> bool {
        let silent = self.callers.iter().position(|caller| caller.answer.is_none());
        silent.map(|at| self.callers.remove(at)).is_some()
    }

    fn answer(&self, line: &[u8]) -> Answer {
        let request: Request = match serde_json::from_slice(line) {
            Ok(request) => request,
            Err(error) => return Answer::Refused { reason: format!("this enn does not know the request: {error}") },
        };
        let ending = || Answer::Refused { reason: "the run is ending, or another node leads it".into() };
        let (reply, answer) = bounded(1);
        if self.commands.send_timeout(ControlCommand { request, reply }, OWNER_WAIT_MAX).is_err()
            || self.wake.write(1).is_err()
        {
            return ending();
        }
        answer.recv_timeout(OWNER_WAIT_MAX).unwrap_or_else(|error| {
            let silent = format!("its agent did not answer within {} s; ask again", OWNER_WAIT_MAX.as_secs());
            if error.is_timeout() { Answer::Refused { reason: silent } } else { ending() }
        })
    }
}

fn bytes(answer: &Answer) -> Vec<u8> {
    // An answer is two texts, which JSON always has a form for.
    format!("{}\n", serde_json::to_string(answer).unwrap_or_default()).into_bytes()
}

impl ControlCaller {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let uid = getsockopt(&stream, PeerCredentials)?.uid();
        let own = nix::unistd::geteuid().as_raw();
        let foreign = format!("the run belongs to user {own}, and user {uid} asked");
        let answer = (uid != own).then(|| bytes(&Answer::Refused { reason: foreign }));
        Ok(Self { stream, line: Vec::new(), answer, until: Instant::now() + CALLER_WAIT_MAX })
    }

    /// Goes on as far as possible without waiting.
    fn step(&mut self) -> io::Result<CallerStep> {
        if self.answer.is_some() {
            return self.write();
        }
        let mut chunk = [0; 1024];
        while self.line.len() <= LINE_BYTES_MAX {
            let read = match self.stream.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(CallerStep::Waits),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            self.line.extend_from_slice(&chunk[..read]);
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                self.line.truncate(end);
                return Ok(CallerStep::Asks(std::mem::take(&mut self.line)));
            }
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Err(io::Error::other("the line is too long"))
    }

    fn write(&mut self) -> io::Result<CallerStep> {
        while let Some(answer) = self.answer.as_mut().filter(|answer| !answer.is_empty()) {
            match self.stream.write(answer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(CallerStep::Waits),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => drop(answer.drain(..written?)),
            }
        }
        Ok(CallerStep::Done)
    }

    /// Writes what is left of its answer, for as long as its time allows.
    fn finish(&mut self) {
        while self.answer.is_some() && Instant::now() < self.until && matches!(self.write(), Ok(CallerStep::Waits)) {
            let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLOUT)];
            if wait_ready(&mut fds, Some(self.until)).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use std::io::{BufRead, BufReader};

    fn open() -> (tempfile::TempDir, ControlSocket) {
        let dir = tempfile::tempdir().unwrap();
        let control = ControlSocket::open(dir.path(), dir.path(), "here").unwrap();
        (dir, control)
    }

    const PAUSE: &[u8] = b"{\"command\":\"pause\"}\n";

    fn asking(control: &ControlSocket) -> UnixStream {
        let mut stream = UnixStream::connect(&control.socket).unwrap();
        stream.write_all(PAUSE).unwrap();
        stream
    }

    /// Answers the next request as the owner loop does.
    fn agree(control: &ControlSocket) {
        let mut fds = [PollFd::new(control.fd(), PollFlags::POLLIN)];
        wait_ready(&mut fds, Some(Instant::now() + OWNER_WAIT_MAX)).unwrap();
        let [command] = <[ControlCommand; 1]>::try_from(control.take()).unwrap();
        assert_eq!(command.request, Request::Pause {});
        command.reply.send(Answer::Accepted { says: "yes".into() }).unwrap();
    }

    fn answer_to(stream: UnixStream) -> String {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn callers_that_say_nothing_or_read_nothing_keep_nobody_waiting() {
        let (_dir, control) = open();
        let _silent: Vec<UnixStream> = (0..8).map(|_| UnixStream::connect(&control.socket).unwrap()).collect();
        let _deaf = asking(&control);
        agree(&control);
        let began = Instant::now();
        let caller = asking(&control);
        agree(&control);
        assert!(answer_to(caller).contains("accepted"));
        assert!(began.elapsed() < CALLER_WAIT_MAX, "it waited for {:?}", began.elapsed());
    }

    /// The limit is this process's: run each test in a process of its own.
    #[test]
    fn a_control_socket_without_descriptors_answers_all_the_same() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 128, hard).unwrap();
        let (_dir, control) = open();
        let mut crowd = Vec::new();
        while let Ok(stream) = UnixStream::connect(&control.socket) {
            crowd.push(stream);
        }
        assert!(crowd.len() > 30, "{}", crowd.len());
        // Test and thread share one table of descriptors: what the test gives back, the thread may take for callers that still wait. Who
        // is sent away without an answer asks again, as `enn` does.
        let began = Instant::now();
        let caller = loop {
            assert!(began.elapsed() < 10 * CALLER_WAIT_MAX, "it answers nobody any more");
            if let Ok(stream) = UnixStream::connect(&control.socket) {
                let mut fds = [PollFd::new(control.fd(), PollFlags::POLLIN)];
                let asked = (&stream).write_all(PAUSE);
                wait_ready(&mut fds, Some(Instant::now() + Duration::from_millis(500))).unwrap();
                if asked.is_ok() && fds[0].any() == Some(true) {
                    break stream;
                }
            }
            // All of them may be on the crowd's side by now: it gives one back.
            drop(crowd.pop().expect("room before the last of the crowd has gone"));
            std::thread::park_timeout(Duration::from_millis(20));
        };
        assert!(!crowd.is_empty());
        agree(&control);
        assert!(answer_to(caller).contains("accepted"));
    }
}
