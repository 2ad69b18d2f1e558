//! `enn ckpt verify`.

use super::{
    super::{bar::Bar, output},
    Which, tell,
};
use crate::{
    Error, api,
    convert::{self, Outcome, Verified},
    facts::Facts,
    runs::Need,
};
use enn_common::{exit::ExitCode, fs::space::readable};
use serde_json::json;

/// Read a checkpoint or a saved model and check all that its form carries checks for
///
/// A run stands for its newest complete checkpoint; what is at an address is fetched anew for this. A checkpoint of ours is compared with the digests of its manifest. One that
/// PyTorch wrote is compared with the checksums inside its files, which PyTorch itself never looks at. Exit code 5 if anything
/// is wrong, 9 if files are newer than what lists them: a later save into the same directory may have failed, or it was copied.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// Also read every tensor by itself: coverage, its own checksum, elements that are not finite
    #[arg(long, help_heading = "Job")]
    deep: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let bar = Bar::new("verifying", args.which.json);
    let mut progress = |done, total| bar.set(done, total);
    let found = match api::at_address(&[args.which.runs.dir(facts)], &args.which.what, Need::Model, facts)? {
        None => convert::verify(&args.which.path(facts)?, args.deep, &mut progress)?,
        Some((shelf, name)) => api::verify_at((&shelf, &name), args.deep, &mut progress)?,
    };
    drop(bar);
    let outcome = found.outcome();
    let json = json!({
        "path": found.path, "form": found.form, "ok": outcome == Outcome::Whole, "outcome": outcome.name(), "tensors": found.tensors, "values": found.values,
        "bytes": found.bytes, "problems": found.problems, "suspicions": found.suspicions, "notes": found.notes,
    });
    tell(args.which.json, Ok(json), || text(&found))?;
    Ok(match outcome {
        Outcome::Whole => ExitCode::Success,
        Outcome::Suspect => ExitCode::Suspect,
        Outcome::Damaged => ExitCode::Artifact,
    })
}

fn text(found: &Verified) -> String {
    let path = found.path.display();
    let mut lines: Vec<String> = found.problems.iter().map(|problem| format!("WRONG  {problem}")).collect();
    lines.extend(found.suspicions.iter().map(|what| format!("MAYBE  {what}")));
    lines.extend(found.notes.iter().map(|note| format!("note   {note}")));
    let Verified { form, tensors, values, .. } = found;
    let bytes = readable(found.bytes);
    lines.push(match found.outcome() {
        Outcome::Whole => {
            format!("{path}: {form} with {tensors} tensors ({bytes}) and {values} values is as it was written")
        }
        Outcome::Suspect => {
            format!("{path}: this {form} is readable, and may be a mixture of two saves, see the lines above")
        }
        Outcome::Damaged => format!("{path}: this {form} is damaged, see the {} lines above", found.problems.len()),
    });
    output::lines(&lines)
}
