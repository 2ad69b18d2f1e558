//! `enn ckpt diff`.

use super::{
    super::{bar::Bar, flags::Runs, output},
    locate::{Located, locate},
};
use crate::{Error, facts::Facts};
use enn_checkpoint::convert::{self, Differences, Pair};
use enn_common::exit::ExitCode;
use serde_json::json;

/// Maximum number of names that are listed for each kind of difference.
const NAMES_MAX: usize = 40;

/// Compare two checkpoints or saved models, of whatever forms: names, shapes, element types, values
///
/// One pair of tensors is in memory at a time. Of a checkpoint at an address only what has other checksums is fetched. Exit code 5 if they differ.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run, checkpoint directory or file
    #[arg(value_name = "FIRST", help_heading = "Job")]
    first: String,
    /// Run, checkpoint directory or file
    #[arg(value_name = "SECOND", help_heading = "Job")]
    second: String,
    /// Largest absolute difference at which two elements are equal
    #[arg(long, value_name = "X", default_value_t = 0.0, help_heading = "Job")]
    tolerance: f64,
    #[command(flatten)]
    runs: Runs,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let first = locate(&args.first, &args.runs, facts)?;
    let second = locate(&args.second, &args.runs, facts)?;
    let mut pair = Pair::open(first.path(), second.path())?;
    if [&first, &second].into_iter().any(|one| matches!(one, Located::Remote(_))) {
        let bar = Bar::new("fetching", args.json);
        for (located, places) in [&first, &second].into_iter().zip(pair.trust_checksums()) {
            if let Located::Remote(outlined) = located {
                outlined.outline.fetch(&places, &mut |done, total| bar.set(done, total))?;
            }
        }
    }
    let bar = Bar::new("comparing", args.json);
    let found = pair.diff(args.tolerance, &mut |done, total| bar.set(done, total))?;
    drop(bar);
    let values = |one: &convert::ValueDifference| json!({"name": one.name, "differing": one.differing, "elements": one.elements, "max_abs": one.max_abs});
    let json = json!({
        "same": found.is_empty(), "equal": found.equal, "only_first": found.only_first, "only_second": found.only_second,
        "suspicions": found.suspicions, "shapes": found.shapes, "types": found.types, "plain": found.plain,
        "values": found.values.iter().map(values).collect::<Vec<_>>(),
    });
    output::print(args.json, &json, || text(&found))?;
    Ok(if found.is_empty() { ExitCode::Success } else { ExitCode::Artifact })
}

fn text(found: &Differences) -> String {
    let mut lines = Vec::new();
    let mut add = |texts: Vec<String>| {
        let more = texts.len().saturating_sub(NAMES_MAX);
        lines.extend(texts.into_iter().take(NAMES_MAX));
        if more > 0 {
            lines.push(format!("…      and {more} more"));
        }
    };
    add(found.only_first.iter().map(|name| format!("first  {name} is not in the second")).collect());
    add(found.only_second.iter().map(|name| format!("second {name} is not in the first")).collect());
    add(found.shapes.iter().map(|(name, one, other)| format!("shape  {name}: {one:?} and {other:?}")).collect());
    add(found.types.iter().map(|(name, one, other)| format!("type   {name}: {one} and {other}")).collect());
    let apart = |one: &convert::ValueDifference| {
        let most = one.max_abs.map_or_else(String::new, |most| format!(", by at most {most:e}"));
        format!("value  {}: {} of {} elements differ{most}", one.name, one.differing, one.elements)
    };
    add(found.values.iter().map(apart).collect());
    add(found.plain.iter().map(|what| format!("plain  {what}")).collect());
    lines.extend(found.suspicions.iter().map(|what| format!("maybe  {what}")));
    lines.push(if found.is_empty() {
        format!("the same: {} tensors", found.equal)
    } else {
        format!("{} tensors are the same, the above is not", found.equal)
    });
    output::lines(&lines)
}
