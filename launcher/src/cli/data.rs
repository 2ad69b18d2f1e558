//! `enn data verify`.

use super::{bar::Bar, flags::Runs, output};
use crate::{Error, facts::Facts};
use enn_common::{
    artifact::prediction::{manifest_path, verify},
    exit::ExitCode,
    staged::{META, Staged, Sums},
};
use enn_ui::runs::Need;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Check staged data and predictions
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, clap::Subcommand)]
enum DataCommand {
    /// Read the staged arrays and the predictions of a run, and compare every byte with its checksum
    ///
    /// Exit code 5 if anything is wrong. Workers compare a few blocks whenever they open the arrays.
    Verify(Verify),
}

#[derive(Debug, clap::Args)]
struct Verify {
    /// Run (directory, name, its beginning, "latest"), staged directory, directory of predictions, or a Parquet file of them
    #[arg(value_name = "WHAT", help_heading = "Job")]
    what: String,
    #[command(flatten)]
    runs: Runs,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// The result of verifying one directory or file.
struct VerifiedData {
    path: PathBuf,
    problems: Vec<String>,
    note: Option<&'static str>,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let DataCommand::Verify(args) = &args.command;
    let given = facts.cwd.join(&args.what);
    let bar = Bar::new("verifying", args.json);
    let mut found = Vec::new();
    if given.join(META).is_file() {
        found.push(staged(&given, &bar)?);
    } else if given.is_file() || manifest_path(&given).is_file() {
        found.push(predictions(&given)?);
    } else {
        let run = args.runs.find(&args.what, Need::Any, facts)?;
        let data = run.join("staged");
        if data.join(META).is_file() {
            found.push(staged(&data, &bar)?);
        }
        let below = std::fs::read_dir(run.join("predictions")).into_iter().flatten().flatten();
        let mut outputs: Vec<PathBuf> =
            below.map(|entry| entry.path()).filter(|path| manifest_path(path).is_file()).collect();
        outputs.sort();
        for output in outputs {
            found.push(predictions(&output)?);
        }
    }
    drop(bar);
    let ok = found.iter().all(|one| one.problems.is_empty());
    let one = |one: &VerifiedData| json!({"path": one.path, "ok": one.problems.is_empty(), "problems": one.problems, "note": one.note});
    output::print(args.json, &found.iter().map(one).collect::<Vec<_>>(), || text(&found))?;
    Ok(if ok { ExitCode::Success } else { ExitCode::Artifact })
}

fn staged(dir: &Path, bar: &Bar) -> Result<VerifiedData, Error> {
    let path = dir.to_path_buf();
    let Some(sums) = Sums::read(dir)? else {
        let note = Some("it was staged before there were checksums; only its form was looked at");
        let problems = Staged::open(dir).err().map(|error| error.to_string()).into_iter().collect();
        return Ok(VerifiedData { path, problems, note });
    };
    let mut done = 0;
    let total = sums.bytes();
    let mut problems = sums.verify(dir, &mut |bytes| {
        done += bytes;
        bar.set(done, total);
    });
    if problems.is_empty() {
        problems.extend(Staged::open(dir).err().map(|error| error.to_string()));
    }
    Ok(VerifiedData { path, problems, note: None })
}

fn predictions(output: &Path) -> Result<VerifiedData, Error> {
    Ok(VerifiedData { path: output.to_path_buf(), problems: verify(output)?, note: None })
}

fn text(found: &[VerifiedData]) -> String {
    if found.is_empty() {
        return "there are neither staged data nor predictions".into();
    }
    let lines = found.iter().flat_map(|one| {
        let path = one.path.display();
        let note = one.note.map(|note| format!("note   {path}: {note}"));
        let right = one.problems.is_empty().then(|| format!("{path}: every byte is as it was written"));
        one.problems
            .iter()
            .map(|problem| format!("WRONG  {problem}"))
            .chain(note)
            .chain(right.filter(|_| one.note.is_none()))
            .collect::<Vec<_>>()
    });
    lines.collect::<Vec<_>>().join("\n")
}
