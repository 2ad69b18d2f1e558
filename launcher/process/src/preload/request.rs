//! The request to the fork server for one worker.

use super::frame::{self, FrameReader};
use crate::{Exit, Parent, inherited_descriptors, variables_of};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::Deserialize;
use std::{
    ffi::{OsStr, OsString},
    io::{self, ErrorKind, IoSlice, Write},
    os::{
        fd::{AsRawFd, RawFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    path::Path,
    process::Command,
    time::Duration,
};

const VERSION: &str = "1";
/// Longest wait for an answer of the server.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// Announces a connection on the control socket.
const CONNECTION: &[u8] = b"c";
/// Lets a worker begin.
const GO: &[u8] = b"g";
/// Asks a warm server for a worker's exit.
const HOW: &[u8] = b"e";
/// First field of a run's request for workers of a warm server.
const JOIN: &[u8] = b"join";

/// Attributes that an executed worker would inherit, and the socket for a forked worker's notes.
pub(super) struct Inherited<'a> {
    pub(super) cwd: &'a Path,
    pub(super) umask: u32,
    /// Path of the socket for notes.
    pub(super) notes: &'a Path,
    /// Signals that an executed worker would inherit as ignored.
    pub(super) ignored: &'a [i32],
}

#[derive(Debug)]
pub(super) enum NotForked {
    /// The server refuses this request, with the reason; it serves others.
    Refused(String),
    /// The server is gone, silent, or answers with another protocol.
    Lost(io::Error),
}

impl From<io::Error> for NotForked {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

/// A forked worker that waits. Dropping it ends the worker.
#[derive(Debug)]
pub struct PausedWorker {
    pub(super) pid: u32,
    connection: UnixStream,
}

/// A warm server as the parent of a worker; it reaps the worker when its connection closes.
#[derive(Debug)]
struct WarmParent(UnixStream);

impl Parent for WarmParent {
    fn exit(&mut self) -> io::Result<Exit> {
        #[derive(Deserialize)]
        struct Ended {
            exit: Exit,
        }
        self.0.write_all(HOW)?;
        let frame = FrameReader::default().read(&mut self.0)?.ok_or(ErrorKind::TimedOut)?;
        Ok(serde_json::from_slice::<Ended>(&frame)?.exit)
    }
}

impl PausedWorker {
    pub(super) fn warm_parent(&self) -> io::Result<Box<dyn Parent>> {
        Ok(Box::new(WarmParent(self.connection.try_clone()?)))
    }

    /// Lets the worker begin. If it has ended meanwhile, its exit is handled as usual.
    pub fn release(mut self) {
        let _ended = self.connection.write_all(GO);
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Pid(u32),
    Refuse(String),
}

/// Requests a worker over a connection of its own, and waits until it is forked. `streams` are its standard input, output and error.
pub(super) fn fork(
    control: &UnixStream,
    command: &Command,
    streams: [RawFd; 3],
    inherited: &Inherited<'_>,
) -> Result<PausedWorker, NotForked> {
    let (mut connection, theirs) = UnixStream::pair()?;
    connection.set_read_timeout(Some(SILENCE_MAX))?;
    connection.set_write_timeout(Some(SILENCE_MAX))?;
    send(control, CONNECTION, &[theirs.as_raw_fd()])?;
    drop(theirs);
    let request = frame::encode(&encode(command, inherited))?;
    let sent = send(&connection, &request, &streams)?;
    connection.write_all(&request[sent..])?;
    match FrameReader::default().read(&mut connection)? {
        None => Err(NotForked::Lost(ErrorKind::TimedOut.into())),
        Some(reply) => match serde_json::from_slice(&reply).map_err(io::Error::from)? {
            Reply::Pid(pid) if pid > 1 => Ok(PausedWorker { pid, connection }),
            Reply::Pid(pid) => Err(NotForked::Lost(io::Error::other(format!("pid {pid} is no worker's")))),
            Reply::Refuse(why) => Err(NotForked::Refused(why)),
        },
    }
}

/// Sends bytes together with descriptors; returns the number of bytes sent.
fn send(socket: &UnixStream, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    let rights = [ControlMessage::ScmRights(fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
    Ok(sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, MsgFlags::MSG_NOSIGNAL, None)?)
}

/// A run's request to a warm server for workers like those of a command.
#[derive(Debug)]
pub(super) struct JoinRequest {
    pub(super) body: Vec<u8>,
    /// Descriptors that executed workers inherit, beyond the standard streams.
    pub(super) fds: Vec<RawFd>,
}

impl JoinRequest {
    /// Makes the request for workers of `command`. `leave`: their background processes continue after the run.
    ///
    /// # Errors
    /// The descriptors of this process cannot be listed.
    pub(super) fn new(command: &Command, leave: bool, inherited: &Inherited<'_>) -> io::Result<Self> {
        let leave: &[u8] = if leave { b"1" } else { b"0" };
        let fds = inherited_descriptors()?;
        let numbers = fds.iter().map(RawFd::to_string).collect::<Vec<_>>().join(",");
        Ok(Self { body: [JOIN, leave, numbers.as_bytes(), &encode(command, inherited)].join(&0), fds })
    }

    pub(super) fn send(&self, stream: &mut UnixStream) -> io::Result<()> {
        let frame = frame::encode(&self.body)?;
        let sent = send(stream, &frame, &self.fds)?;
        stream.write_all(&frame[sent..])
    }
}

/// Encodes the fields of a request, separated by NUL bytes, which no argument, variable or path can hold.
fn encode(command: &Command, inherited: &Inherited<'_>) -> Vec<u8> {
    let number = |number: usize| OsString::from(number.to_string());
    let ignored = inherited.ignored.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
    let args: Vec<OsString> = command.get_args().map(OsStr::to_owned).collect();
    let variables = variables_of(command).into_iter().map(|(mut entry, value)| {
        entry.push("=");
        entry.push(value);
        entry
    });
    let variables: Vec<OsString> = variables.collect();
    let mut fields: Vec<OsString> = vec![
        VERSION.into(),
        std::process::id().to_string().into(),
        inherited.cwd.into(),
        inherited.umask.to_string().into(),
        inherited.notes.into(),
        ignored.into(),
        number(args.len()),
    ];
    fields.extend(args);
    fields.extend([command.get_program().to_owned(), number(variables.len())]);
    fields.extend(variables);
    let fields: Vec<&[u8]> = fields.iter().map(|field| field.as_bytes()).collect();
    fields.join(&0)
}

#[cfg(test)]
mod tests {
    use super::{super::unix, *};
    use std::{io::Read, thread};

    fn inherited() -> Inherited<'static> {
        Inherited { cwd: Path::new("/w"), umask: 0o22, notes: Path::new("/n"), ignored: &[1, 3] }
    }

    /// Plays the server: takes one connection, answers, and returns the request.
    fn serve(control: &UnixStream, reply: &[u8]) -> (Vec<u8>, UnixStream) {
        let mut connection = unix::received_stream(control).unwrap();
        let request = FrameReader::default().read(&mut connection).unwrap().unwrap();
        connection.write_all(&frame::encode(reply).unwrap()).unwrap();
        (request, connection)
    }

    fn ask(reply: &'static [u8]) -> (Result<PausedWorker, NotForked>, Vec<u8>, UnixStream) {
        let (control, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || serve(&theirs, reply));
        let mut command = Command::new("python3");
        command.args(["-u", "train.py", "a b"]).env_clear().env("EMPTY", "").env("RANK", "3");
        let asked = fork(&control, &command, [0, 1, 2], &inherited());
        let (request, connection) = server.join().unwrap();
        (asked, request, connection)
    }

    #[test]
    fn a_request_holds_everything_and_the_worker_waits_until_it_is_released() {
        let (asked, request, mut connection) = ask(b"{\"pid\": 4711}");
        let fields: Vec<&str> = std::str::from_utf8(&request).unwrap().split('\0').collect();
        let pid = std::process::id().to_string();
        assert_eq!(fields[..7], ["1", &pid, "/w", "18", "/n", "1,3", "3"]);
        assert_eq!(fields[7..11], ["-u", "train.py", "a b", "python3"]);
        assert!(fields[12..].contains(&"EMPTY=") && fields[12..].contains(&"RANK=3"), "{fields:?}");
        assert_eq!(fields[11].parse(), Ok(fields.len() - 12));
        let waiting = asked.unwrap();
        assert_eq!(waiting.pid, 4711);
        waiting.release();
        let mut rest = Vec::new();
        connection.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, GO);
    }

    #[test]
    fn a_worker_that_is_not_wanted_sees_the_end() {
        let (asked, _, mut connection) = ask(b"{\"pid\": 4711}");
        drop(asked);
        assert_eq!(connection.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn refusals_are_told_and_nonsense_is_a_lost_server() {
        assert!(matches!(ask(b"{\"refuse\": \"no\"}").0, Err(NotForked::Refused(why)) if why == "no"));
        for reply in [&b"{}"[..], b"[1]", b"{\"pid\": 0}", b"{\"pid\": -4}", b"\xff"] {
            assert!(matches!(ask(reply).0, Err(NotForked::Lost(_))), "{reply:?}");
        }
    }

    #[test]
    fn a_silent_server_is_waited_for_two_seconds() {
        let (control, _theirs) = UnixStream::pair().unwrap();
        let began = std::time::Instant::now();
        let asked = fork(&control, &Command::new("python3"), [0, 1, 2], &inherited());
        assert!(matches!(asked, Err(NotForked::Lost(_))));
        assert!((SILENCE_MAX..SILENCE_MAX * 3).contains(&began.elapsed()));
    }
}
