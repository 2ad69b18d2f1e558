//! `enn ckpt`: the checkpoints of a run.

use super::{flags::Runs, output};
use crate::{Error, facts::Facts, run_dir};
use enn_common::{checkpoint::listing, exit::ExitCode};
use std::path::PathBuf;

/// List, show and verify checkpoints
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List the checkpoints of a run, oldest first, and say which are complete
    Ls(Target),
    /// Show the manifest and the tensors of a checkpoint
    Show(Target),
    /// Read every byte of a checkpoint and compare it with its digests
    Verify(Target),
}

#[derive(Debug, clap::Args)]
struct Target {
    /// Run (its directory, its name, the beginning of its name, "latest"), or the directory of a checkpoint
    #[arg(value_name = "RUN", help_heading = "Job")]
    run: String,
    #[command(flatten)]
    runs: Runs,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

impl Target {
    fn path(&self, facts: &Facts) -> Result<PathBuf, Error> {
        let path = facts.cwd.join(&self.run);
        let checkpoint = path.join(".metadata").is_file();
        Ok(if checkpoint { path } else { run_dir::find(&self.runs.dir(facts), &self.run)? })
    }
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    match &args.what {
        What::Ls(target) => ls(target, facts)?,
        What::Show(target) => show(target, facts)?,
        What::Verify(target) => verify(target, facts)?,
    }
    Ok(ExitCode::Success)
}

fn ls(target: &Target, facts: &Facts) -> Result<(), Error> {
    let path = target.path(facts)?;
    let found = listing::list(&path);
    if target.json {
        return output::json(&serde_json::to_value(&found).map_err(|source| Error::Json { path, source })?);
    }
    let lines = found.iter().map(|one| {
        let metric = one.metric.map_or_else(|| "-".to_owned(), |metric| format!("{metric:.4}"));
        let state = one.reason.as_deref().unwrap_or("complete");
        format!("{:>10}  {:>12} bytes  {:>3} ranks  metric {metric:>10}  {state}", one.step, one.bytes, one.world)
    });
    output::text_line(&lines.collect::<Vec<_>>().join("\n"))
}

fn show(target: &Target, facts: &Facts) -> Result<(), Error> {
    let path = target.path(facts)?;
    let shown = listing::show(&listing::find(&path)?);
    if target.json {
        return output::json(&serde_json::to_value(&shown).map_err(|source| Error::Json { path, source })?);
    }
    let mut lines = vec![shown.path.display().to_string()];
    if let Some(manifest) = &shown.manifest {
        lines.push(format!(
            "run {}, step {}, epoch {}, {} ranks",
            manifest.run, manifest.step, manifest.epoch, manifest.world
        ));
    }
    lines.extend(shown.tensors.iter().map(|one| format!("{:<60} {:<10} {:?}", one.name, one.dtype, one.shape)));
    output::text_line(&lines.join("\n"))
}

fn verify(target: &Target, facts: &Facts) -> Result<(), Error> {
    let path = target.path(facts)?;
    let checkpoint = listing::find(&path)?;
    let mut bytes = 0;
    checkpoint.verify(&mut |read| bytes = read)?;
    let dir = checkpoint.dir().display().to_string();
    if target.json {
        return output::json(&serde_json::json!({ "path": dir, "intact": true }));
    }
    output::text_line(&format!("{dir}: every byte is as its digest says"))
}
