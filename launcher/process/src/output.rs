//! The output of a short program, with a time limit.

use std::{
    io::{self, Read},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// Bytes of a child's output that are read.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Reasons for which a program gave no output.
#[derive(Debug)]
pub enum OutputError {
    /// The program could not be started.
    Start(io::Error),
    /// The program failed; the last line of its standard error.
    Failed(String),
    /// The program did not end in time.
    TimedOut(Duration),
}

/// Returns the standard output of a program that succeeds within `wait_max`; else it is killed, and the last line of its errors returned.
pub fn output_within(mut command: Command, wait_max: Duration) -> Result<String, OutputError> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(OutputError::Start)?;
    let (sender, receiver) = mpsc::channel();
    let out = child.stdout.take();
    let err = child.stderr.take();
    // The thread is never joined: a grandchild that outlives a killed child would keep the pipes open.
    thread::spawn(move || {
        // Standard error is read after standard output: such a program writes little to either.
        let _ = sender.send((read(out), read(err)));
    });
    let received = receiver.recv_timeout(wait_max);
    if received.is_err() {
        end(&mut child);
    }
    let status = child.wait().map_err(OutputError::Start)?;
    let (output, errors) = received.map_err(|_| OutputError::TimedOut(wait_max))?;
    if status.success() {
        return Ok(output);
    }
    let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
    Err(OutputError::Failed(last.trim().to_owned()))
}

fn read(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // The bytes read before an error are still shown.
        let _ = pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn end(child: &mut Child) {
    // The child may have ended meanwhile.
    let _ = child.kill();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_child_that_hangs_is_killed_at_its_limit() {
        let wait_max = Duration::from_millis(200);
        let begun = std::time::Instant::now();
        let ended = output_within(shell("exec sleep 60"), wait_max);
        assert!(matches!(ended, Err(OutputError::TimedOut(limit)) if limit == wait_max));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_child_that_fails_is_quoted() {
        let wait_max = Duration::from_secs(10);
        let failed = output_within(shell("echo first >&2; echo 'libtorch_cpu.so: not found' >&2; exit 127"), wait_max);
        assert!(matches!(failed, Err(OutputError::Failed(line)) if line == "libtorch_cpu.so: not found"));
        assert_eq!(output_within(shell("echo fine"), wait_max).unwrap(), "fine\n");
        let absent = output_within(Command::new("/nowhere/program"), wait_max);
        assert!(matches!(absent, Err(OutputError::Start(_))));
    }
}
