//! `enn ckpt verify`.

use super::{super::bar::Bar, Which, tell};
use crate::{
    Error,
    convert::{self, Verified},
    facts::Facts,
};
use enn_common::{exit::ExitCode, fs::space::readable};
use serde_json::json;

/// Read a checkpoint or a saved model and check all that its form carries checks for
///
/// A run stands for its newest complete checkpoint. A checkpoint of ours is compared with the digests of its manifest. One that
/// PyTorch wrote is compared with the checksums inside its files, which PyTorch itself never looks at. Exit code 5 if anything
/// is wrong.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// Also read every tensor by itself: coverage, its own checksum, elements that are not finite
    #[arg(long, help_heading = "Job")]
    deep: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let path = args.which.path(facts)?;
    let bar = Bar::new("verifying", args.which.json);
    let found = convert::verify(&path, args.deep, &mut |done, total| bar.set(done, total))?;
    drop(bar);
    let ok = found.problems.is_empty();
    let json = json!({
        "path": found.path, "form": found.form, "ok": ok, "tensors": found.tensors, "values": found.values,
        "bytes": found.bytes, "problems": found.problems, "notes": found.notes,
    });
    tell(args.which.json, Ok(json), || text(&found))?;
    Ok(if ok { ExitCode::Success } else { ExitCode::Artifact })
}

fn text(found: &Verified) -> String {
    let path = found.path.display();
    let mut lines: Vec<String> = found.problems.iter().map(|problem| format!("WRONG  {problem}")).collect();
    lines.extend(found.notes.iter().map(|note| format!("note   {note}")));
    lines.push(if found.problems.is_empty() {
        let bytes = readable(found.bytes);
        format!(
            "{path}: {} with {} tensors ({bytes}) and {} values is as it was written",
            found.form, found.tensors, found.values
        )
    } else {
        format!("{path}: this {} is damaged, see the {} lines above", found.form, found.problems.len())
    });
    lines.join("\n")
}
