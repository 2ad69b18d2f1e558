//! The script for sbatch, as text: printed by `enn slurm script` and submitted by `enn slurm submit`.
//!
//! Its last line replaces the shell by srun. So the signal that Slurm sends to the batch script before the time
//! limit reaches srun, which passes it on to `enn` on every node; each saves, and the host requeues the job.
//!
//! **Invariant:** the text holds no secret. The token of the run is generated when the job runs and passed in the environment.

use super::SlurmError;
use std::fmt::Write;

/// Default for the seconds before the time limit at which a run begins to save.
pub const SIGNAL_BEFORE_S: u32 = 90;
/// Slurm's own limit for that number.
const SIGNAL_BEFORE_S_MAX: u32 = 65_535;
/// Default output file. Slurm makes no folders.
const OUTPUT: &str = "%x-%j.log";

/// Options of the job. `None` leaves the choice to the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobOptions {
    pub job_name: Option<String>,
    pub nodes: u32,
    /// GPUs of each node: a number, or TYPE:NUMBER.
    pub gpus_per_node: Option<String>,
    pub cpus_per_node: Option<u32>,
    pub mem: Option<String>,
    pub time: Option<String>,
    pub partition: Option<String>,
    pub account: Option<String>,
    /// Quality of service.
    pub qos: Option<String>,
    pub output: Option<String>,
    pub no_requeue: bool,
    /// Seconds before the time limit at which the run saves; `None`: [`SIGNAL_BEFORE_S`].
    pub signal_before: Option<u32>,
    /// Further options for sbatch, one line each.
    pub sbatch_args: Vec<String>,
    /// Whether the run continues after the loss of a node.
    pub elastic: bool,
}

/// Returns the script that runs `program` once on every node of the job.
pub fn script(options: &JobOptions, program: &[String]) -> Result<String, SlurmError> {
    let mut text = "#!/bin/bash\n".to_owned();
    for line in directives(options, program)? {
        let _infallible = writeln!(text, "#SBATCH {line}");
    }
    text.push_str(
        "\nset -euo pipefail\n\n\
         # The nodes of the run know each other by this secret, which is in no file and on no command line.\n\
         ENN_TOKEN=${ENN_TOKEN:-$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \\n')}\n\
         export ENN_TOKEN\n\n\
         # In the place of this shell srun receives Slurm's signals and passes them on to every node.\n",
    );
    let nodes = "\"$SLURM_JOB_NUM_NODES\"";
    let _infallible =
        writeln!(text, "exec srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpu-bind=none \\");
    let lost = if options.elastic { "--kill-on-bad-exit=0 --no-kill" } else { "--kill-on-bad-exit=1" };
    let _infallible = writeln!(text, "\t{lost} --export=ALL \\");
    let words: Vec<String> = program.iter().map(|word| quoted(word)).collect();
    let _infallible = writeln!(text, "\t{}", words.join(" "));
    Ok(text)
}

/// Returns the lines after #SBATCH.
fn directives(options: &JobOptions, program: &[String]) -> Result<Vec<String>, SlurmError> {
    let name = options.job_name.clone().unwrap_or_else(|| job_name(program));
    let output = options.output.as_deref().unwrap_or(OUTPUT);
    let mut lines = vec![directive("--job-name", &name)?, format!("--nodes={}", count("--nodes", options.nodes)?)];
    lines.push("--ntasks-per-node=1".to_owned());
    if let Some(gpus) = &options.gpus_per_node {
        lines.push(directive("--gpus-per-node", gpus)?);
    }
    if let Some(cores) = options.cpus_per_node {
        lines.push(format!("--cpus-per-task={}", count("--cpus-per-task", cores)?));
    }
    let texts = [
        ("--mem", &options.mem),
        ("--time", &options.time),
        ("--partition", &options.partition),
        ("--account", &options.account),
        ("--qos", &options.qos),
    ];
    for (option, value) in texts {
        if let Some(value) = value {
            lines.push(directive(option, value)?);
        }
    }
    lines.extend([directive("--output", output)?, "--open-mode=append".to_owned()]);
    lines.push(if options.no_requeue { "--no-requeue" } else { "--requeue" }.to_owned());
    if options.elastic {
        lines.push("--no-kill".to_owned());
    }
    lines.push(format!("--signal=B:USR1@{}", signal_before(options)?));
    for argument in &options.sbatch_args {
        lines.push(free(argument)?);
    }
    Ok(lines)
}

