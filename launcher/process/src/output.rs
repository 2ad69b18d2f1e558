//! The output of a short program, with a time limit.

use std::{
    io::{self, Read, Write},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Reasons for which a program gave no output.
#[derive(Debug)]
pub enum OutputError {
    Start(io::Error),
    /// The program failed; the last line of its standard error.
    Failed(String),
    /// The program did not end in time.
    TimedOut(Duration),
}

/// The output of a program, from its start to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// Exit code; -1: killed.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Returns the standard output of a program that succeeds within `wait_max`; else it is killed, and the last line of its errors returned.
pub fn output_within(command: Command, wait_max: Duration) -> Result<String, OutputError> {
    let output = run_within(command, "", wait_max)?;
    if output.code == 0 {
        return Ok(output.stdout);
    }
    let last = output.stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
    Err(OutputError::Failed(last.trim().to_owned()))
}

/// Runs a program with `input` on its standard input; it is killed if it does not end within `wait_max`.
pub fn run_within(mut command: Command, input: &str, wait_max: Duration) -> Result<CommandOutput, OutputError> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(OutputError::Start)?;
    let (sender, receiver) = mpsc::channel();
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let input = input.to_owned();
    // The threads are never joined: a grandchild that outlives a killed child would keep the pipes open.
    thread::spawn(move || {
        let errors = thread::spawn(move || read(stderr));
        if let Some(mut stdin) = stdin {
            // A program that does not read its input reports its own error.
            let _unread = stdin.write_all(input.as_bytes());
        }
        let _ = sender.send((read(stdout), errors.join().unwrap_or_default()));
    });
    let received = receiver.recv_timeout(wait_max);
    if received.is_err() {
        // The child may have ended meanwhile.
        let _ = child.kill();
    }
    let status = child.wait().map_err(OutputError::Start)?;
    let (stdout, stderr) = received.map_err(|_| OutputError::TimedOut(wait_max))?;
    Ok(CommandOutput { code: status.code().unwrap_or(-1), stdout, stderr })
}

fn read(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // The bytes read before an error are still shown.
        let _ = pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
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
