//! `enn ckpt`: show, verify, compare, convert and move checkpoints and saved models.

mod convert;
mod diff;
mod locate;
mod prune;
mod transfer;
mod verify;

use super::output;
use crate::{Error, api, facts::Facts};
use enn_checkpoint::{
    convert::{self as convert_files, Contents, Mapped},
    remote,
};
use enn_common::{
    checkpoint::{
        Manifest,
        listing::{self, Listed, Shown},
        name,
    },
    exit::ExitCode,
    metrics::Metrics,
};
use enn_ui::format;
use enn_ui::runs::Need;
use locate::{CheckpointArgs, locate};
use serde_json::{Value, json};

/// Look at, check, compare, convert and move checkpoints
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: CkptCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CkptCommand {
    /// List the checkpoints of a run, oldest first
    Ls(CheckpointArgs),
    /// Show the contents of the newest complete checkpoint, or of a file
    Show(CheckpointArgs),
    Verify(verify::Args),
    Diff(diff::Args),
    Convert(convert::Args),
    Merge(convert::MergeArgs),
    Prune(prune::Args),
    Push(transfer::PushArgs),
    Pull(transfer::PullArgs),
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    match &args.command {
        CkptCommand::Ls(which) => {
            let listed = match api::at_address(&[which.runs.dir(facts)], &which.what, Need::Model, facts)? {
                Some((remote_runs, name)) => remote::list(&remote_runs.run_store(&name))?,
                None => listing::list(&which.dir(facts)?),
            };
            output::print(which.json, &listed, || table(&listed))?;
        }
        CkptCommand::Show(which) => {
            let located = locate(&which.what, &which.runs, facts)?;
            let path = located.path();
            if !name::is_dcp(path) && listing::list(path).is_empty() {
                let found = convert_files::contents(path)?;
                let tensor = |(name, dtype, shape): &(String, &str, Vec<u64>)| json!({"name": name, "dtype": dtype, "shape": shape});
                let tensors: Vec<_> = found.tensors.iter().map(tensor).collect();
                let values: serde_json::Map<_, _> =
                    found.values.iter().map(|(name, text)| (name.clone(), json!(text))).collect();
                let mapped = found.mapped.as_ref().map(mapped);
                let json = json!({"path": found.path, "form": found.form, "tensors": tensors, "values": values, "refused": found.refused, "mapped": mapped});
                return output::print(which.json, &json, || file_contents(&found)).map(|()| ExitCode::Success);
            }
            let shown = listing::show(&listing::find(path)?);
            let shown = Shown { path: located.named(&shown.path), ..shown };
            output::print(which.json, &shown, || contents(&shown))?;
        }
        CkptCommand::Verify(args) => return verify::run(args, facts),
        CkptCommand::Diff(args) => return diff::run(args, facts),
        CkptCommand::Convert(args) => convert::run(args, facts)?,
        CkptCommand::Merge(args) => convert::run_merge(args, facts)?,
        CkptCommand::Prune(args) => prune::run(args, facts)?,
        CkptCommand::Push(args) => transfer::run_push(args, facts)?,
        CkptCommand::Pull(args) => transfer::run_pull(args, facts)?,
    }
    Ok(ExitCode::Success)
}

fn table(listed: &[Listed]) -> String {
    let mut lines = vec![format!("{:>10}  {:>12}  {:>5}  {:>10}  path", "step", "bytes", "world", "metric")];
    for one in listed {
        let metric = one.metric.map_or_else(|| "-".into(), |metric| format!("{metric:.4}"));
        let reason = one.reason.as_ref().map_or_else(String::new, |reason| format!("  INCOMPLETE: {reason}"));
        let path = one.path.display();
        lines.push(format!("{:>10}  {:>12}  {:>5}  {metric:>10}  {path}{reason}", one.step, one.bytes, one.world));
    }
    output::lines(&lines)
}

