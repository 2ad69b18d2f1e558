//! `enn gc`.

use super::{
    flags, output,
    rm::{self, Removed},
};
use crate::{
    Error,
    facts::Facts,
    run_dir,
    runs::{self, Limits, RunSummary, StagedData, Verdict},
};
use enn_common::exit::ExitCode;
use std::{
    collections::BTreeSet,
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Remove old runs, and staged data that no run uses
///
/// Without --older-than, --failed and --keep no run is removed, only staged data that no run uses and what is left of interrupted removals.
/// A run goes if it meets all that is asked for. One that is under way stays, and so does one whose model a run that stays began with.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Runs that were last written to longer ago, e.g. 30d, 12h or 2w
    #[arg(long, value_name = "TIME", value_parser = flags::span, help_heading = "Job")]
    older_than: Option<Duration>,
    /// Runs that failed, also those with a model; of runs that ended without a word those without one
    #[arg(long, help_heading = "Job")]
    failed: bool,
    /// Keep the newest N runs whatever they are; alone: remove all others
    #[arg(long, value_name = "N", help_heading = "Job")]
    keep: Option<usize>,
    /// Say what would be removed, and remove nothing
    #[arg(long, short = 'n', help_heading = "Job")]
    dry_run: bool,
    /// Directory of runs [default: ENN_RUNS, else ./runs]
    #[arg(long, value_name = "DIR", help_heading = "Job")]
    runs_dir: Option<PathBuf>,
    /// Do not ask; without a terminal nothing is asked anyway
    #[arg(long, short, help_heading = "Job")]
    yes: bool,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let mut dirs = flags::directories(args.runs_dir.as_deref(), facts);
    // Those of `enn run` have an age and a size of their own.
    dirs.truncate(1);
    dirs.iter().try_for_each(|dir| run_dir::local(dir))?;
    let limits = Limits { older_than: args.older_than, failed: args.failed, keep: args.keep };
    let found = if limits.ask_for_runs() { runs::list(&dirs) } else { Vec::new() };
    let mut going = Vec::new();
    for (run, verdict) in found.iter().zip(runs::judge(&found, limits, SystemTime::now())) {
        match verdict {
            Verdict::Goes => going.push(run.clone()),
            Verdict::Protected(reason) => note(&format!("{} stays: {reason}", run.name)),
            Verdict::Stays => {}
        }
    }
    if args.dry_run {
        rm::tell(&would_go(&dirs, &going), args.json, "would remove")?;
        return Ok(ExitCode::Success);
    }
    if !args.yes && !args.json && !rm::agreed(&going)? {
        output::text_line("nothing is removed")?;
        return Ok(ExitCode::Success);
    }
    let removed = collect(&dirs, &going)?;
    rm::tell(&removed, args.json, "removed")?;
    Ok(ExitCode::Success)
}

/// Removes the runs that go, then all staged data that no run uses. A run that began again meanwhile stays.
fn collect(dirs: &[PathBuf], going: &[RunSummary]) -> Result<Removed, Error> {
    let mut removed = Removed::default();
    for run in going {
        let done = runs::locate(&run.path, dirs).map_err(Error::from).and_then(|path| {
            let run = RunSummary { path, ..run.clone() };
            rm::remove_all(std::slice::from_ref(&run))
        });
        match done {
            Ok(done) => {
                removed.runs.extend(done.runs);
                removed.staged.extend(done.staged);
            }
            Err(error) => note(&error.to_string()),
        }
    }
    for dir in dirs {
        runs::sweep_leftovers(dir);
        let (staged, waits_for) = runs::remove_unused(dir, None)?;
        removed.staged.extend(staged);
        removed.waits_for = removed.waits_for.or(waits_for);
    }
    Ok(removed)
}

/// What would go.
fn would_go(dirs: &[PathBuf], going: &[RunSummary]) -> Removed {
    let names: BTreeSet<&str> = going.iter().map(|run| run.name.as_str()).collect();
    let goes = |data: &StagedData| data.users.iter().all(|user| names.contains(user.as_str()));
    let staged = dirs.iter().flat_map(|dir: &PathBuf| runs::staged_data(dir)).filter(goes).collect();
    let sized = |path: &Path| (path.to_owned(), runs::size(path));
    Removed { runs: going.iter().map(|run| sized(&run.path)).collect(), staged, waits_for: None }
}

/// Tells what stays, and why.
fn note(text: &str) {
    // A standard error that is gone changes nothing.
    let _gone = writeln!(std::io::stderr(), "{}", enn_common::shown::line(text));
}
