//! `enn model`: models in the forms people share them.

use super::{flags::Runs, output};
use crate::{Error, api, facts::Facts, run_dir};
use enn_common::exit::ExitCode;
use std::path::PathBuf;

/// Save a run's model to a file, or load one into a new run
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Save the best weights: NAME.safetensors, NAME.pt (torch.load(weights_only=True)), or a directory for the whole checkpoint
    Save {
        /// Run: its directory, its name, the beginning of its name, or "latest"
        #[arg(value_name = "RUN")]
        run: String,
        /// Target
        #[arg(value_name = "TARGET")]
        target: PathBuf,
        /// Replace the target when it is there
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        runs: Runs,
    },
    /// Load a saved model into a new run directory, ready for predict and for train --resume
    Load {
        /// NAME.safetensors, NAME.pt, or the directory of a checkpoint
        #[arg(value_name = "SOURCE")]
        source: PathBuf,
        #[command(flatten)]
        runs: Runs,
    },
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    match &args.what {
        What::Save { run, target, replace, runs } => {
            let run = run_dir::find(&runs.dir(facts), run)?;
            let saved = api::save_model(&run, &facts.cwd.join(target), *replace)?;
            output::text_line(&format!("{}: {} tensors, {} bytes", saved.path.display(), saved.tensors, saved.bytes))?;
        }
        What::Load { source, runs } => {
            let run = api::load_model(&facts.cwd.join(source), &runs.dir(facts))?;
            output::text_line(&run.display().to_string())?;
        }
    }
    Ok(ExitCode::Success)
}
