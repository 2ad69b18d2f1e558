//! `enn compare`.

use super::{flags::RunList, output};
use crate::{Error, error::Usage, facts::Facts};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use enn_ui::{
    compare::{self, ComparedRun, Comparison, RUNS_MAX, SortKey, Style},
    report, terminal,
};
use std::path::PathBuf;

/// Compare runs: what differs in their configurations, and their errors, times and failures beside each other
///
/// Without RUN: the newest runs with the configuration name of the newest run. Runs are ranked by the error on the validation rows; those
/// with other rows or another target are shown, with the reason, but not ranked.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    runs: RunList,
    /// Order of the runs
    ///
    /// given: as they are given, or the newest first. The other words order from the lowest number, started from the newest.
    #[arg(long, value_name = "KEY", default_value = "given", value_parser = sort_keys(), help_heading = "Output")]
    sort: SortKey,
    /// Print JSON
    #[arg(long, conflicts_with = "csv", help_heading = "Output")]
    json: bool,
    /// Print CSV: a row for each run, with a column for each figure and each key that differs
    #[arg(long, help_heading = "Output")]
    csv: bool,
    /// Write an HTML page with the table and the curves of all runs, and print nothing else but its path
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "csv"], help_heading = "Output")]
    page: Option<PathBuf>,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let paths = args.runs.find(RUNS_MAX, facts)?;
    let mut runs = Vec::with_capacity(paths.len());
    for path in paths {
        runs.extend(ComparedRun::read(&path)?);
    }
    if runs.is_empty() {
        return Err(Error::Usage(Usage::NoRuns { dirs: args.runs.dirs(facts) }));
    }
    let comparison = Comparison::new(runs, args.sort);
    if args.json {
        return output::json(&compare::json(&comparison));
    }
    if args.csv {
        return output::document(&compare::csv(&comparison));
    }
    if let Some(page) = &args.page {
        let path = facts.cwd.join(page);
        report::write_comparison(&path, &comparison)?;
        return output::text_line(&path.display().to_string());
    }
    let width = output::columns().map(usize::from);
    let style = Style { width, has_colours: width.is_some() && terminal::draws(&std::io::stdout()) };
    // Names and values are escaped already: what is left are colours.
    output::bytes(format!("{}\n", compare::text(&comparison, style)).as_bytes())
}

fn sort_keys() -> impl TypedValueParser<Value = SortKey> {
    let key =
        |name: String| SortKey::ALL.iter().find(|(known, _)| *known == name).map_or(SortKey::Given, |(_, key)| *key);
    PossibleValuesParser::new(SortKey::ALL.map(|(name, _)| name)).map(key)
}
