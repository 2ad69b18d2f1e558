//! `enn ckpt push` and `pull`.

use super::{
    super::{bar::Bar, flags::Runs, output},
    locate::path,
};
use crate::{Error, facts::Facts};
use enn_checkpoint::remote::{self, Pushed, Store};
use enn_common::{
    checkpoint::{listing, name},
    fs::space::readable,
};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Upload the newest complete checkpoint of a run, or a checkpoint, to an object store or a directory
///
/// Files are uploaded in parts, the manifest last: without it there is no checkpoint. An interrupted upload resumes with the part that it
/// had reached. The configuration, journal and report of a run are uploaded too, so that `enn ckpt pull` restores the run. Credentials are
/// taken from the environment (AWS_ACCESS_KEY_ID …, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME …).
#[derive(Debug, clap::Args)]
pub(super) struct PushArgs {
    /// Run or checkpoint directory
    #[arg(value_name = "WHAT", help_heading = "Job")]
    what: String,
    /// s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH, file:///PATH or a directory
    #[arg(value_name = "PLACE", help_heading = "Job")]
    place: String,
    /// All complete checkpoints of the run, oldest first
    #[arg(long, help_heading = "Job")]
    all: bool,
    /// Replace another checkpoint of the same step
    #[arg(long, help_heading = "Job")]
    replace: bool,
    #[command(flatten)]
    runs: Runs,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Copy a checkpoint from an object store or another directory, verified, whole or not at all
///
/// The source is a checkpoint, or a run or its checkpoints, of which the newest complete one is taken; of a run also its configuration, so
/// that `enn predict TARGET` works. An interrupted copy resumes.
#[derive(Debug, clap::Args)]
pub(super) struct PullArgs {
    /// s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH, file:///PATH or a directory
    #[arg(value_name = "PLACE", help_heading = "Job")]
    place: String,
    /// Directory to be made: a checkpoint, or a run's directory
    #[arg(value_name = "TARGET", help_heading = "Job")]
    target: PathBuf,
    /// Step, where there are several
    #[arg(long, value_name = "N", help_heading = "Job")]
    step: Option<u64>,
    /// Replace a target that is there and is another checkpoint
    #[arg(long, help_heading = "Job")]
    replace: bool,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

fn open(place: &str, facts: &Facts) -> Result<Store, Error> {
    let path = || facts.cwd.join(place).display().to_string();
    Ok(Store::open(&if Store::is_address(place) { place.to_owned() } else { path() })?)
}

pub(super) fn run_push(args: &PushArgs, facts: &Facts) -> Result<(), Error> {
    let store = open(&args.place, facts)?;
    let source = path(&args.what, &args.runs, facts)?;
    let bar = Bar::new("uploading", args.json);
    let pushed = push(&source, &store, args, &mut |done, total| bar.set(done, total))?;
    drop(bar);
    let one = |one: &Pushed| json!({"place": one.place, "step": one.step, "sent": one.sent, "present": one.present, "bytes": one.bytes});
    let json = json!(pushed.iter().map(one).collect::<Vec<_>>());
    let line = |one: &Pushed| {
        let bytes = readable(one.bytes);
        let sent = one.sent;
        let present = one.present;
        format!("{}: {sent} files sent, {present} were there, {bytes} in all", one.place)
    };
    output::print(args.json, &json, || pushed.iter().map(line).collect::<Vec<_>>().join("\n"))
}

fn push(
    source: &Path,
    store: &Store,
    args: &PushArgs,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Pushed>, Error> {
    if name::is_dcp(source) {
        return Ok(vec![remote::push(source, store, args.replace, progress)?]);
    }
    // This reports what is wrong with the newest checkpoint.
    listing::find(source)?;
    Ok(remote::push_run(source, store, args.all, args.replace, progress)?)
}

pub(super) fn run_pull(args: &PullArgs, facts: &Facts) -> Result<(), Error> {
    let store = open(&args.place, facts)?;
    let target = facts.cwd.join(&args.target);
    let bar = Bar::new("fetching", args.json);
    let done = remote::pull(&store, args.step, &target, args.replace, &mut |done, total| bar.set(done, total))?;
    drop(bar);
    let json = json!({
        "path": done.path, "place": done.place, "step": done.step, "files": done.files, "bytes": done.bytes,
        "resumed": done.resumed,
    });
    output::print(args.json, &json, || {
        format!("{}: {} files, {}, every digest is right", done.path.display(), done.files, readable(done.bytes))
    })
}
