//! `enn ckpt ls`, `show` and `verify`.

use super::{flags::Runs, output};
use crate::{Error, facts::Facts, run_dir};
use enn_common::{
    checkpoint::listing::{self, Listed, Shown},
    exit::ExitCode,
};
use serde_json::Value;
use std::path::PathBuf;

/// Look at a run's checkpoints
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List the checkpoints, oldest first
    Ls(Which),
    /// Tell what is in the newest complete checkpoint
    Show(Which),
    /// Read the newest complete checkpoint and check every digest
    Verify(Which),
}

#[derive(Debug, clap::Args)]
struct Which {
    /// Run (directory, name, its beginning, "latest") or a checkpoint directory
    #[arg(value_name = "RUN", help_heading = "Job")]
    run: String,
    #[command(flatten)]
    runs: Runs,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    match &args.what {
        What::Ls(which) => {
            let listed = listing::list(&path(which, facts)?);
            tell(which.json, serde_json::to_value(&listed), || table(&listed))?;
        }
        What::Show(which) => {
            let shown = listing::show(&listing::find(&path(which, facts)?)?);
            tell(which.json, serde_json::to_value(&shown), || contents(&shown))?;
        }
        What::Verify(which) => {
            let checkpoint = listing::find(&path(which, facts)?)?;
            checkpoint.verify(&mut |_| {}).map_err(Box::new)?;
            let path = checkpoint.dir().display().to_string();
            let json = serde_json::json!({ "path": path, "ok": true });
            tell(which.json, Ok(json), || format!("{path}: every digest is right"))?;
        }
    }
    Ok(ExitCode::Success)
}

/// A checkpoint directory as given, else the run's directory.
fn path(which: &Which, facts: &Facts) -> Result<PathBuf, Error> {
    let given = facts.cwd.join(&which.run);
    if given.join(enn_common::checkpoint::name::METADATA).exists() {
        return Ok(given);
    }
    Ok(run_dir::find(&which.runs.dir(facts), &which.run)?)
}

fn tell(json: bool, value: Result<Value, serde_json::Error>, text: impl FnOnce() -> String) -> Result<(), Error> {
    if json {
        let value = value.map_err(|error| Error::Output(error.into()))?;
        return output::json(&value);
    }
    output::text_line(&text())
}

fn table(listed: &[Listed]) -> String {
    let mut lines = vec![format!("{:>10}  {:>12}  {:>5}  {:>10}  path", "step", "bytes", "world", "metric")];
    for one in listed {
        let metric = one.metric.map_or_else(|| "-".into(), |metric| format!("{metric:.4}"));
        let reason = one.reason.as_ref().map_or_else(String::new, |reason| format!("  INCOMPLETE: {reason}"));
        let path = one.path.display();
        lines.push(format!("{:>10}  {:>12}  {:>5}  {metric:>10}  {path}{reason}", one.step, one.bytes, one.world));
    }
    lines.join("\n")
}

fn contents(shown: &Shown) -> String {
    let mut lines = vec![shown.path.display().to_string()];
    if let Some(manifest) = &shown.manifest {
        lines.push(format!(
            "run {}  step {}  epoch {}  world {}",
            manifest.run, manifest.step, manifest.epoch, manifest.world
        ));
    }
    let width = shown.tensors.iter().map(|tensor| tensor.name.chars().count()).max().unwrap_or(0);
    for tensor in &shown.tensors {
        lines.push(format!("{:width$}  {:10}  {:?}", tensor.name, tensor.dtype, tensor.shape));
    }
    lines.join("\n")
}
