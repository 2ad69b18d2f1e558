//! `enn model`: models in exchange formats, and the tasks of their configurations.

use super::{flags::Runs, output, task_table};
use crate::{
    Error, api,
    facts::Facts,
    tasks::{TaskEdit, TaskKeys},
};
use enn_ui::runs::Need;
use std::path::{Path, PathBuf};

/// Save a run's model to a file, load one into a new run, or list and edit the tasks of a configuration
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: ModelCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ModelCommand {
    /// Save the best weights: NAME.safetensors, NAME.pt (torch.load(weights_only=True)), or a directory for the whole checkpoint
    Save {
        /// Run: its directory, its name, the beginning of its name, its address, or "latest"
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
    /// List the tasks of a configuration or a run: those of its preset, then its own
    Tasks {
        /// A configuration's file, or a run: its directory, its name, the beginning of its name, its address, or "latest"
        #[arg(value_name = "CONFIG|RUN")]
        place: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        runs: Runs,
    },
    /// Add a task to a configuration's file: a template (--mode) or a sub-fuser (--reduction)
    Add {
        #[command(flatten)]
        task: TaskInFile,
        #[command(flatten)]
        keys: TaskKeys,
        /// Sub-fuser that joins it [default: the model's own fuser]
        #[arg(long, value_name = "NAME")]
        parent: Option<String>,
        /// Tasks that it joins, which have no parent
        #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
        children: Vec<String>,
    },
    /// Change the values of a task in a configuration's file
    Update {
        #[command(flatten)]
        task: TaskInFile,
        #[command(flatten)]
        keys: TaskKeys,
    },
    /// Let a sub-fuser of a configuration's file join a task that has no parent
    Attach {
        #[command(flatten)]
        task: TaskInFile,
        /// Sub-fuser
        #[arg(value_name = "PARENT")]
        parent: String,
    },
    /// Let the model's own fuser join a task of a configuration's file that has a parent
    Detach {
        #[command(flatten)]
        task: TaskInFile,
    },
    /// Take a task out of a configuration's file
    Remove {
        #[command(flatten)]
        task: TaskInFile,
    },
}

/// A task in a configuration file.
#[derive(Debug, clap::Args)]
struct TaskInFile {
    /// A configuration's file; comments and all else in it stay as they are
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// Name of the task
    #[arg(value_name = "NAME")]
    name: String,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    match &args.command {
        ModelCommand::Save { run, target, replace, runs } => {
            let run = runs.find(run, Need::Model, facts)?;
            let saved = api::save_model(&run, &facts.cwd.join(target), *replace)?;
            output::text_line(&format!("{}: {} tensors, {} bytes", saved.path.display(), saved.tensors, saved.bytes))?;
        }
        ModelCommand::Load { source, runs } => {
            let run = api::load_model(&facts.cwd.join(source), &runs.dir(facts))?;
            output::text_line(&run.display().to_string())?;
        }
        ModelCommand::Tasks { place, json, runs } => {
            let forest = api::tasks_of(place, &runs.dir(facts), facts)?;
            output::print(*json, &forest, || task_table::text(&forest))?;
        }
        edit => {
            let (config, edit) = edit.as_edit();
            output::text_line(&task_table::text(&api::edit_tasks(config, &edit, facts)?))?;
        }
    }
    Ok(())
}

impl ModelCommand {
    /// Returns the file and the edit of an editing subcommand.
    fn as_edit(&self) -> (&Path, TaskEdit) {
        let (task, edit) = match self {
            Self::Add { task, keys, parent, children } => {
                let name = task.name.clone();
                let keys = keys.clone();
                (task, TaskEdit::Add { name, parent: parent.clone(), children: children.clone(), keys })
            }
            Self::Update { task, keys } => (task, TaskEdit::Update { name: task.name.clone(), keys: keys.clone() }),
            Self::Attach { task, parent } => {
                (task, TaskEdit::Attach { child: task.name.clone(), parent: parent.clone() })
            }
            Self::Detach { task } => (task, TaskEdit::Detach { child: task.name.clone() }),
            Self::Remove { task } => (task, TaskEdit::Remove { name: task.name.clone() }),
            Self::Save { .. } | Self::Load { .. } | Self::Tasks { .. } => unreachable!("these edit nothing"),
        };
        (&task.config, edit)
    }
}
