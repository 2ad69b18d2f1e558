//! `enn mlflow`.

use super::{flags::RunList, output};
use crate::{Error, facts::Facts};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use enn_ui::{
    message,
    mlflow::{self, ArtifactMode, MlflowOptions, StoredRun},
};
use serde_json::{Value, json};
use std::{io::IsTerminal, path::PathBuf};

/// Maximum number of runs that one command exports.
const RUNS_MAX: usize = 1_000;

/// Export runs to MLflow's file store: parameters, metrics of every epoch, tags, report
///
/// Without RUN: the newest runs with the configuration name of the newest run. A run that is exported again is updated. MLflow 3 reads a
/// file store if MLFLOW_ALLOW_FILE_STORE is true; `mlflow migrate-filestore` moves one into a database.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    runs: RunList,
    /// Directory of the store [default: mlruns]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    to: Option<PathBuf>,
    /// Experiment of the runs [default: the name in the configuration of each run]
    #[arg(long, value_name = "NAME", help_heading = "Output")]
    experiment: Option<String>,
    /// Report and configuration: copied, hard links to the run's own files, or left out
    #[arg(long, value_name = "HOW", default_value = "copy", value_parser = artifact_modes(), help_heading = "Output")]
    artifacts: ArtifactMode,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let paths = args.runs.find(RUNS_MAX, facts)?;
    let store = facts.cwd.join(args.to.as_deref().unwrap_or(mlflow::FOLDER.as_ref()));
    let options = MlflowOptions { store, experiment: args.experiment.clone(), artifacts: args.artifacts };
    let stored = paths.iter().map(|path| mlflow::export(path, &options)).collect::<Result<Vec<_>, _>>()?;
    if args.json {
        return output::json(&json!({"store": options.store, "runs": stored.iter().map(document).collect::<Vec<_>>()}));
    }
    let lines: Vec<String> = stored.iter().map(line).collect();
    output::text_line(&output::lines(&lines))?;
    if std::io::stdout().is_terminal() {
        let store = options.store.display();
        message::print(&format!(
            "to look at them: MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri '{store}'"
        ));
    }
    Ok(())
}

fn document(stored: &StoredRun) -> Value {
    json!({
        "run": stored.run, "experiment": stored.experiment, "experiment_id": stored.experiment_id, "run_id": stored.run_id,
        "path": stored.path, "new": stored.is_new,
    })
}

fn line(stored: &StoredRun) -> String {
    let verb = if stored.is_new { "exported" } else { "updated" };
    format!("{verb} {} in the experiment {} (run {})", stored.run, stored.experiment, stored.run_id)
}

fn artifact_modes() -> impl TypedValueParser<Value = ArtifactMode> {
    let mode = |name: String| {
        ArtifactMode::ALL.iter().find(|(known, _)| *known == name).map_or(ArtifactMode::Copy, |(_, mode)| *mode)
    };
    PossibleValuesParser::new(ArtifactMode::ALL.map(|(name, _)| name)).map(mode)
}
