//! A process in a group of its own, heard line by line; the whole group ends with its owner.
//!
//! **Invariant:** every wait has a limit, and what is kept of what it prints has one.

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write, pipe},
    os::unix::process::CommandExt,
    process::{self, ChildStdin, Command, Stdio},
    time::Duration,
};

/// Longest line, bytes; what is longer is cut in two.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Lines heard that wait for their owner.
const LINES_WAITING_MAX: usize = 64;
/// Last lines of standard error that are kept, and bytes of each.
const LAST_LINES: usize = 40;
const LAST_LINE_BYTES_MAX: usize = 400;
/// Largest log.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// Longest wait for the end of a process that has closed its output.
const ENDING_WAIT_MAX: Duration = Duration::from_secs(1);
/// Longest wait for the end of standard error, once nobody is left to write to it.
const LAST_WORDS_WAIT_MAX: Duration = Duration::from_secs(5);

/// Where standard error goes.
#[derive(Debug)]
pub(super) enum Errors {
    /// Its last lines are kept, all of it in a log if there is one.
    Kept(Option<File>),
    /// It is heard like standard output.
    Heard,
}

/// Why no line came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    /// The limit has passed.
    Late,
    /// There will be none.
    Ended,
}

/// The process.
#[derive(Debug)]
pub(super) struct Child {
    process: process::Child,
    /// Lines on their way to it; `None` once its input is closed, or where it has none.
    said: Option<Sender<String>>,
    lines: Receiver<String>,
    ended: Receiver<()>,
    last_lines: Receiver<Vec<String>>,
    alive: bool,
}

impl Child {
    /// Starts it. Where standard error is heard, standard input is empty.
    pub(super) fn start(mut command: Command, errors: Errors) -> io::Result<Self> {
        command.process_group(0);
        let (mut output, writer) = pipe()?;
        let (say, lines) = bounded(LINES_WAITING_MAX);
        let (tell, last_lines) = bounded(1);
        let (alive, ended) = bounded(0);
        let log = match errors {
            Errors::Kept(log) => {
                command.stdin(Stdio::piped()).stderr(Stdio::piped());
                log
            }
            Errors::Heard => {
                command.stdin(Stdio::null()).stderr(writer.try_clone()?);
                None
            }
        };
        let mut process = command.stdout(writer).spawn()?;
        // It holds this side's ends of the pipe.
        drop(command);
        std::thread::spawn(move || {
            let _alive: Sender<()> = alive;
            let mut output = BufReader::new(&mut output);
            while let Some(line) = line(&mut output) {
                if say.send(line).is_err() {
                    return;
                }
            }
        });
        if let Some(errors) = process.stderr.take() {
            std::thread::spawn(move || tell.send(last(errors, log)));
        }
        let said = process.stdin.take().map(writer_to);
        Ok(Self { process, said, lines, ended, last_lines, alive: true })
    }

    /// Sends a line, and does not wait for it to be taken: of one that takes none, or has ended, that is heard.
    ///
    /// # Errors
    /// The last line still lies there.
    pub(super) fn say(&self, line: String) -> io::Result<()> {
        match self.said.as_ref().map(|said| said.try_send(line)) {
            Some(Err(TrySendError::Full(_))) => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    }

    /// Is disconnected once it has closed its output.
    pub(super) const fn ended(&self) -> &Receiver<()> {
        &self.ended
    }

    /// The next line.
    pub(super) fn hear(&mut self, wait_max: Duration) -> Result<String, Silence> {
        self.lines.recv_timeout(wait_max).map_err(|error| match error {
            RecvTimeoutError::Timeout => Silence::Late,
            RecvTimeoutError::Disconnected => Silence::Ended,
        })
    }

    /// Ends the group, and gives how the process ended and the last lines of its standard error.
    pub(super) fn end(&mut self) -> (Option<process::ExitStatus>, Vec<String>) {
        // Whoever ends by itself says how: its words are over once it has, or very soon will have.
        let words = self.last_lines.recv_timeout(ENDING_WAIT_MAX).ok();
        let own = self.process.try_wait().ok().flatten();
        self.kill();
        let status = own.or_else(|| self.process.wait().ok().filter(|_| words.is_some()));
        (status, words.unwrap_or_else(|| self.last_lines.recv_timeout(LAST_WORDS_WAIT_MAX).unwrap_or_default()))
    }

    /// Waits for the end of a process that has nothing more to say.
    pub(super) fn wait(&mut self) -> io::Result<process::ExitStatus> {
        let status = self.process.wait()?;
        self.kill();
        Ok(status)
    }

    /// Closes this end of its standard input.
    #[cfg(test)]
    pub(super) fn hang_up(&mut self) {
        drop(self.said.take());
    }

    fn kill(&mut self) {
        if std::mem::take(&mut self.alive) {
            // Nobody may be left in it.
            let _ = killpg(Pid::from_raw(self.process.id().cast_signed()), Signal::SIGKILL);
            let _ = self.process.wait();
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Writes lines as long as somebody says some and somebody reads them: a pipe that is full holds up nobody else.
fn writer_to(mut input: ChildStdin) -> Sender<String> {
    let (said, lines) = bounded::<String>(1);
    std::thread::spawn(move || {
        for line in lines {
            if input.write_all((line + "\n").as_bytes()).is_err() {
                return;
            }
        }
    });
    said
}

/// The next line without its end; `None` when there is none, or it cannot be read.
fn line(from: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line).ok().filter(|read| *read > 0)?;
    Some(String::from_utf8_lossy(&line).trim_end().to_owned())
}

fn last(errors: impl Read, mut log: Option<File>) -> Vec<String> {
    let mut errors = BufReader::new(errors);
    let mut kept = VecDeque::new();
    let mut logged = 0;
    while let Some(mut line) = line(&mut errors) {
        logged += line.len() as u64 + 1;
        // A log that cannot be written is none.
        log = log.filter(|mut log| logged <= LOG_BYTES_MAX && writeln!(log, "{line}").is_ok());
        if line.is_empty() {
            continue;
        }
        line.truncate(line.floor_char_boundary(LAST_LINE_BYTES_MAX));
        if kept.len() == LAST_LINES {
            kept.pop_front();
        }
        kept.push_back(line);
    }
    kept.into()
}
