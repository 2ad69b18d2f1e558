//! `enn ckpt convert` and `merge`.

use super::{
    super::{bar::Bar, flags::Runs, output},
    locate::path,
};
use crate::{Error, facts::Facts, names::names};
use enn_checkpoint::convert::{self, ConvertError, ConvertOptions, Converted, Selection, Target};
use enn_common::{checkpoint::TensorDType, fs::space::readable};
use serde_json::json;
use std::path::PathBuf;

/// Maximum number of lines about entries that are left out.
const LINES_MAX: usize = 20;

/// Change the form of a checkpoint or saved model: DCP, .safetensors alone or in shards, .pt, a checkpoint of ENN
///
/// The target's name says the form: NAME.safetensors, NAME.pt, a name without extension for a directory that
/// torch.distributed.checkpoint reads. One tensor is in memory at a time, and the target is whole or absent. A DCP directory is
/// always written so that every PyTorch since 2.6 reads it, also one that only a newer PyTorch could read.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run, checkpoint directory, .safetensors file, its index or a directory of them, .pt file
    #[arg(value_name = "SOURCE", help_heading = "Job")]
    source: String,
    /// File or directory to be written
    #[arg(value_name = "TARGET", help_heading = "Job")]
    target: PathBuf,
    /// Form, where the name does not say it: dcp, enn (dcp with a sealed manifest), shards (safetensors with an index)
    #[arg(long, value_name = "FORM", value_parser = names(&FORMS, &[]), help_heading = "Job")]
    to: Option<Target>,
    /// Bytes after which another file is begun (dcp, enn, shards)
    #[arg(long, value_name = "N", default_value_t = convert::SHARD_BYTES, help_heading = "Job")]
    shard_bytes: u64,
    #[command(flatten)]
    flags: ConvertFlags,
}

/// Put the shards of a checkpoint or of a model together in one file
#[derive(Debug, clap::Args)]
pub(super) struct MergeArgs {
    /// Checkpoint directory, index or directory of .safetensors shards
    #[arg(value_name = "SOURCE", help_heading = "Job")]
    source: String,
    /// NAME.safetensors or NAME.pt
    #[arg(value_name = "TARGET", help_heading = "Job")]
    target: PathBuf,
    #[command(flatten)]
    flags: ConvertFlags,
}

/// Flags that select and convert tensors.
#[derive(Debug, clap::Args)]
struct ConvertFlags {
    /// Take names that fit: a name, its beginning up to a dot, or a pattern with *; may be repeated
    #[arg(long, value_name = "NAME", help_heading = "Job")]
    only: Vec<String>,
    /// Leave names out that fit; may be repeated
    #[arg(long, value_name = "NAME", help_heading = "Job")]
    without: Vec<String>,
    /// Remove this prefix from names: model for model.layer.weight
    #[arg(long, value_name = "NAME", help_heading = "Job")]
    strip: Option<String>,
    /// Element type of floating-point tensors: float64, float32, float16 or bfloat16
    #[arg(long, value_name = "TYPE", value_parser = names(&FLOATS, &[]), help_heading = "Job")]
    dtype: Option<TensorDType>,
    /// Replace the target if it is there
    #[arg(long, help_heading = "Job")]
    replace: bool,
    #[command(flatten)]
    runs: Runs,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// The values of --to.
const FORMS: [(&str, Target); 5] = [
    ("dcp", Target::Dcp),
    ("enn", Target::Enn),
    ("safetensors", Target::Safetensors),
    ("shards", Target::Shards),
    ("pt", Target::Pt),
];
/// The values of --dtype.
const FLOATS: [(&str, TensorDType); 4] = [
    ("float64", TensorDType::F64),
    ("float32", TensorDType::F32),
    ("float16", TensorDType::F16),
    ("bfloat16", TensorDType::Bf16),
];

impl ConvertFlags {
    fn options(&self, form: Option<Target>, shard_bytes: u64) -> ConvertOptions {
        let select = Selection { only: self.only.clone(), without: self.without.clone(), strip: self.strip.clone() };
        ConvertOptions { form, select, dtype: self.dtype, shard_bytes, replace: self.replace }
    }
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    work(&args.source, &args.target, &args.flags, &args.flags.options(args.to, args.shard_bytes), facts)
}

pub(super) fn run_merge(args: &MergeArgs, facts: &Facts) -> Result<(), Error> {
    let form = Target::of(&args.target)?;
    if !matches!(form, Target::Safetensors | Target::Pt) {
        let what =
            "found no name of one file, expected NAME.safetensors or NAME.pt; `convert` writes directories".to_owned();
        return Err(ConvertError::InvalidOptions { path: args.target.clone(), what }.into());
    }
    work(&args.source, &args.target, &args.flags, &args.flags.options(Some(form), u64::MAX), facts)
}

fn work(
    source: &str,
    target: &std::path::Path,
    flags: &ConvertFlags,
    options: &ConvertOptions,
    facts: &Facts,
) -> Result<(), Error> {
    let source = path(source, &flags.runs, facts)?;
    let bar = Bar::new("writing", flags.json);
    let done = convert::convert(&source, &facts.cwd.join(target), options, &mut |done, total| bar.set(done, total))?;
    drop(bar);
    let json = json!({
        "path": done.path, "files_read": done.sources, "tensors": done.tensors, "values": done.values, "bytes": done.bytes,
        "left_out": done.left_out, "notes": done.notes,
    });
    output::print(flags.json, &json, || text(&done))
}

fn text(done: &Converted) -> String {
    let mut lines: Vec<String> = done.left_out.iter().take(LINES_MAX).map(|line| format!("left out  {line}")).collect();
    if let Some(more @ 1..) = done.left_out.len().checked_sub(LINES_MAX) {
        lines.push(format!("left out  {more} more"));
    }
    lines.extend(done.notes.iter().map(|note| format!("note      {note}")));
    let bytes = readable(done.bytes);
    let files = done.sources;
    lines.push(format!(
        "{}: {} tensors ({bytes}) and {} values from {files} file{}",
        done.path.display(),
        done.tensors,
        done.values,
        if files == 1 { "" } else { "s" }
    ));
    output::lines(&lines)
}
