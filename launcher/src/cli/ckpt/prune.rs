//! `enn ckpt prune`.

use super::{
    super::{bar::Bar, output},
    locate::CheckpointArgs,
};
use crate::{Error, api, facts::Facts};
use enn_common::{
    checkpoint::{
        listing,
        prune::{self, Judged},
        retain::Rule,
    },
    fs::space::readable,
};
use enn_process::run_dir::RunDirError;
use enn_ui::runs::Need;
use serde_json::json;

/// Remove old checkpoints by the rule of training: the newest, the best and the last few stay
///
/// Damaged ones are kept and do not count, so that the last good one always stays: every byte of the newest is read for that. A run that is
/// under way prunes by itself.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: CheckpointArgs,
    /// Checkpoints kept besides the newest and the best
    #[arg(long, value_name = "N", default_value_t = 2, help_heading = "Job")]
    keep: usize,
    /// The first checkpoint of every so many epochs stays too
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, help_heading = "Job")]
    keep_epochs: u64,
    /// The first checkpoint of every so many hours stays too
    #[arg(long, value_name = "HOURS", default_value_t = 0.0, hide_default_value = true, help_heading = "Job")]
    keep_hours: f64,
    /// Print what would be removed, and remove nothing
    #[arg(long, help_heading = "Job")]
    dry_run: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    if let Some((remote_runs, name)) =
        api::at_address(&[args.which.runs.dir(facts)], &args.which.what, Need::Model, facts)?
    {
        // Training prunes checkpoints at an address by its own rule.
        return Err(RunDirError::Address { address: format!("{}/{name}", remote_runs.address()) }.into());
    }
    let checkpoints = listing::checkpoints_dir(&args.which.dir(facts)?);
    let rule = Rule { last: args.keep, epochs: args.keep_epochs, hours: args.keep_hours };
    let bar = Bar::new("verifying", args.which.json);
    let mut read = 0;
    let judged = prune::verdicts_with_progress(&checkpoints, rule, &mut |manifest, bytes| {
        read += bytes;
        bar.set(read, manifest.bytes());
    });
    drop(bar);
    if !args.dry_run {
        prune::remove(&checkpoints, &judged)?;
    }
    let one = |one: &Judged| json!({"step": one.step, "path": one.path, "bytes": one.bytes, "keeps": one.keeps, "reason": one.reason});
    let json = json!({"dry_run": args.dry_run, "checkpoints": judged.iter().map(one).collect::<Vec<_>>()});
    output::print(args.which.json, &json, || text(&judged, args.dry_run))
}

fn text(judged: &[Judged], dry_run: bool) -> String {
    let verb = if dry_run { "would go" } else { "removed" };
    let line = |one: &Judged| {
        format!(
            "{:8}  {:>10}  {:>10}  {}",
            if one.keeps { "stays" } else { verb },
            one.step,
            readable(one.bytes),
            one.reason
        )
    };
    let mut lines: Vec<String> = judged.iter().map(line).collect();
    let freed: u64 = judged.iter().filter(|one| !one.keeps).map(|one| one.bytes).sum();
    lines.push(format!("{} {}", readable(freed), if dry_run { "would be free" } else { "are free" }));
    lines.join("\n")
}
