//! `enn evaluate`.

use super::{
    flags::{Runs, Show},
    output,
};
use crate::{
    Error,
    api::{self, EvaluateOptions},
    facts::Facts,
};
use enn_common::exit::ExitCode;
use enn_ui::Mode;
use enn_ui::runs::Need;
use std::path::PathBuf;

/// Judge a run's model on data with targets, beside baselines fitted to its training and validation rows
///
/// Errors by cell, horizon and group go into a table, into evaluation.json and into a report with pictures, below the run.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run: its directory, its name, the beginning of its name, its address, or "latest"
    #[arg(value_name = "RUN", help_heading = "Job")]
    run: String,
    /// Data like those the run was trained on, with targets; may be repeated
    #[arg(long, value_name = "FILE", required = true, help_heading = "Job")]
    data: Vec<PathBuf>,
    /// Errors by the words of this column; for windows: month
    #[arg(long, value_name = "COLUMN", help_heading = "Job")]
    group: Option<String>,
    /// How much errors rise when an input is shuffled; K shuffles of each
    #[arg(long, value_name = "K", num_args = 0..=1, default_missing_value = "5", help_heading = "Job")]
    importance: Option<usize>,
    /// Seed of the shuffles
    #[arg(long, value_name = "S", default_value_t = 0, help_heading = "Job")]
    seed: u64,
    /// Judge all the same where the model does not know most of a column's categories
    #[arg(long, help_heading = "Job")]
    allow_unseen: bool,
    #[command(flatten)]
    runs: Runs,
    #[command(flatten)]
    show: Show,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let run = args.runs.find(&args.run, Need::Model, facts)?;
    let mode = args.show.mode();
    let json = mode == Mode::Json;
    let options = EvaluateOptions {
        // One document is printed, not events.
        mode: if json { Mode::Quiet } else { mode },
        handle_signals: true,
        group: args.group.clone(),
        importance: args.importance,
        seed: args.seed,
        allow_unseen: args.allow_unseen,
    };
    let found = api::evaluate(&facts.cwd.join(run), &args.data, facts, &options)?;
    if let Some(evaluation) = &found.evaluation {
        output::print(json, evaluation, || enn_ui::evaluation::table(evaluation))?;
        if !json {
            output::text_line(&format!("evaluation in {}", found.dir.display()))?;
        }
    }
    Ok(api::exit_code(&found.ended))
}
