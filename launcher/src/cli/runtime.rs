//! `enn runtime`: what enn starts to run artifacts in, for itself.

use crate::Error;
use enn_common::exit::ExitCode;
use enn_export::maker::apart::Library;
use std::{io, path::PathBuf};

/// Run, or make, an exported artifact in a library of another's, for the enn that started this one
///
/// A line of JSON each way, over standard input and output; it ends with its input.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Whose library: onnxruntime, litert or tensorflow
    library: Library,
    /// Its file
    path: PathBuf,
    /// Threads of a call, for onnxruntime; 0 takes as many as it likes
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Job")]
    threads: usize,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Error> {
    let place = (args.path.as_path(), args.threads);
    args.library.serve(place, io::stdin().lock(), io::stdout().lock()).map_err(Error::Output)?;
    Ok(ExitCode::Success)
}
