//! `enn cv`.

use super::{
    flags::{Changes, Runs, Show},
    output,
};
use crate::{
    Error,
    api::{self, CvOptions},
    error::Usage,
    facts::Facts,
};
use enn_common::{artifact::cv::FoldState, exit::ExitCode};
use enn_process::run_dir;
use std::path::PathBuf;

/// Cross-validate: train a model per fold of the rows and judge it on the rows it never saw, beside every baseline
///
/// Data are read and staged once. Rows are assigned to folds by a hash of their ids, or by groups or blocks of time as in [data.split],
/// whose `val` is the share of the other rows that validate. Every fold is a run of its own below one directory; on CPUs it has one worker,
/// and the folds under way share the cores; on GPUs they share these. Baselines are fitted to the training and validation rows of the fold.
/// Errors by cell, horizon and group, intervals and importance go into a table, into evaluation.json and into a report with pictures.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Configuration (TOML); may be left out with --resume
    #[arg(value_name = "CONFIG", help_heading = "Job")]
    config: Option<PathBuf>,
    /// Folds
    #[arg(long, value_name = "K", default_value_t = 10, help_heading = "Job")]
    folds: usize,
    /// Seed of the division into folds [default: the configuration's seed, which also seeds every model]
    #[arg(long, value_name = "S", help_heading = "Job")]
    seed: Option<u64>,
    /// Folds trained at the same time [default: one per core, or per GPU]
    #[arg(long, value_name = "J", help_heading = "Job")]
    jobs: Option<usize>,
    /// Train the folds of this cross-validation that are not done, as they were asked for: its directory, or its name
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["config", "folds", "seed", "jobs", "set"],
        help_heading = "Job"
    )]
    resume: Option<String>,
    /// Errors by the words of this column; for windows: month
    #[arg(long, value_name = "COLUMN", help_heading = "Job")]
    group: Option<String>,
    /// How much errors rise when an input is shuffled; K shuffles of each by every fold's model
    #[arg(long, value_name = "K", num_args = 0..=1, default_missing_value = "5", help_heading = "Job")]
    importance: Option<usize>,
    #[command(flatten)]
    runs: Runs,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    show: Show,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<u8, Error> {
    let runs_dir = args.runs.dir(facts);
    let (config, resume) = match (&args.config, &args.resume) {
        (Some(path), None) => (Some(api::load_config(path, &args.changes.overrides(), facts)?), None),
        (None, Some(reference)) => (None, Some(run_dir::find_cv(&runs_dir, reference)?)),
        _ => return Err(Error::Usage(Usage::ConfigOrResume)),
    };
    let mode = args.show.mode();
    // With --json one document is printed, not events.
    let staging = if mode == enn_ui::Mode::Json { enn_ui::Mode::Quiet } else { mode };
    let options = CvOptions {
        runs_dir,
        resume,
        folds: args.folds,
        seed: args.seed,
        jobs: args.jobs,
        mode: staging,
        handle_signals: true,
        group: args.group.clone(),
        importance: args.importance,
    };
    let lines = !matches!(mode, enn_ui::Mode::Quiet | enn_ui::Mode::Json);
    let ended = api::cross_validate(config.as_ref(), facts, &options, &mut |record, fold| {
        if lines {
            // A closed standard output is reported at the end.
            let _gone = output::text_line(&enn_ui::cv::line(record, fold));
        }
    })?;
    let record = &ended.record;
    if mode == enn_ui::Mode::Json {
        let value = |of: serde_json::Result<_>| of.map_err(|source| Error::Json { path: ended.dir.clone(), source });
        let mut all = value(serde_json::to_value(record))?;
        all["evaluation"] = value(serde_json::to_value(&ended.evaluation))?;
        output::json(&all)?;
    } else {
        output::text_line(&enn_ui::cv::table(record, ended.evaluation.as_ref()))?;
        output::text_line(&format!("cross-validation in {}", ended.dir.display()))?;
    }
    if let Some(signal) = ended.stopped {
        return Ok(u8::try_from(128 + signal).unwrap_or(ExitCode::WorkerFailed as u8));
    }
    let failed = record.folds.iter().any(|fold| fold.state != FoldState::Done);
    let better = record.verdict().is_some_and(|verdict| verdict.difference < 0.0);
    Ok(match (failed, better) {
        (true, _) => ExitCode::WorkerFailed,
        (false, false) => ExitCode::NotBetter,
        (false, true) => ExitCode::Success,
    } as u8)
}
