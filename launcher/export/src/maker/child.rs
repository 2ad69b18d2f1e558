//! A process in a group of its own, read line by line; the whole group ends with its owner.
//!
//! **Invariant:** every wait has a limit, and so has the stored output.

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

/// Limit on the bytes of a line; a longer one is split.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Limit on the lines that wait for their owner.
const LINES_WAITING_MAX: usize = 64;
/// Limits on the stored last lines of standard error, and on the bytes of each.
const LAST_LINES: usize = 40;
const LAST_LINE_BYTES_MAX: usize = 400;
const LOG_BYTES_MAX: u64 = 16 << 20;
/// Longest wait for the exit of a process that has closed its output.
const ENDING_WAIT_MAX: Duration = Duration::from_secs(1);
/// Longest wait for the end of standard error, once no process can write to it.
const LAST_LINES_WAIT_MAX: Duration = Duration::from_secs(5);

/// Destination of standard error.
#[derive(Debug)]
pub(super) enum Errors {
    /// The last lines are stored, and all lines are logged if there is a log.
    Kept(Option<File>),
    /// Lines are received like those of standard output.
    Received,
}

#[derive(Debug)]
pub(super) struct Child {
    process: process::Child,
    /// Queue to standard input; `None` once it is closed, or without one.
    input: Option<Sender<String>>,
    lines: Receiver<String>,
    ended: Receiver<()>,
    last_lines: Receiver<Vec<String>>,
    alive: bool,
}

impl Child {
    /// Starts the process. Where standard error is received, standard input is empty.
    pub(super) fn start(mut command: Command, errors: Errors) -> io::Result<Self> {
        command.process_group(0);
        let (mut output, writer) = pipe()?;
        let (send_line, lines) = bounded(LINES_WAITING_MAX);
        let (send_last_lines, last_lines) = bounded(1);
        let (alive, ended) = bounded(0);
        let log = match errors {
            Errors::Kept(log) => {
                command.stdin(Stdio::piped()).stderr(Stdio::piped());
                log
            }
            Errors::Received => {
                command.stdin(Stdio::null()).stderr(writer.try_clone()?);
                None
            }
        };
        let mut process = command.stdout(writer).spawn()?;
        // The command holds this side's ends of the pipe.
        drop(command);
        std::thread::spawn(move || {
            let _alive: Sender<()> = alive;
            let mut output = BufReader::new(&mut output);
            while let Some(line) = line(&mut output) {
                if send_line.send(line).is_err() {
                    return;
                }
            }
        });
        if let Some(errors) = process.stderr.take() {
            std::thread::spawn(move || send_last_lines.send(last(errors, log)));
        }
        let input = process.stdin.take().map(writer_to);
        Ok(Self { process, input, lines, ended, last_lines, alive: true })
    }

    /// Queues a line without waiting until it is read: a process that reads none, or has ended, is noticed when receiving.
    ///
    /// # Errors
    /// The previous line is still queued.
    pub(super) fn send(&self, line: String) -> io::Result<()> {
        match self.input.as_ref().map(|input| input.try_send(line)) {
            Some(Err(TrySendError::Full(_))) => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    }

    /// Returns a channel that is disconnected once the process has closed its output.
    pub(super) const fn ended(&self) -> &Receiver<()> {
        &self.ended
    }

    pub(super) fn receive(&mut self, wait_max: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(wait_max)
    }

    /// Ends the group; returns the exit and the last lines of standard error.
    pub(super) fn end(&mut self) -> (Option<process::ExitStatus>, Vec<String>) {
        // A process that ends by itself reports its exit: its output is complete by then, or very soon.
        let last_lines = self.last_lines.recv_timeout(ENDING_WAIT_MAX).ok();
        let own = self.process.try_wait().ok().flatten();
        self.kill();
        let status = own.or_else(|| self.process.wait().ok().filter(|_| last_lines.is_some()));
        (status, last_lines.unwrap_or_else(|| self.last_lines.recv_timeout(LAST_LINES_WAIT_MAX).unwrap_or_default()))
    }

    /// Waits for the exit of a process whose output has ended.
    pub(super) fn wait(&mut self) -> io::Result<process::ExitStatus> {
        let status = self.process.wait()?;
        self.kill();
        Ok(status)
    }

    /// Closes this end of standard input.
    #[cfg(test)]
    pub(super) fn hang_up(&mut self) {
        drop(self.input.take());
    }

    fn kill(&mut self) {
        if std::mem::take(&mut self.alive) {
            // The group may be empty.
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

/// Starts a writer of lines for as long as lines come and are read: a full pipe blocks this thread only.
fn writer_to(mut input: ChildStdin) -> Sender<String> {
    let (sender, lines) = bounded::<String>(1);
    std::thread::spawn(move || {
        for line in lines {
            if input.write_all((line + "\n").as_bytes()).is_err() {
                return;
            }
        }
    });
    sender
}

/// Reads the next line without its end; `None` when there is none, or it cannot be read.
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
        // A log that cannot be written is dropped.
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
