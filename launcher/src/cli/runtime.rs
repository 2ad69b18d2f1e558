//! `enn runtime`: the process in which enn runs artifacts.

use crate::Error;
use enn_export::maker::apart::Library;
use std::{io, path::PathBuf};

/// Run, or make, an exported artifact in a third-party library, for the enn that started this process
///
/// A line of JSON each way, over standard input and output; it ends with its input.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Kind of library: onnxruntime, litert or tensorflow
    library: Library,
    /// File of the library
    path: PathBuf,
    /// Threads of a call, for onnxruntime; 0 takes as many as it likes
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Job")]
    threads: usize,
}

pub(super) fn run(args: &Args) -> Result<(), Error> {
    args.library.serve(&args.path, args.threads, io::stdin().lock(), io::stdout().lock()).map_err(Error::Output)?;
    Ok(())
}
