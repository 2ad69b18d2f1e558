//! `enn rm`.

use super::{
    flags::{self, Removal},
    output,
};
use crate::{Error, facts::Facts};
use enn_ui::format;
use enn_ui::runs::{self, Need, RunSummary, StagedData};
use serde_json::json;
use std::{
    collections::BTreeSet,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
};

/// Remove runs, and the staged data that no other run uses
///
/// A run that is under way is not removed, nor one below which a prediction or an evaluation is. A run is named by its directory, its name
/// or the beginning of its name; only what lies in the directory of runs is removed, and no link is followed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Runs
    #[arg(value_name = "RUN", required = true, help_heading = "Job")]
    runs: Vec<String>,
    /// Directory of runs [default: ENN_RUNS, else ./runs, and that of `enn run`]
    #[arg(long, value_name = "DIR", help_heading = "Job")]
    runs_dir: Option<PathBuf>,
    #[command(flatten)]
    removal: Removal,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let dirs = flags::directories(args.runs_dir.as_deref(), facts);
    let mut paths = BTreeSet::new();
    for named in &args.runs {
        let selected = runs::select(&dirs, &given(named, facts), Need::Removal)?;
        paths.insert(runs::locate(&selected.path, &dirs)?);
    }
    let wanted: Vec<RunSummary> = paths.iter().filter_map(|path| RunSummary::read(path)).collect();
    if !agreed(&args.removal, &wanted)? {
        return Ok(());
    }
    let removed = remove_all(&wanted)?;
    print(&removed, args.removal.json, "removed")
}

/// Returns a name unchanged, and a path relative to the working directory.
fn given(named: &str, facts: &Facts) -> String {
    if named.contains('/') { facts.cwd.join(named).to_string_lossy().into_owned() } else { named.to_owned() }
}

/// The runs and staged data that were removed.
#[derive(Debug, Default)]
pub(super) struct Removed {
    /// The removed runs and their sizes in bytes.
    pub(super) runs: Vec<(PathBuf, u64)>,
    pub(super) staged: Vec<StagedData>,
    /// A run that may be about to use staged data, which are therefore kept.
    pub(super) waits_for: Option<PathBuf>,
}

/// Removes runs, and the staged data that only they used. After an error the runs before it are removed.
pub(super) fn remove_all(wanted: &[RunSummary]) -> Result<Removed, Error> {
    let mut removed = Removed::default();
    for run in wanted {
        let used = runs::used_by(&run.path);
        let bytes = runs::size(&run.path);
        runs::remove(&run.path)?;
        removed.runs.push((run.path.clone(), bytes));
        let (staged, waits_for) = runs::remove_unused(run.path.parent().unwrap_or(&run.path), Some(&used))?;
        removed.staged.extend(staged);
        removed.waits_for = removed.waits_for.or(waits_for);
    }
    Ok(removed)
}

/// Prints what was removed, or would be.
pub(super) fn print(removed: &Removed, is_json: bool, verb: &str) -> Result<(), Error> {
    let Removed { runs, staged, waits_for } = removed;
    let bytes: u64 = runs.iter().map(|(_, bytes)| bytes).chain(staged.iter().map(|data| &data.bytes)).sum();
    if is_json {
        let run = |(path, bytes): &(PathBuf, u64)| json!({"path": path, "bytes": bytes});
        let data = |data: &StagedData| json!({"path": data.path, "bytes": data.bytes});
        let document = json!({
            "runs": runs.iter().map(run).collect::<Vec<_>>(), "staged": staged.iter().map(data).collect::<Vec<_>>(),
            "bytes": bytes, "staged_data_wait_for": waits_for,
        });
        return output::json(&document);
    }
    let line =
        |what: &str, path: &Path, bytes: u64| format!("{verb} {what}{} ({})", path.display(), format::bytes(bytes));
    let mut lines: Vec<String> = runs.iter().map(|(path, bytes)| line("", path, *bytes)).collect();
    lines.extend(staged.iter().map(|data| line("the staged data ", &data.path, data.bytes)));
    if let Some(run) = waits_for {
        lines.push(format!("staged data stay as long as {} is under way and has none of its own", run.display()));
    }
    if lines.is_empty() {
        lines.push("there is nothing to remove".to_owned());
    } else if runs.len() + staged.len() > 1 {
        lines.push(format!("{verb} {} in all", format::bytes(bytes)));
    }
    output::text_line(&output::lines(&lines))
}

/// Asks the user for confirmation, and prints that nothing is removed where it is denied; returns true where there is no terminal, since
/// the runs were named.
pub(super) fn agreed(removal: &Removal, wanted: &[RunSummary]) -> Result<bool, Error> {
    let is_asked = !removal.yes && !removal.json && io::stdin().is_terminal() && io::stderr().is_terminal();
    if !is_asked || wanted.is_empty() {
        return Ok(true);
    }
    let mut lines: Vec<String> = wanted
        .iter()
        .map(|run| {
            let model = run.step.map_or_else(String::new, |step| format!(", with a model of step {step}"));
            format!("  {}{model}", run.brief())
        })
        .collect();
    lines.insert(0, format!("to be removed: {}", format::plural(wanted.len() as u64, "run")));
    let answer = output::ask(&lines, "remove? [y/N] ")?;
    let is_agreed = ["y", "yes"].contains(&answer.trim().to_lowercase().as_str());
    if !is_agreed {
        output::text_line("nothing is removed")?;
    }
    Ok(is_agreed)
}
