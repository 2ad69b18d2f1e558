//! The agent's door for people: a socket on which `enn resize`, `pause`, `continue`, `drain` and `stop` ask for something.
//!
//! Its own thread talks to one caller at a time: checks who it is, reads one line within a deadline, hands the request to the
//! agent and writes the agent's answer. **Invariant:** a caller that is slow, foreign or mad costs the agent nothing.

use crate::process::wait_ready;
use crossbeam_channel::{Receiver, Sender, bounded};
use enn_broker::CONTROL_SOCKET;
use enn_common::wire::command::{Answer, LINE_BYTES_MAX, Request};
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
pub(super) const FILE: &str = "control";
/// Time a caller has to say what it wants, and to hear the answer.
const CALLER_WAIT_MAX: Duration = Duration::from_secs(5);
/// Time the agent has to answer.
const AGENT_WAIT_MAX: Duration = Duration::from_secs(10);

/// A request and where its answer goes.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) request: Request,
    pub(super) reply: Sender<Answer>,
}

/// The door. Dropping it closes it, and removes the socket and the file that names it.
#[derive(Debug)]
pub(super) struct Control {
    commands: Receiver<Command>,
    wake: Arc<EventFd>,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
    file: PathBuf,
}

impl Control {
    /// Opens the door in `directory`, which is private to the user, and names it in `run_dir`.
    pub(super) fn open(directory: &Path, run_dir: &Path, host: &str) -> io::Result<Self> {
        let (socket, file) = (directory.join(CONTROL_SOCKET), run_dir.join(FILE));
        let listener = UnixListener::bind(&socket)?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Arc::new);
        let (wake, stop) = (event()?, event()?);
        let (commands_in, commands) = bounded(1);
        let door = Door { listener, commands: commands_in, wake: wake.clone(), stop: stop.clone() };
        let thread = std::thread::Builder::new().name("enn-control".into()).spawn(move || door.serve())?;
        let control = Self { commands, wake, stop, thread: Some(thread), socket, file };
        let beside = control.file.with_extension("new");
        fs::write(&beside, format!("{}\n{host}\n", control.socket.display()))?;
        fs::rename(&beside, &control.file)?;
        Ok(control)
    }

    /// Readable when somebody asks for something.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// What is asked for. Makes `fd` unreadable until more is.
    pub(super) fn take(&self) -> Vec<Command> {
        // Nothing to read means nothing to clear.
        let _empty = self.wake.read();
        self.commands.try_iter().collect()
    }
}

impl Drop for Control {
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
struct Door {
    listener: UnixListener,
    commands: Sender<Command>,
    wake: Arc<EventFd>,
    stop: Arc<EventFd>,
}

impl Door {
    fn serve(&self) {
        while self.ready(self.listener.as_fd(), PollFlags::POLLIN, None).is_ok() {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.caller(stream) {
                        tracing::debug!(%error, "a caller at the control socket");
                    }
                }
                // It went away again; or there is no descriptor for it, which a wait for the next one does not mend.
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) => return,
                Err(_) => {}
            }
        }
    }

    fn caller(&self, mut stream: UnixStream) -> io::Result<()> {
        let (uid, own) = (getsockopt(&stream, PeerCredentials)?.uid(), nix::unistd::geteuid().as_raw());
        stream.set_nonblocking(true)?;
        let answer = if uid == own {
            self.answer(&mut stream)?
        } else {
            Answer::Refused { reason: format!("the run belongs to user {own}, and user {uid} asked") }
        };
        let line = format!("{}\n", serde_json::to_string(&answer).map_err(io::Error::other)?);
        write(&mut stream, line.as_bytes())
    }

    fn answer(&self, stream: &mut UnixStream) -> io::Result<Answer> {
        let line = self.line(stream)?;
        let request: Request = match serde_json::from_slice(&line) {
            Ok(request) => request,
            Err(error) => {
                return Ok(Answer::Refused { reason: format!("this enn does not know the request: {error}") });
            }
        };
        let (reply, answer) = bounded(1);
        let gone = || io::Error::other("the agent is gone");
        self.commands.send_timeout(Command { request, reply }, AGENT_WAIT_MAX).map_err(|_| gone())?;
        self.wake.write(1)?;
        Ok(answer.recv_timeout(AGENT_WAIT_MAX).unwrap_or_else(|error| {
            let silent = format!("its agent did not answer within {} s; ask again", AGENT_WAIT_MAX.as_secs());
            let reason = if error.is_timeout() { silent } else { "the run is ending, or another node leads it".into() };
            Answer::Refused { reason }
        }))
    }

    /// One line, without its end.
    fn line(&self, stream: &mut UnixStream) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + CALLER_WAIT_MAX;
        let (mut line, mut chunk) = (Vec::new(), [0; 1024]);
        while line.len() <= LINE_BYTES_MAX {
            self.ready(stream.as_fd(), PollFlags::POLLIN, Some(deadline))?;
            let read = match stream.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                read => read?,
            };
            line.extend_from_slice(&chunk[..read]);
            if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
                line.truncate(end);
                return Ok(line);
            }
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Err(io::Error::other("the line is too long"))
    }

    /// Waits until `fd` is ready; an error when time is up or the door closes.
    fn ready(&self, fd: BorrowedFd<'_>, flags: PollFlags, deadline: Option<Instant>) -> io::Result<()> {
        let mut fds = [PollFd::new(fd, flags), PollFd::new(self.stop.as_fd(), PollFlags::POLLIN)];
        wait_ready(&mut fds, deadline)?;
        let [caller, stop] = fds.map(|fd| fd.any().unwrap_or(false));
        match (stop, caller) {
            (true, _) => Err(io::Error::other("the door closes")),
            (false, true) => Ok(()),
            (false, false) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Also while the door closes: the answer to `enn stop` may be on its way then.
fn write(stream: &mut UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    let deadline = Instant::now() + CALLER_WAIT_MAX;
    while !bytes.is_empty() && Instant::now() < deadline {
        match stream.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_ready(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)], Some(deadline))?;
            }
            written => bytes = &bytes[written?..],
        }
    }
    Ok(())
}
