//! `enn train`.

use super::{
    bar::Bar,
    flags::{Changes, Cluster, Elastic, Events, Nodes, Runs, Scrape, Show, TableColumns},
};
use crate::{
    Error,
    api::{self, FinetuneOptions, Override, TableOptions, TrainOptions},
    error::Usage,
    facts::Facts,
    names::names,
    torchrun::Dialect,
};
use enn_cluster::{
    slurm::Allocation,
    supervise::{RunEnd, StopSignal},
};
use enn_common::{
    config::{RunConfig, data::SourceFormat, parent::ScalerChoice, raw::RawValue},
    exit::ExitCode,
};
use enn_data::{baselines::Effort, stage};
use enn_process::run_dir;
use enn_ui::{Mode, message, runs::Need};
use std::{
    io::Write,
    path::{Path, PathBuf},
};

/// Train a model: stage the data, start workers, keep them alive
///
/// A table with --target in place of a configuration is trained with the configuration that `enn new` proposes, which the run keeps as
/// config.toml.
///
/// With --runs-dir s3://BUCKET/PATH (or gs://, az://, file://) runs are kept there: checkpoints are uploaded, and a run whose end
/// cannot be uploaded has failed. Training works in a copy below the user's cache; --resume s3://BUCKET/PATH/NAME continues the run on any
/// machine.
///
/// Ctrl-C once finishes the step, writes a checkpoint and ends with code 130; twice kills. Flags that torchrun has, too, are also
/// read from PET_<NAME>.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Configuration (TOML), or a table together with --target, which may be several files; may be left out with --resume RUN
    #[arg(value_name = "CONFIG|TABLE", help_heading = "Job")]
    job: Vec<PathBuf>,
    #[command(flatten)]
    columns: TableColumns,
    /// Go on with a run: its directory, its name, the beginning of its name, its address, "latest", or "auto"
    ///
    /// "auto" takes the newest run of the configuration's name that has a checkpoint, and begins a new one when there is none. A finished
    /// run is not changed, unless more epochs are configured.
    #[arg(long, value_name = "RUN", help_heading = "Job")]
    resume: Option<String>,
    /// Begin with the weights of another run, a checkpoint, or a .safetensors or .pt file of ENN
    ///
    /// The optimizer is fresh. Without sizes in [model] the model has those of the pretrained one. New categories begin as unknown ones.
    #[arg(long, value_name = "RUN|CHECKPOINT|FILE", conflicts_with = "resume", help_heading = "Job")]
    from: Option<String>,
    /// With --from: which statistics standardise numbers; required where they differ
    ///
    /// "keep": those of the pretrained model. "refit": those of the new training rows; weights are rewritten so that the first prediction
    /// stays the same.
    #[arg(
        long,
        value_name = "keep|refit",
        value_parser = names(&SCALERS, &[]),
        hide_possible_values = true,
        requires = "from",
        help_heading = "Job"
    )]
    scaler: Option<ScalerChoice>,
    /// With --from: load the tensors that fit although others do not, and list the others
    #[arg(long, requires = "from", help_heading = "Job")]
    partial: bool,
    /// Train on this staged directory, which `enn stage` printed, instead of staging [data]
    #[arg(long, value_name = "DIR", help_heading = "Job")]
    staged: Option<PathBuf>,
    /// Baselines to fit beside training: all, or the quick ones alone, which cost one pass over the data (cell mean, persistence)
    #[arg(long, value_name = "WHICH", value_parser = names(&BASELINES, &[]), default_value = "all", help_heading = "Job")]
    baselines: Effort,
    /// Time a few steps operation by operation; `enn profile RUN` shows the result
    #[arg(long, help_heading = "Output")]
    profile: bool,
    #[command(flatten)]
    runs: Runs,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    elastic: Elastic,
    #[command(flatten)]
    nodes: Nodes,
    #[command(flatten)]
    show: Show,
    #[command(flatten)]
    events: Events,
    #[command(flatten)]
    scrape: Scrape,
}

/// The values of --scaler.
const SCALERS: [(&str, ScalerChoice); 2] = [("keep", ScalerChoice::Keep), ("refit", ScalerChoice::Refit)];
/// The values of --baselines.
const BASELINES: [(&str, Effort); 2] = [("all", Effort::Full), ("quick", Effort::OnePass)];

impl Args {
    fn finetune(&self, facts: &Facts) -> Result<Option<FinetuneOptions>, Error> {
        let Some(reference) = &self.from else { return Ok(None) };
        let path = facts.cwd.join(reference);
        let source = if path.exists() { path } else { self.runs.find(reference, Need::Model, facts)? };
        Ok(Some(FinetuneOptions { source, scaler: self.scaler, partial: self.partial }))
    }
}

/// A configuration, and its text if no file has it.
struct JobConfig {
    config: RunConfig,
    text: Option<String>,
}

