//! Running a command of Slurm, bounded in time and output.

use super::SlurmError;
use enn_common::secrets;
pub use enn_process::CommandOutput;
use enn_process::{OutputError, run_within};
use std::{ffi::OsString, io, time::Duration};

pub(super) const SUBMIT: &str = "sbatch";

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs Slurm's commands. Tests return captured output instead.
pub trait Commands {
    /// Runs a command to its end, with `input` on its standard input.
    fn run(&self, program: &'static str, args: &[OsString], input: &str) -> Result<CommandOutput, SlurmError>;
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemCommands;

impl Commands for SystemCommands {
    fn run(&self, program: &'static str, args: &[OsString], input: &str) -> Result<CommandOutput, SlurmError> {
        // A submitted job script takes the environment along, and the nodes of the job authenticate by its token.
        let mut command = if program == SUBMIT { secrets::trusted_command(program) } else { secrets::command(program) };
        command.args(args);
        run_within(command, input, ANSWER_TIMEOUT).map_err(|error| match error {
            OutputError::Start(source) if source.kind() == io::ErrorKind::NotFound => SlurmError::NoProgram { program },
            OutputError::Start(source) => SlurmError::Run { program, source },
            OutputError::Failed(line) => SlurmError::Run { program, source: io::Error::other(line) },
            OutputError::TimedOut(limit) => SlurmError::Silent { program, seconds: limit.as_secs() },
        })
    }
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
