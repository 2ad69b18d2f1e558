//! Running a command of Slurm, bounded in time and output.

use super::SlurmError;
use enn_common::secrets;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    ffi::OsString,
    io::{self, Read, Write},
    process::{Child, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// The program that submits jobs.
pub(super) const SUBMIT: &str = "sbatch";

/// Longest wait for a command.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit on the bytes read of a command's output.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Output of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// Exit code; -1: killed.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs Slurm's commands. Tests return captured output instead.
pub trait Commands {
    /// Runs a command to its end, with `input` on its standard input.
    fn run(&self, program: &'static str, args: &[OsString], input: &str) -> Result<CommandOutput, SlurmError>;
}

/// The commands on PATH.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemCommands;

impl Commands for SystemCommands {
    fn run(&self, program: &'static str, args: &[OsString], input: &str) -> Result<CommandOutput, SlurmError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => SlurmError::NoProgram { program },
            _ => SlurmError::Run { program, source },
        };
        // A submitted job script takes the environment along, and the nodes of the job authenticate by its token.
        let mut command = if program == SUBMIT { secrets::trusted_command(program) } else { secrets::command(program) };
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(failed)?;
        let pid = Pid::from_raw(i32::try_from(child.id()).map_err(|_| failed(io::ErrorKind::InvalidData.into()))?);
        let (send, answer) = mpsc::channel();
        let input = input.to_owned();
        thread::spawn(move || send.send(listen(child, &input)));
        match answer.recv_timeout(ANSWER_TIMEOUT) {
            Ok(output) => output.map_err(failed),
            Err(_) => {
                // The thread reaps the command and ends; the process id is valid until then.
                let _gone = kill(pid, Signal::SIGKILL);
                Err(SlurmError::Silent { program, seconds: ANSWER_TIMEOUT.as_secs() })
            }
        }
    }
}

/// Writes the input, reads both streams to their end, then the exit code.
fn listen(mut child: Child, input: &str) -> io::Result<CommandOutput> {
    let mut stderr = child.stderr.take();
    let errors = thread::spawn(move || text(stderr.as_mut()));
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read its input reports its own error.
        let _unread = stdin.write_all(input.as_bytes());
    }
    let stdout = text(child.stdout.as_mut())?;
    let stderr = errors.join().map_err(|_| io::Error::other("the thread that reads its errors died"))??;
    Ok(CommandOutput { code: child.wait()?.code().unwrap_or(-1), stdout, stderr })
}

fn text(stream: Option<&mut impl Read>) -> io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the standard output of a command that must succeed.
pub(super) fn answer(
    commands: &dyn Commands,
    program: &'static str,
    args: &[OsString],
    input: &str,
) -> Result<String, SlurmError> {
    let output = commands.run(program, args, input)?;
    if output.code == 0 {
        return Ok(output.stdout);
    }
    let stderr = if output.stderr.trim().is_empty() { "it printed nothing" } else { output.stderr.trim() };
    Err(SlurmError::Refused { program, code: output.code, stderr: stderr.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_heard() {
        let output = SystemCommands.run("sh", &["-c".into(), "cat; echo no >&2; exit 3".into()], "yes\n").unwrap();
        assert_eq!(output, CommandOutput { code: 3, stdout: "yes\n".into(), stderr: "no\n".into() });
        let error = answer(&SystemCommands, "sh", &["-c".into(), "echo no >&2; exit 3".into()], "").unwrap_err();
        assert_eq!(error.to_string(), "sh failed with code 3: no");
    }

    #[test]
    fn a_command_that_is_not_there() {
        let error = SystemCommands.run("no-such-slurm-command", &[], "").unwrap_err();
        assert!(error.to_string().starts_with("no-such-slurm-command was not found on PATH"));
    }
}