/// Adds lines about the model: data, seeds, errors of the model and the baselines, decisions.
fn model_card(manifest: &Manifest, lines: &mut Vec<String>) {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let meta = &manifest.meta;
    let config = &manifest.config;
    if let (Some(digest), Some(rows), Some(split)) = (meta.get("digest"), meta.get("rows"), meta.get("split_rows")) {
        let inputs = meta.get("features").and_then(Value::as_array).map_or(0, Vec::len);
        let shape = meta.get("out_shape").map(text).unwrap_or_default();
        lines
            .push(format!("data {}: {rows} rows (train, val, test {split}), {inputs} inputs -> {shape}", text(digest)));
    }
    if let Some(seed) = config.get("seed") {
        let division = config.pointer("/data/split").map(Value::to_string).unwrap_or_default();
        lines.push(format!("seed {seed}, split {division}"));
    }
    let errors = |name: &str, one: &Metrics| {
        let shown = format::columns(one.measure());
        let texts: Vec<String> = shown[..2].iter().map(|(name, of)| format!("{name} {:.5}", of(one))).collect();
        format!("  {name:14}  {}", texts.join("  "))
    };
    for (split, metrics) in &manifest.metrics {
        lines.push(format!("errors on {split}"));
        lines.push(errors("ENN", metrics));
        let baselines = manifest.findings.baselines.get(split).into_iter().flatten();
        lines.extend(baselines.map(|(name, one)| errors(name, one)));
    }
    lines.extend(manifest.findings.decisions.iter().map(|decision| format!("decided: {decision}")));
}

fn file_contents(found: &Contents) -> String {
    let mut lines = vec![format!("{}: {}", found.path.display(), found.form)];
    lines.extend(found.tensors.iter().map(|(name, dtype, shape)| format!("{name}  {dtype}  {shape:?}")));
    lines.extend(found.values.iter().map(|(name, text)| format!("{name} = {text}")));
    lines.extend(found.refused.iter().map(|what| format!("not read: {what}")));
    if let Some(mapped) = &found.mapped {
        let made = mapped.tensors.len();
        let left = mapped.left.len();
        lines.push(format!(
            "as ENN has it: {} settings, {made} tensors; {left} entries are left",
            mapped.settings.len()
        ));
        lines.extend(mapped.settings.iter().map(|(theirs, ours, value)| format!("{ours} = {value}  from {theirs}")));
        let made =
            mapped.tensors.iter().map(|(name, shape, from)| format!("{name}  {shape:?}  from {}", from.join(", ")));
        lines.extend(made);
        lines.extend(mapped.left.iter().map(|(name, why)| format!("left: {name}: {why}")));
    }
    output::lines(&lines)
}

/// Returns as JSON how ENN reads a file of ENN for PyTorch.
fn mapped(found: &Mapped) -> Value {
    let setting =
        |(theirs, ours, value): &(String, String, String)| json!({"from": theirs, "to": ours, "value": value});
    let tensor =
        |(name, shape, from): &(String, Vec<u64>, Vec<String>)| json!({"name": name, "shape": shape, "from": from});
    let left = |(name, why): &(String, String)| json!({"name": name, "reason": why});
    json!({
        "settings": found.settings.iter().map(setting).collect::<Vec<_>>(),
        "tensors": found.tensors.iter().map(tensor).collect::<Vec<_>>(),
        "left": found.left.iter().map(left).collect::<Vec<_>>(),
    })
}

fn contents(shown: &Shown) -> String {
    let mut lines = vec![shown.path.display().to_string()];
    if let Some(manifest) = &shown.manifest {
        lines.push(format!(
            "run {}  step {}  epoch {}  world {}",
            manifest.run, manifest.step, manifest.epoch, manifest.world
        ));
    }
    if let Some(manifest) = &shown.manifest {
        model_card(manifest, &mut lines);
    }
    let width = shown.tensors.iter().map(|tensor| tensor.name.chars().count()).max().unwrap_or(0);
    for tensor in &shown.tensors {
        lines.push(format!("{:width$}  {:10}  {:?}", tensor.name, tensor.dtype, tensor.shape));
    }
    output::lines(&lines)
}