/// Returns the stem of the script or configuration that runs.
fn job_name(program: &[String]) -> String {
    let file = program.iter().skip(1).find(|word| [".py", ".toml", ".sh"].iter().any(|end| word.ends_with(end)));
    let stem =
        file.and_then(|file| file.rsplit('/').next()).and_then(|name| name.rsplit_once('.')).map(|(stem, _)| stem);
    let kept: String = stem.unwrap_or("enn").chars().filter(|c| c.is_alphanumeric() || "._-".contains(*c)).collect();
    if kept.is_empty() { "enn".to_owned() } else { kept }
}

fn refused(option: &'static str, value: &str, reason: &'static str) -> SlurmError {
    SlurmError::Option { option, value: value.to_owned(), reason }
}

fn count(option: &'static str, value: u32) -> Result<u32, SlurmError> {
    if value == 0 { Err(refused(option, "0", "asks for nothing")) } else { Ok(value) }
}

/// Returns `--option=value`, when sbatch parses it back unchanged.
fn directive(option: &'static str, value: &str) -> Result<String, SlurmError> {
    let plain = |c: char| c.is_alphanumeric() || "%_-+.,:/@=~^[]*&|()!".contains(c);
    match value {
        "" => Err(refused(option, value, "is empty")),
        _ if value.starts_with('-') => Err(refused(option, value, "begins with a hyphen")),
        _ if value.chars().all(plain) => Ok(format!("{option}={value}")),
        _ => Err(refused(option, value, "has a character that a line of #SBATCH cannot hold")),
    }
}

/// Returns an option that the user wrote for sbatch, unchanged.
fn free(argument: &str) -> Result<String, SlurmError> {
    match argument {
        _ if argument.contains(['\n', '\r', '\0']) => Err(refused("--sbatch-arg", argument, "has more than one line")),
        _ if !argument.starts_with('-') => {
            Err(refused("--sbatch-arg", argument, "is no option; write --sbatch-arg=--exclusive, for example"))
        }
        _ if ["--wrap", "--array", "-a", "--ntasks", "-n"].iter().any(|name| names(argument, name)) => {
            Err(refused("--sbatch-arg", argument, "does not fit a script that starts one task on each node"))
        }
        _ => Ok(argument.to_owned()),
    }
}

/// Returns whether the option is `name`, alone or with a value.
fn names(argument: &str, name: &str) -> bool {
    argument.strip_prefix(name).is_some_and(|rest| {
        rest.is_empty()
            || rest.starts_with(['=', ' '])
            || (name.len() == 2 && rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

fn signal_before(options: &JobOptions) -> Result<u32, SlurmError> {
    let seconds = options.signal_before.unwrap_or(SIGNAL_BEFORE_S);
    let text = seconds.to_string();
    if seconds == 0 || seconds > SIGNAL_BEFORE_S_MAX {
        return Err(refused("--signal-before", &text, "is not between 1 and 65535 seconds"));
    }
    let Some(limit) = options.time.as_deref().map(limit_s).transpose()? else { return Ok(seconds) };
    match limit {
        Some(limit) if limit <= u64::from(seconds) => {
            Err(refused("--signal-before", &text, "is no shorter than --time: the run would save before it began"))
        }
        _ => Ok(seconds),
    }
}

/// Parses a time limit in Slurm's forms into seconds: MIN, MIN:S, H:M:S, D-H, D-H:M, D-H:M:S; `None`: unlimited.
fn limit_s(text: &str) -> Result<Option<u64>, SlurmError> {
    if ["UNLIMITED", "INFINITE"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return Ok(None);
    }
    let wrong = || refused("--time", text, "is no time limit; write minutes, HH:MM:SS or D-HH:MM:SS");
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(days.parse::<u32>().map_err(|_| wrong())?), rest),
        None => (None, text),
    };
    let parts = rest.split(':').map(|part| part.parse::<u32>().map(u64::from));
    let parts = parts.collect::<Result<Vec<_>, _>>().map_err(|_| wrong())?;
    let seconds = match (days, parts.as_slice()) {
        (Some(_), [hours]) => hours * 3600,
        (Some(_), [hours, minutes]) => hours * 3600 + minutes * 60,
        (_, [hours, minutes, seconds]) => hours * 3600 + minutes * 60 + seconds,
        (None, [minutes]) => minutes * 60,
        (None, [minutes, seconds]) => minutes * 60 + seconds,
        _ => return Err(wrong()),
    };
    Ok(Some(u64::from(days.unwrap_or(0)) * 86_400 + seconds))
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "%_-+.,:/@=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
#[path = "script_tests.rs"]
mod tests;
