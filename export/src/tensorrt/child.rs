//! A child process that answers jobs: JSON, a line each, within a time limit.
//!
//! **Invariant:** it is killed with everything that it started when it is late, says too much, or nobody holds it any longer; and it
//! ends by itself when its stdin does, should this process die.

use nix::{
    sys::{
        signal::{Signal, killpg},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};
use serde_json::Value;
use std::{
    collections::VecDeque,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{self, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Longest answer: numbers of the outputs, in hexadecimal digits.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// So long may it take from the end of its answers to its own.
const END_SECONDS_MAX: u64 = 5;
/// What is kept of the end of what it printed.
const PRINTED_BYTES_MAX: usize = 2000;

/// A child at work.
#[derive(Debug)]
pub(super) struct Child {
    process: process::Child,
    /// To the thread that writes them, so that a child that does not read keeps nobody waiting.
    jobs: Option<SyncSender<String>>,
    answers: Receiver<io::Result<String>>,
    printed: Option<JoinHandle<String>>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Fault {
    /// It was told so: of a kind, in words.
    Said { kind: String, why: String },
    /// The process is gone or had to be killed: why.
    Ended(String),
}

impl Child {
    /// Starts a Python with a script.
    pub(super) fn start(python: &Path, script: &str) -> io::Result<Self> {
        let mut process = Command::new(python)
            .args(["-I", "-W", "ignore", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (send, answers) = sync_channel(1);
        let (jobs, given) = sync_channel::<String>(1);
        let (stdin, out, printed) = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        thread::spawn(move || stdin.map(|mut stdin| given.iter().try_for_each(|job| writeln!(stdin, "{job}"))));
        thread::spawn(move || out.map(|out| read_lines(BufReader::new(out), &send)));
        let printed = thread::spawn(move || printed.map(end_of).unwrap_or_default());
        Ok(Self { process, jobs: Some(jobs), answers, printed: Some(printed) })
    }

    /// The answer to a job.
    pub(super) fn ask(&mut self, job: &Value, limit: Duration) -> Result<Value, Fault> {
        // Where it cannot be sent, the process is gone, and so are its answers.
        let _sent = self.jobs.as_ref().map(|jobs| jobs.send(job.to_string()));
        let line = match self.answers.recv_timeout(limit) {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => return Err(self.stopped(error.to_string())),
            Err(RecvTimeoutError::Timeout) => {
                return Err(self.stopped(format!("it was not done within {} s", limit.as_secs_f64())));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
        };
        let mut answer: Value = match serde_json::from_str(&line) {
            Ok(answer) => answer,
            Err(error) => return Err(self.stopped(format!("its answer is no JSON: {error}"))),
        };
        let text = |part: &str| answer["error"][part].as_str().map(str::to_owned);
        match (text("kind"), text("why")) {
            (Some(kind), Some(why)) => Err(Fault::Said { kind, why }),
            _ => Ok(answer["ok"].take()),
        }
    }

    /// Kills it.
    fn stopped(&mut self, why: String) -> Fault {
        self.kill();
        Fault::Ended(why)
    }

    /// How it ended, and what it printed last.
    fn ended(&mut self) -> Fault {
        self.await_end();
        self.kill();
        let status = self.process.wait();
        let how = match status.as_ref().map(|status| (status.code(), status.signal())) {
            Ok((Some(code), _)) => format!("its process ended with code {code}"),
            Ok((None, Some(signal))) => format!("its process was ended by signal {signal}"),
            _ => "its process ended".to_owned(),
        };
        let printed = self.printed.take().and_then(|printed| printed.join().ok()).unwrap_or_default();
        let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
        Fault::Ended(if printed.is_empty() { how } else { format!("{how}; it said last: {printed}") })
    }

    /// Gives it time to end; its number stays its own.
    fn await_end(&self) {
        let (send, end) = sync_channel(1);
        let Some(id) = self.id() else { return };
        thread::spawn(move || {
            let _waited = waitid(Id::Pid(id), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
            let _late = send.send(());
        });
        let _killed_next = end.recv_timeout(Duration::from_secs(END_SECONDS_MAX));
    }

    fn id(&self) -> Option<Pid> {
        i32::try_from(self.process.id()).ok().map(Pid::from_raw)
    }

    /// It and what it started. Its number is its own: it has not been waited for.
    fn kill(&mut self) {
        if let (Ok(None), Some(id)) = (self.process.try_wait(), self.id()) {
            let _gone = killpg(id, Signal::SIGKILL);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.jobs.take());
        self.kill();
        let _reaped = self.process.wait();
    }
}

fn read_lines(mut out: impl BufRead, send: &SyncSender<io::Result<String>>) {
    loop {
        let mut line = String::new();
        let read = out.by_ref().take(ANSWER_BYTES_MAX).read_line(&mut line);
        let line = match read {
            Ok(0) => return,
            Ok(_) if line.ends_with('\n') => Ok(line),
            Ok(count) => Err(io::Error::other(format!("its answer broke off after {count} bytes"))),
            Err(error) => Err(error),
        };
        let over = line.is_err();
        if send.send(line).is_err() || over {
            return;
        }
    }
}

/// The end of what a stream brings until its own end.
fn end_of(mut stream: impl Read) -> String {
    let (mut kept, mut block) = (VecDeque::new(), [0; 4096]);
    while let Ok(count) = stream.read(&mut block) {
        if count == 0 {
            break;
        }
        kept.extend(&block[..count]);
        kept.drain(..kept.len().saturating_sub(PRINTED_BYTES_MAX));
    }
    String::from_utf8_lossy(kept.make_contiguous()).into_owned()
}
