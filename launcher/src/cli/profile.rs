//! `enn profile`.

use super::{flags::Runs, output};
use crate::{Error, facts::Facts};
use enn_ui::runs::Need;

/// Compare the cost of a run's operations with the limits of the machine
///
/// For runs started with `enn train --profile`. The traces of all ranks are put together in `profile/trace.json` of the run,
/// which Perfetto and Chrome's tracing page show.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run: its directory, its name, the beginning of its name, its address, or "latest"
    #[arg(value_name = "RUN", help_heading = "Job")]
    run: String,
    #[command(flatten)]
    runs: Runs,
    /// Print the record of a step instead: every operation with its operands, its place in the model and its kernel
    #[arg(long, help_heading = "Output")]
    program: bool,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let run = args.runs.find(&args.run, Need::Profile, facts)?;
    if args.program {
        let program = enn_ui::program::read(&run)?;
        return output::print(args.json, &program, || enn_ui::program::listing(&program).trim_end().to_owned());
    }
    let roofline = enn_ui::roofline::read(&run)?;
    let trace = enn_ui::roofline::gather_traces(&run)?;
    let text = || format!("{}\ntrace: {}", enn_ui::roofline::table(&roofline), trace.display());
    output::print(args.json, &roofline, text)
}