impl JobConfig {
    /// Reads the configuration at the path that is given, or makes one for the table there. Tells people what was guessed.
    fn read(args: &Args, path: &Path, overrides: &[Override], facts: &Facts) -> Result<Self, Error> {
        let is_shown = !matches!(args.show.mode(), Mode::Quiet | Mode::Json);
        let say = |line: &str| {
            if is_shown {
                message::print(line)
            }
        };
        let format = format(overrides);
        // A name that tells no format is that of a table if columns are named, and that of a configuration otherwise.
        let is_table = stage::is_data(path) || format.is_some() && args.columns.given().is_some();
        if !is_table {
            if let Some(second) = args.job.get(1) {
                return Err(Error::Usage(Usage::SecondConfig { path: path.to_owned(), second: second.to_owned() }));
            }
            if let Some(flag) = args.columns.given() {
                return Err(Error::Usage(Usage::ColumnsOfConfig { flag, path: path.to_owned() }));
            }
            let loaded = api::read_config(path, overrides, facts)?;
            loaded.columns.iter().for_each(|columns| say(columns));
            return Ok(Self { config: loaded.config, text: None });
        }
        let files = args.job.clone();
        let options = TableOptions {
            command: args.columns.command("train", &files),
            files,
            format,
            sheet: sheet(overrides),
            choices: args.columns.choices(),
            base: None,
            schema: None,
        };
        let made = api::config_of_table(&options, facts)?;
        made.proposal.summary().iter().for_each(|line| say(line));
        say("the run keeps this as config.toml");
        // The paths in it are absolute; mistakes are those of the command line.
        let loaded = api::parse_config(&made.text, path, overrides, facts)?;
        Ok(Self { config: loaded.config, text: Some(made.text) })
    }
}

/// Returns the format of files that an override chooses.
fn format(overrides: &[Override]) -> Option<SourceFormat> {
    let name = overrides.iter().rev().find_map(|one| one.text_of("data.format"))?;
    SourceFormat::NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
}

/// Returns the sheet of a workbook that an override chooses.
fn sheet(overrides: &[Override]) -> Option<String> {
    overrides.iter().rev().find_map(|one| one.text_of("data.sheet"))
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<u8, Error> {
    let (flags, _) = args.nodes.flags(&args.cluster, facts).map_err(Box::new)?;
    let allocation = api::allocation(&flags, Dialect::Enn, facts)?;
    // A single node needs no rendezvous.
    match allocation.filter(|allocation| allocation.nodes.len() > 1) {
        Some(allocation) => api::take_part(&flags, facts, &allocation, || agent(args, Some(&allocation), facts)),
        None => agent(args, None, facts),
    }
}

fn agent(args: &Args, allocation: Option<&Allocation>, facts: &Facts) -> Result<u8, Error> {
    let runs_dir = args.runs.dir(facts);
    let mut overrides = Cluster::variables(facts);
    overrides.extend(args.changes.overrides());
    overrides.extend(args.cluster.overrides());
    overrides.extend(args.elastic.overrides());
    let tasks = allocation.map_or(1, Allocation::local_tasks);
    if tasks > 1 && !args.cluster.gives_workers(facts) {
        let value = RawValue::Integer(tasks.into());
        overrides.push(Override::Flag("cluster.nproc_per_node", value, format!("{tasks} tasks of Slurm's on a node")));
    }
    if args.profile {
        overrides.push(Override::Flag("train.profile", RawValue::Bool(true), "--profile".to_owned()));
    }
    if let (None, Some(flag)) = (args.job.first(), args.columns.given()) {
        return Err(Error::Usage(Usage::ColumnsOfNothing { flag }));
    }
    let (JobConfig { config, text }, resume) = match (args.job.first(), args.resume.as_deref()) {
        (None, None) => return Err(Error::Usage(Usage::NothingToTrain)),
        (None, Some("auto")) => return Err(Error::Usage(Usage::AutoWithoutConfig)),
        (None, Some(reference)) => {
            let run = args.runs.find(reference, Need::Training, facts)?;
            let config = api::change_config(&run_dir::read_config(&run)?, &overrides, facts)?;
            (JobConfig { config, text: None }, Some(run))
        }
        (Some(path), reference) => {
            let job = JobConfig::read(args, path, &overrides, facts)?;
            let resume = match reference {
                None => None,
                Some("auto") => {
                    let bar = Bar::new("fetching", false);
                    api::newest_run(&runs_dir, &job.config.name, facts, &mut |done, total| bar.set(done, total))?
                }
                Some(reference) => Some(args.runs.find(reference, Need::Training, facts)?),
            };
            (job, resume)
        }
    };
    if let Some(run) = resume.as_deref().map(|run| api::finished(&config, run)).transpose()?.flatten() {
        // A closed standard error is ignored.
        let _gone = writeln!(std::io::stderr(), "{}", run.message());
    }
    let (flags, own) = args.nodes.flags(&args.cluster, facts).map_err(Box::new)?;
    let nodes = api::meeting(flags, &own, &config, allocation, facts)?;
    let options = TrainOptions {
        nodes,
        finetune: args.finetune(facts)?,
        runs_dir,
        resume,
        staged: args.staged.as_ref().map(|dir| facts.cwd.join(dir)),
        mode: args.show.mode(),
        handle_signals: true,
        metrics_addr: args.scrape.metrics_addr,
        baselines: args.baselines,
        config_text: text,
    };
    let run = api::train(&config, facts, &options)?;
    // Only the leader requeues the job; a nonzero exit status of another node would make srun end it.
    if run.ended == RunEnd::Stopped(StopSignal::TimeLimit) && (!run.led || api::requeued(facts)?) {
        return Ok(ExitCode::Success as u8);
    }
    Ok(api::exit_code(&run.ended) as u8)
}
