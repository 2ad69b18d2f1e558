//! `enn logs`.

use super::{flags::RunArgs, output};
use crate::{Error, facts::Facts};
use enn_process::{
    logs::{self, LogFormat, LogLocation, LogReadError, LogReader, LogSelection, Printer},
    run_dir,
};
use enn_ui::runs::Need;
use std::io::Write;

/// Print what the workers of a run wrote, and follow it while the run goes on
///
/// RUN may also be a directory of logs, of enn run or of torchrun.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: RunArgs,
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

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let wanted =
        LogSelection { ranks: args.ranks.clone(), attempt: args.attempt, out: !args.stderr, err: !args.stdout };
    let mut printer = Printer::new(if args.json { LogFormat::Json } else { LogFormat::Text }, &wanted);
    let mut reading = LogReader::open(place(args, facts)?, wanted, args.lines, args.follow)?;
    let mut stdout = output::stdout()?;
    let mut out = Vec::new();
    let mut write = |out: &mut Vec<u8>| {
        let written = stdout.write_all(out);
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
    Ok(())
}

/// Returns a directory of logs as given, else the logs of a run.
fn place(args: &Args, facts: &Facts) -> Result<LogLocation, Error> {
    let given = facts.cwd.join(&args.which.run);
    if logs::are_in(&given) {
        return Ok(LogLocation { root: given, launch: None });
    }
    let root = args.which.find(Need::Any, facts)?;
    let launch = run_dir::logs(&root).into_iter().next();
    Ok(LogLocation { root, launch })
}
