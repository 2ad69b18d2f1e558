//! `enn logs`.

use super::flags::Runs;
use crate::{
    Error,
    facts::Facts,
    logs::{Form, LogReadError, Printer, Reading, Wanted},
    run_dir,
};
use enn_common::exit::ExitCode;
use std::{
    io::{self, Write},
    path::PathBuf,
};

/// Print what the workers of a run wrote, and follow it while the run goes on
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run: its directory, its name, the beginning of its name, "latest", or a directory of logs
    #[arg(value_name = "RUN", help_heading = "Job")]
    run: String,
    #[command(flatten)]
    runs: Runs,
    /// Only this rank; may be repeated [default: all]
    ///
    /// Of a program started by enn run: its local rank, as its log directory is named.
    #[arg(long = "rank", value_name = "N", help_heading = "Job")]
    ranks: Vec<u32>,
    /// Only this attempt (of enn train: this round) [default: the last]
    #[arg(long, value_name = "N", help_heading = "Job")]
    attempt: Option<u32>,
    /// Only standard output
    #[arg(long, conflicts_with = "stderr", help_heading = "Output")]
    stdout: bool,
    /// Only standard error
    #[arg(long, help_heading = "Output")]
    stderr: bool,
    /// Go on as the logs grow, also into later attempts, until the run ends
    #[arg(long, short, help_heading = "Output")]
    follow: bool,
    /// Begin with the last lines of each log [default: all lines]
    #[arg(short = 'n', long = "lines", value_name = "LINES", help_heading = "Output")]
    lines: Option<usize>,
    /// Print a JSON object for each line: attempt, rank, stream, line
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let wanted = Wanted { ranks: args.ranks.clone(), attempt: args.attempt, out: !args.stderr, err: !args.stdout };
    let mut printer = Printer::new(if args.json { Form::Json } else { Form::Text }, &wanted);
    let mut reading = Reading::open(&directory(args, facts)?, wanted, args.lines, args.follow)?;
    let mut stdout = io::stdout().lock();
    let mut out = Vec::new();
    let mut write = |out: &mut Vec<u8>| {
        let written = stdout.write_all(out).and_then(|()| stdout.flush());
        out.clear();
        written
    };
    let read = reading.read(|log, bytes| {
        printer.print(log, bytes, &mut out);
        write(&mut out)
    });
    match read {
        Err(LogReadError::Output(source)) => return Err(Error::Output(source)),
        read => read?,
    }
    printer.finish(&mut out);
    write(&mut out).map_err(Error::Output)?;
    Ok(ExitCode::Success)
}

/// A directory as given when it has logs, else the run of that name.
fn directory(args: &Args, facts: &Facts) -> Result<PathBuf, Error> {
    let runs = args.runs.dir(facts);
    let given = [facts.cwd.join(&args.run), runs.join(&args.run)];
    if let Some(dir) = given.into_iter().find(|dir| crate::logs::are_in(dir)) {
        return Ok(dir);
    }
    Ok(run_dir::find(&runs, &args.run)?)
}
