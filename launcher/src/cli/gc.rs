//! `enn gc`.

use super::{
    flags::{self, Removal},
    rm::{self, Removed},
};
use crate::{Error, facts::Facts};
use enn_process::run_dir;
use enn_ui::runs::{self, RemovalDecision, RemovalFilter, RunSummary, StagedData};
use std::{
    collections::BTreeSet,
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Remove old runs, and staged data that no run uses
///
/// Without --older-than, --failed and --keep no run is removed, only staged data that no run uses and leftovers of interrupted removals. A
/// run is removed if it meets all conditions. A run that is under way is kept, and so is one whose model a kept run was fine-tuned from.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Runs that were last written to longer ago, e.g. 30d, 12h or 2w
    #[arg(long, value_name = "TIME", value_parser = flags::span, help_heading = "Job")]
    older_than: Option<Duration>,
    /// Failed runs, also those with a model, and runs without a model whose end is unknown
    #[arg(long, help_heading = "Job")]
    failed: bool,
    /// Keep the newest N runs whatever they are; alone: remove all others
    #[arg(long, value_name = "N", help_heading = "Job")]
    keep: Option<usize>,
    /// Print what would be removed, and remove nothing
    #[arg(long, short = 'n', help_heading = "Job")]
    dry_run: bool,
    /// Directory of runs [default: ENN_RUNS, else ./runs]
    #[arg(long, value_name = "DIR", help_heading = "Job")]
    runs_dir: Option<PathBuf>,
    #[command(flatten)]
    removal: Removal,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let mut dirs = flags::directories(args.runs_dir.as_deref(), facts);
    // Launches of `enn run` have their own filter of age and size.
    dirs.truncate(1);
    dirs.iter().try_for_each(|dir| run_dir::local(dir))?;
    let filter = RemovalFilter { older_than: args.older_than, failed: args.failed, keep: args.keep };
    let found = if filter.ask_for_runs() { runs::list(&dirs) } else { Vec::new() };
    let mut going = Vec::new();
    for (run, decision) in found.iter().zip(runs::decide(&found, filter, SystemTime::now())) {
        match decision {
            RemovalDecision::Remove => going.push(run.clone()),
            RemovalDecision::Protected(reason) => note(&format!("{} stays: {reason}", run.name)),
            RemovalDecision::Keep => {}
        }
    }
    if args.dry_run {
        return rm::print(&would_go(&dirs, &going), args.removal.json, "would remove");
    }
    if !rm::agreed(&args.removal, &going)? {
        return Ok(());
    }
    let removed = collect(&dirs, &going)?;
    rm::print(&removed, args.removal.json, "removed")
}

/// Removes the selected runs, then all staged data that no run uses. A run that has started again meanwhile is kept.
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

fn would_go(dirs: &[PathBuf], going: &[RunSummary]) -> Removed {
    let names: BTreeSet<&str> = going.iter().map(|run| run.name.as_str()).collect();
    let goes = |data: &StagedData| data.users.iter().all(|user| names.contains(user.as_str()));
    let staged = dirs.iter().flat_map(|dir: &PathBuf| runs::staged_data(dir)).filter(goes).collect();
    let sized = |path: &Path| (path.to_owned(), runs::size(path));
    Removed { runs: going.iter().map(|run| sized(&run.path)).collect(), staged, waits_for: None }
}

/// Prints a note on standard error.
fn note(text: &str) {
    // A closed standard error is ignored.
    let _gone = writeln!(std::io::stderr(), "{}", enn_common::shown::line(text));
}
