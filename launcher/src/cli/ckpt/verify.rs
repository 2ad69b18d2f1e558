//! `enn ckpt verify`.

use super::{
    super::{bar::Bar, output},
    locate::CheckpointArgs,
};
use crate::{Error, api, facts::Facts};
use enn_checkpoint::convert::{self, Outcome, Verified};
use enn_common::{exit::ExitCode, fs::space::readable};
use enn_ui::runs::Need;
use serde_json::json;

/// Read a checkpoint or a saved model and check all that its form carries checks for
///
/// A run stands for its newest complete checkpoint; what is at an address is fetched anew for this. A checkpoint of ours is compared with the digests of its manifest. One that
/// PyTorch wrote is compared with the checksums inside its files, which PyTorch itself never looks at. Files are read by what they hold,
/// whatever their name. "damaged": bytes are not those that were written. "foreign": it is of another library, and everything else is read.
/// "dangerous": it runs code when Python loads the file; nothing of it runs here. Exit code 5 if anything is damaged or dangerous, or no
/// checkpoint at all; 9 if files are newer than what lists them: a later save into the same directory may have failed, or it was copied.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: CheckpointArgs,
    /// Also read every tensor by itself: coverage, its own checksum, elements that are not finite
    #[arg(long, help_heading = "Job")]
    deep: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let bar = Bar::new("verifying", args.which.json);
    let mut progress = |done, total| bar.set(done, total);
    let found = match api::at_address(&[args.which.runs.dir(facts)], &args.which.what, Need::Model, facts)? {
        None => convert::verify(&args.which.path(facts)?, args.deep, &mut progress)?,
        Some((remote_runs, name)) => api::verify_at(&remote_runs, &name, args.deep, &mut progress)?,
    };
    drop(bar);
    let outcome = found.outcome();
    let code = match outcome {
        Outcome::Foreign if found.is_unread => ExitCode::Artifact,
        Outcome::Whole | Outcome::Foreign => ExitCode::Success,
        Outcome::Suspect => ExitCode::Suspect,
        Outcome::Damaged | Outcome::Dangerous => ExitCode::Artifact,
    };
    let json = json!({
        "path": found.path, "form": found.form, "ok": code == ExitCode::Success, "outcome": outcome.name(), "tensors": found.tensors, "values": found.values,
        "bytes": found.bytes, "problems": found.problems, "foreign": found.foreign, "dangerous": found.dangerous, "suspicions": found.suspicions, "notes": found.notes,
    });
    output::print(args.which.json, &json, || text(&found))?;
    Ok(code)
}

fn text(found: &Verified) -> String {
    let path = found.path.display();
    let entries =
        |word: &'static str, what: &[String]| what.iter().map(|what| format!("{word:9}  {what}")).collect::<Vec<_>>();
    let mut lines = entries("dangerous", &found.dangerous);
    lines.extend(entries("damaged", &found.problems));
    lines.extend(entries("foreign", &found.foreign));
    lines.extend(entries("maybe", &found.suspicions));
    lines.extend(entries("note", &found.notes));
    let Verified { form, tensors, values, .. } = found;
    let bytes = readable(found.bytes);
    lines.push(match found.outcome() {
        Outcome::Whole => {
            format!("{path}: {form} with {tensors} tensors ({bytes}) and {values} values is as it was written")
        }
        Outcome::Foreign if found.is_unread => format!("{path}: this is no checkpoint that is read here"),
        Outcome::Foreign => format!(
            "{path}: the {tensors} tensors ({bytes}) and {values} values of this {form} are as they were written; foreign objects are not read, \
             see the {} lines above",
            found.foreign.len()
        ),
        Outcome::Dangerous => format!(
            "{path}: this {form} is dangerous, see the {} lines above; `enn ckpt convert` takes its {tensors} tensors without running anything",
            found.dangerous.len()
        ),
        Outcome::Suspect => {
            format!("{path}: this {form} is readable, and may be a mixture of two saves, see the lines above")
        }
        Outcome::Damaged => format!("{path}: this {form} is damaged, see the {} lines above", found.problems.len()),
    });
    output::lines(&lines)
}
