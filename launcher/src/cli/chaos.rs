//! `enn chaos`.

use super::{flags::RunArgs, output};
use crate::{
    Error,
    chaos::{self, ChaosEnd, ChaosError, ChaosOptions, FaultKind, Rate, Schedule},
    facts::Facts,
};
use enn_cluster::supervise::{self, Asker};
use enn_common::{exit::ExitCode, wire::command::Request};
use enn_process::run_dir;
use enn_ui::runs::Need;
use nix::sys::signal::Signal;
use std::io::Write;

/// Time of a schedule that is only printed, unless --for is given; seconds.
const DRY_S: f64 = 600.0;
/// Default duration of a cut link; seconds.
const CUT_S: f64 = 10.0;

/// Disturb a run that is under way: kill, stop, slow and starve its workers at random times
///
/// It shows whether a run goes on through faults. Only workers of this run are hit, and only those on this host and of this user: before
/// every signal the process must be below the run's launcher and recorded in the run's journal. A worker that waits as a spare is not hit.
/// Every fault is a line here and in chaos.jsonl of the run.
///
/// A rate is a mean number of faults in a time: the times between faults are random (a Poisson process), decided by --seed. The time behind
/// the colon is the duration of a fault. Times are 500ms, 2s, 10m or 1h.
///
/// It ends with the run, after --for, or at Ctrl-C or SIGTERM, and then undoes lasting faults. After SIGKILL they remain: `kill -CONT`
/// continues a stopped worker.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("faults").required(true).multiple(true)))]
pub(super) struct Args {
    #[command(flatten)]
    which: RunArgs,
    /// Kill a worker by SIGKILL, e.g. 1/60s
    #[arg(long, value_name = "N/TIME", value_parser = chaos::rate, group = "faults", help_heading = "Faults")]
    kill: Option<Rate>,
    /// Stop a worker by SIGSTOP and let it go on, e.g. 1/60s:2s [without a length: 2s]
    #[arg(long, value_name = "N/TIME:LENGTH", value_parser = chaos::rate, group = "faults", help_heading = "Faults")]
    stop: Option<Rate>,
    /// Slow a worker down: it stands half of the time, 50 ms each, e.g. 1/60s:10s [without a length: 10s]
    #[arg(long, value_name = "N/TIME:LENGTH", value_parser = chaos::rate, group = "faults", help_heading = "Faults")]
    slow: Option<Rate>,
    /// Let a worker write no file, e.g. 1/120s:5s [without a length: 5s]
    ///
    /// Its limit of file sizes (RLIMIT_FSIZE) becomes 0 for that long. A write then fails with EFBIG where a full disk gives
    /// ENOSPC. A worker of enn train takes both alike: the checkpoint fails, the one before stands, training goes on. Another
    /// program must ignore SIGXFSZ, which comes with it; else it ends the program.
    #[arg(long, value_name = "N/TIME:LENGTH", value_parser = chaos::rate, group = "faults", help_heading = "Faults")]
    enospc: Option<Rate>,
    /// Cut the link between a node and the one that leads, once, e.g. n2:10s [without a length: 10s]
    ///
    /// The agent of that node neither receives nor sends anything for that long; after 5 s both sides consider each other lost. The
    /// connections between the workers themselves stay: cutting them needs administrator rights.
    #[arg(long, value_name = "NODE[:LENGTH]", group = "faults", help_heading = "Faults")]
    partition: Option<String>,
    /// Seed of the times and the workers that are hit
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Faults")]
    seed: u64,
    /// End after this time, e.g. 10m [default: with the run]
    #[arg(long = "for", value_name = "TIME", value_parser = chaos::duration, help_heading = "Faults")]
    time: Option<f64>,
    /// Hit only this rank
    #[arg(long, value_name = "R", help_heading = "Faults")]
    rank: Option<u32>,
    /// Print the planned faults and do nothing; for 10 minutes unless --for is given
    #[arg(long, help_heading = "Faults")]
    dry_run: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let kinds = [
        (FaultKind::Kill, args.kill),
        (FaultKind::Stop, args.stop),
        (FaultKind::Slow, args.slow),
        (FaultKind::Enospc, args.enospc),
    ];
    let rates: Vec<(FaultKind, Rate)> = kinds.into_iter().filter_map(|(kind, rate)| Some((kind, rate?))).collect();
    if args.dry_run {
        return dry(Schedule::new(args.seed, &rates, Some(args.time.unwrap_or(DRY_S))));
    }
    let run = args.which.find(Need::UnderWay, facts)?;
    if let Some(text) = &args.partition {
        let says =
            supervise::ask(&run, &cut(text), Asker { run_is_living: run_dir::is_living(&run), host: &facts.host })?;
        output::text_line(&says)?;
        if rates.is_empty() {
            return Ok(ExitCode::Success);
        }
    }
    let options = ChaosOptions {
        run_dir: &run,
        host: &facts.host,
        schedule: Schedule::new(args.seed, &rates, args.time),
        until_s: args.time,
        rank: args.rank,
    };
    let mut out = output::stdout()?;
    let mut tell = |line: &str| out.write_all(format!("{line}\n").as_bytes());
    tell(&format!("disturbing {} with seed {}", run.display(), args.seed)).map_err(Error::Output)?;
    Ok(match chaos::run(options, &mut tell).map_err(failure)? {
        ChaosEnd::RunEnded | ChaosEnd::TimeElapsed => ExitCode::Success,
        ChaosEnd::Signalled(Signal::SIGINT) => ExitCode::Interrupted,
        ChaosEnd::Signalled(_) => ExitCode::Terminated,
    })
}

/// Parses "n2:10s" or "n2". A suffix that is no time belongs to the name, because an IPv6 address has colons, too.
fn cut(text: &str) -> Request {
    let (node, length) = match text.rsplit_once(':') {
        Some((node, length)) if length.ends_with(|last: char| last.is_ascii_alphabetic()) => {
            chaos::duration(length).map_or((text, CUT_S), |length| (node, length))
        }
        Some(_) => (text, CUT_S),
        None => (text, CUT_S),
    };
    // Seconds are rounded up; the parser has checked that they are sane.
    Request::Cut { node: node.to_owned(), seconds: length.ceil() as u32 }
}

/// Converts the error; a closed output is not a failure of chaos.
fn failure(error: ChaosError) -> Error {
    match error {
        ChaosError::Output(source) => Error::Output(source),
        error => Error::Chaos(error),
    }
}

fn dry(schedule: Schedule) -> Result<ExitCode, Error> {
    for fault in schedule {
        let length = if fault.length_s > 0.0 { format!("  for {} s", fault.length_s) } else { String::new() };
        output::text_line(&format!("{:10.3} s  {:<6}{length}", fault.at_s, fault.kind.word()))?;
    }
    Ok(ExitCode::Success)
}
