//! Groups of flags that several subcommands share.

use super::bar::Bar;
use crate::{
    Error,
    api::{self, Override},
    error::Usage,
    facts::Facts,
    names::names,
    torchrun,
};
use clap::Args;
use enn_common::config::raw::{RawConfig, RawValue};
use enn_data::survey::{ColumnChoices, FeatureChoice, TargetTask};
use enn_process::run_dir;
use enn_ui::runs::{Need, RunKind};
use enn_ui::{Mode, shell_word};
use std::{
    fmt::Display,
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// torchrun's variables that correspond to keys of the configuration.
const NPROC: &str = "PET_NPROC_PER_NODE";
const RESTARTS: &str = "PET_MAX_RESTARTS";

/// Changes to the configuration.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job")]
pub(super) struct Changes {
    /// Set a key of the configuration, e.g. train.epochs=3; may be repeated
    ///
    /// The value is read as TOML; what is not TOML is text, so quotes may be left out.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Columns of a table for which a configuration is made.
#[derive(Debug, Args)]
#[command(next_help_heading = "Table")]
pub(super) struct TableColumns {
    /// Column to predict; may be repeated for several numbers
    #[arg(long, value_name = "COLUMN")]
    target: Vec<String>,
    /// Column of times: the latest rows are for validation and test; the times of a forecast
    #[arg(long, value_name = "COLUMN")]
    time: Option<String>,
    /// Column that tells the series of a forecast apart
    #[arg(long, value_name = "COLUMN")]
    series: Option<String>,
    /// Steps to forecast, with --time and --series [default: by the distance of the times]
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    horizon: Option<u32>,
    /// What to predict: regression or classification [default: by the values of the target]
    #[arg(long, value_name = "TASK", value_parser = names(&TargetTask::NAMES, &[]), hide_possible_values = true)]
    task: Option<TargetTask>,
    /// Input; may be repeated. Without it: all columns that seem to be of use
    ///
    /// The name of a column, or a section of TOML that says more, such as '{ column = "shop", kind = "index", rows = 40 }'.
    #[arg(long = "feature", value_name = "COLUMN", value_parser = feature)]
    features: Vec<FeatureChoice>,
    /// Column that is not used; may be repeated
    #[arg(long, value_name = "COLUMN")]
    exclude: Vec<String>,
    /// Column of numbers that are categories; may be repeated
    #[arg(long = "category", value_name = "COLUMN", conflicts_with_all = ["series", "horizon"])]
    categories: Vec<String>,
    /// Column with the weight of each row
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["series", "horizon"])]
    weight: Option<String>,
    /// Column whose rows stay together when the table is split
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["time", "series", "horizon"])]
    group: Option<String>,
}

/// Parses an input: the name of a column, or a section of TOML with the key `column`.
fn feature(text: &str) -> Result<FeatureChoice, String> {
    if !text.trim_start().starts_with('{') {
        return Ok(FeatureChoice { column: text.to_owned(), written: None });
    }
    let raw = RawConfig::parse(&format!("feature = {text}"), Path::new("--feature")).ok();
    match raw.as_ref().and_then(|raw| raw.get("feature.column")).map(|node| &node.value) {
        Some(RawValue::Text(column)) => Ok(FeatureChoice { column: column.clone(), written: Some(text.to_owned()) }),
        _ => {
            Err("expected the name of a column, or a section such as { column = \"a\", kind = \"category\" }"
                .to_owned())
        }
    }
}

impl TableColumns {
    pub(super) fn choices(&self) -> ColumnChoices {
        ColumnChoices {
            targets: self.target.clone(),
            time: self.time.clone(),
            series: self.series.clone(),
            horizon: self.horizon.and_then(|steps| usize::try_from(steps).ok()),
            task: self.task,
            features: self.features.clone(),
            exclude: self.exclude.clone(),
            categories: self.categories.clone(),
            weight: self.weight.clone(),
            group: self.group.clone(),
        }
    }

    /// Returns a flag that was given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--target", !self.target.is_empty()),
            ("--time", self.time.is_some()),
            ("--series", self.series.is_some()),
            ("--horizon", self.horizon.is_some()),
            ("--task", self.task.is_some()),
            ("--feature", !self.features.is_empty()),
            ("--exclude", !self.exclude.is_empty()),
            ("--category", !self.categories.is_empty()),
            ("--weight", self.weight.is_some()),
            ("--group", self.group.is_some()),
        ];
        flags.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }

    /// Returns the command line that makes a configuration of tables.
    pub(super) fn command(&self, name: &str, tables: &[PathBuf]) -> String {
        let mut words = vec![format!("enn {name}")];
        words.extend(tables.iter().map(|table| shell_word(table)));
        let word = |text: &str| shell_word(Path::new(text));
        let written = |feature: &FeatureChoice| feature.written.clone().unwrap_or_else(|| feature.column.clone());
        let features: Vec<String> = self.features.iter().map(written).collect();
        let lists = [
            ("--target", &self.target),
            ("--feature", &features),
            ("--exclude", &self.exclude),
            ("--category", &self.categories),
        ];
        for (flag, columns) in lists {
            words.extend(columns.iter().map(|column| format!("{flag} {}", word(column))));
        }
        let columns =
            [("--time", &self.time), ("--series", &self.series), ("--weight", &self.weight), ("--group", &self.group)];
        words.extend(
            columns.into_iter().filter_map(|(flag, column)| Some(format!("{flag} {}", word(column.as_ref()?)))),
        );
        words.extend(self.horizon.map(|steps| format!("--horizon {steps}")));
        words.extend(self.task.map(|task| format!("--task {}", task.name())));
        words.join(" ")
    }
}

/// Workers and what happens when they fail.
#[derive(Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct Cluster {
    /// Workers on this node: auto, gpu, cpu or a number
    ///
    /// auto: one per GPU, else one per two cores, at most 8. gpu: one per GPU. cpu: one per core.
    #[arg(long, alias = "nproc_per_node", value_name = "N")]
    nproc_per_node: Option<String>,
    /// Maximum number of recoveries [default: 3]
    ///
    /// Under reform: recoveries in a row, without a step between them. Under restart: all of them.
    #[arg(long, alias = "max_restarts", value_name = "N")]
    max_restarts: Option<u32>,
    /// Seconds to finish the step and checkpoint after Ctrl-C [default: 30]
    #[arg(long, value_name = "SECONDS")]
    grace: Option<f64>,
    /// Device of the workers: auto, cpu or cuda
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
}

/// Training that goes on when workers fail.
#[derive(Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct Elastic {
    /// Workers at least and at most: training goes on with fewer while the others are replaced
    #[arg(long, value_name = "MIN:MAX", conflicts_with = "nproc_per_node", value_parser = workers)]
    workers: Option<(u32, u32)>,
    /// After a failure: reform (the others keep their state and go on) or restart (all start again) [default: reform]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Processes that stand by to replace a worker that fails [default: 0]
    #[arg(long, value_name = "K")]
    spares: Option<u32>,
    /// Replace a worker that the others wait for all the time with a spare
    #[arg(long, alias = "evict_stragglers")]
    evict_stragglers: bool,
    /// Seconds without progress of any worker after which one is replaced; 0: never [default: 600]
    #[arg(long, alias = "hang_timeout", value_name = "SECONDS")]
    hang_timeout: Option<f64>,
}

/// Training on several nodes. Slurm says all of it by itself.
#[derive(Debug, Args)]
#[command(next_help_heading = "Nodes")]
pub(super) struct Nodes {
    /// Nodes: a number, or MIN:MAX for a run that may shrink and grow [default: 1]
    ///
    /// Start the same command on every node. The directory of runs must be on a file system that all of them share.
    #[arg(long, value_name = "N|MIN:MAX")]
    nnodes: Option<String>,
    /// Where the nodes meet, e.g. n1:29400: the node that owns the address leads
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST[:PORT]")]
    rdzv_endpoint: Option<String>,
    /// Name of the run; nodes with another name are refused [default: none]
    #[arg(long, alias = "rdzv_id", value_name = "NAME")]
    rdzv_id: Option<String>,
    /// Rank of this node, where ranks are given: 0 leads
    #[arg(long, alias = "node_rank", value_name = "N")]
    node_rank: Option<String>,
    /// Details of the rendezvous: join_timeout=600, last_call_timeout=30, keep_alive_interval, is_host, …
    #[arg(long, alias = "rdzv_conf", value_name = "KEY=VALUE,…")]
    rdzv_conf: Option<String>,
    /// Name or address at which the other nodes reach this one [default: found out]
    #[arg(long, alias = "local_addr", value_name = "HOST")]
    local_addr: Option<String>,
    /// File with the secret that the nodes share [default: ENN_TOKEN, else ~/.config/enn/token]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Nodes {
    /// Returns the flags as `enn run` reads them, including variables.
    pub(super) fn flags(
        &self,
        workers: &Cluster,
        facts: &Facts,
    ) -> Result<(torchrun::Flags, torchrun::EnnFlags), torchrun::RunError> {
        let rendezvous = torchrun::RendezvousFlags {
            nnodes: self.nnodes.clone(),
            nproc_per_node: workers.nproc_per_node.clone(),
            node_rank: self.node_rank.clone(),
            local_addr: self.local_addr.clone(),
            rdzv_endpoint: self.rdzv_endpoint.clone(),
            rdzv_id: self.rdzv_id.clone(),
            rdzv_conf: self.rdzv_conf.clone(),
            ..torchrun::RendezvousFlags::default()
        };
        let mut flags = torchrun::Flags::default();
        flags.rendezvous = rendezvous;
        let own = torchrun::EnnFlags { token_file: self.token_file.clone(), ..torchrun::EnnFlags::default() };
        Ok((flags.with_variables(&facts.pet)?, own))
    }
}

/// The flag for the directory of runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job")]
pub(super) struct Runs {
    /// Directory of runs, or the address where they are kept [default: ENN_RUNS, else ./runs]
    #[arg(long, value_name = "DIR|ADDRESS")]
    runs_dir: Option<PathBuf>,
}

impl Runs {
    /// Returns the absolute directory; behind the working directory's name it may be an address.
    pub(super) fn dir(&self, facts: &Facts) -> PathBuf {
        facts.cwd.join(self.runs_dir.as_ref().unwrap_or(&facts.runs_dir))
    }

    /// Returns the directory of the named run if it meets `need`. A model at an address is fetched.
    pub(super) fn find(&self, run: &str, need: Need, facts: &Facts) -> Result<PathBuf, Error> {
        found(run, &[self.dir(facts)], need, facts)
    }
}

fn found(run: &str, dirs: &[PathBuf], need: Need, facts: &Facts) -> Result<PathBuf, Error> {
    let bar = Bar::new("fetching", false);
    let found = api::find_run(dirs, run, need, facts, &mut |done, total| bar.set(done, total))?;
    drop(bar);
    if let Some(note) = found.passed_over {
        // A closed standard error is ignored.
        let _gone = writeln!(std::io::stderr(), "{}", enn_common::shown::line(&note));
    }
    Ok(found.path)
}

/// Returns the exported model with this name, or else the run with a model.
pub(super) fn artifact_or_run(named: &str, runs: &Runs, facts: &Facts) -> Result<PathBuf, Error> {
    let path = facts.cwd.join(named);
    if api::is_artifact(&path) {
        return Ok(path);
    }
    Ok(facts.cwd.join(runs.find(named, Need::Model, facts)?))
}

/// Arguments that name a run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job")]
pub(super) struct RunArgs {
    /// Run: its directory, its name, the beginning of its name, its address; the newest one when left out
    #[arg(value_name = "RUN", default_value = "latest", hide_default_value = true)]
    pub(super) run: String,
    /// Directory of runs, or the address where they are kept [default: ENN_RUNS, else ./runs, and that of `enn run`]
    #[arg(long, value_name = "DIR|ADDRESS")]
    runs_dir: Option<PathBuf>,
}

impl RunArgs {
    pub(super) fn find(&self, need: Need, facts: &Facts) -> Result<PathBuf, Error> {
        find(&self.run, self.runs_dir.as_deref(), need, facts)
    }
}

/// Number of runs that are taken when none is named.
const RUNS_LAST: usize = 10;

/// Arguments that name several runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job")]
pub(super) struct RunList {
    /// Runs: directories, names, beginnings of names, addresses, or "latest"
    #[arg(value_name = "RUN")]
    runs: Vec<String>,
    /// Directory of runs [default: ENN_RUNS, else ./runs]
    #[arg(long, value_name = "DIR")]
    runs_dir: Option<PathBuf>,
    /// Without RUN: at most so many runs [default: 10]
    #[arg(long, value_name = "N", conflicts_with = "runs", value_parser = clap::value_parser!(u32).range(1..))]
    last: Option<u32>,
}

impl RunList {
    /// Returns the directory of trainings, which is searched.
    pub(super) fn dirs(&self, facts: &Facts) -> Vec<PathBuf> {
        vec![facts.cwd.join(self.runs_dir.as_ref().unwrap_or(&facts.runs_dir))]
    }

    /// Returns the directories of at most `limit` named runs, each once; without names the newest trainings with the configuration name of
    /// the newest one.
    pub(super) fn find(&self, limit: usize, facts: &Facts) -> Result<Vec<PathBuf>, Error> {
        let dirs = self.dirs(facts);
        if self.runs.is_empty() {
            return newest_alike(&dirs, self.last.map_or(RUNS_LAST, |last| last as usize).min(limit));
        }
        let mut paths: Vec<PathBuf> = Vec::new();
        for named in &self.runs {
            let path = facts.cwd.join(found(named, &dirs, Need::Training, facts)?);
            let path = path.canonicalize().unwrap_or(path);
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        match paths.len() {
            found if found > limit => Err(Error::Usage(Usage::TooManyRuns { found, limit })),
            _ => Ok(paths),
        }
    }
}

/// Returns the newest trainings whose configuration has the name of the newest one.
fn newest_alike(dirs: &[PathBuf], count: usize) -> Result<Vec<PathBuf>, Error> {
    dirs.iter().try_for_each(|dir| run_dir::local(dir))?;
    let name = |path: &Path| run_dir::read_config(path).ok().map(|config| config.name);
    let all = run_dir::list_where(dirs, |path| RunKind::of(path) == Some(RunKind::Train));
    let mut named = all.into_iter().filter_map(|(_, path)| Some((name(&path)?, path)));
    let Some((wanted, newest)) = named.next() else {
        return Err(Error::Usage(Usage::NoRuns { dirs: dirs.to_vec() }));
    };
    let others = named.filter(|(name, _)| *name == wanted).map(|(_, path)| path);
    Ok(std::iter::once(newest).chain(others).take(count).collect())
}

/// Finds the named run that meets `need`, of a training or of any program.
pub(super) fn find(run: &str, runs_dir: Option<&Path>, need: Need, facts: &Facts) -> Result<PathBuf, Error> {
    found(run, &directories(runs_dir, facts), need, facts)
}

/// Returns the directories that are searched for runs: the given one, else those of trainings and of `enn run`.
pub(super) fn directories(runs_dir: Option<&Path>, facts: &Facts) -> Vec<PathBuf> {
    let mut dirs = match runs_dir {
        Some(dir) => vec![facts.cwd.join(dir)],
        None => vec![facts.cwd.join(&facts.runs_dir), facts.cwd.join(&facts.launches_dir)],
    };
    // ENN_RUNS may name one directory for both: a run that is listed twice would be ambiguous.
    dirs.dedup();
    dirs
}

/// Whether a removal is confirmed by the user, and how it is printed.
#[derive(Debug, Args)]
pub(super) struct Removal {
    /// Do not ask; without a terminal nothing is asked anyway
    #[arg(long, short, help_heading = "Job")]
    pub(super) yes: bool,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

/// Flags of the metrics server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct Scrape {
    /// Serve OpenMetrics at http://ADDRESS/metrics while the run lasts: a port, or host:port
    ///
    /// Off unless given. A port alone is served on the loopback address only; 0.0.0.0:PORT shows the run's name, its hosts
    /// and its numbers to everybody who reaches the port: there is no password.
    #[arg(long, value_name = "ADDRESS", value_parser = enn_ui::metrics_server::address)]
    pub(super) metrics_addr: Option<SocketAddr>,
}

/// How the run is shown.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct Show {
    /// Print plain lines even on a terminal
    #[arg(long)]
    lines: bool,
    /// Print only failures
    #[arg(long, short, conflicts_with = "lines")]
    quiet: bool,
    /// Print every event as one JSON object per line on standard output
    #[arg(long, conflicts_with_all = ["lines", "quiet"])]
    json: bool,
}

/// The channel to the program that started the command.
#[derive(Debug, Args)]
pub(super) struct Events {
    /// Write every event as one JSON object per line to this descriptor, which the starting program has opened
    ///
    /// What people read stays as it is, except that an error is written there instead of to standard error. The first line has the version.
    #[arg(long, value_name = "FD", value_parser = clap::value_parser!(i32).range(1..), help_heading = "Output")]
    pub(super) events: Option<i32>,
}

impl Changes {
    /// Returns the overrides in the given order.
    pub(super) fn overrides(&self) -> Vec<Override> {
        self.set.iter().cloned().map(Override::Set).collect()
    }
}

impl Cluster {
    /// Returns whether a flag or a variable gives the number of workers.
    pub(super) fn gives_workers(&self, facts: &Facts) -> bool {
        self.nproc_per_node.is_some() || variable(NPROC, facts).is_some()
    }

    /// Returns torchrun's variables as overrides of `[cluster]`; overrides of flags come later and take precedence.
    pub(super) fn variables(facts: &Facts) -> Vec<Override> {
        let workers = variable(NPROC, facts).map(|text| workers_by(&format!("{NPROC}={text}"), number(text), 0));
        let restarts = variable(RESTARTS, facts)
            .map(|text| Override::Flag("cluster.max_restarts", number(text), format!("{RESTARTS}={text}")));
        workers.into_iter().flatten().chain(restarts).collect()
    }

    /// Returns the flags as overrides of `[cluster]`.
    pub(super) fn overrides(&self) -> Vec<Override> {
        let workers = self.nproc_per_node.as_ref();
        let workers = workers.map(|text| workers_by(&format!("--nproc-per-node {text}"), number(text), 0));
        let others = [
            given("cluster.max_restarts", "--max-restarts", &self.max_restarts, |n| RawValue::Integer((*n).into())),
            given("cluster.grace_s", "--grace", &self.grace, |seconds| RawValue::Float(*seconds)),
            given("cluster.device", "--device", &self.device, |name| RawValue::Text(name.clone())),
        ];
        workers.into_iter().flatten().chain(others.into_iter().flatten()).collect()
    }
}

/// Returns the override by a flag with a value; `None` where it is not given.
fn given<T: Display>(
    key: &'static str,
    flag: &str,
    value: &Option<T>,
    raw: impl Fn(&T) -> RawValue,
) -> Option<Override> {
    value.as_ref().map(|value| Override::Flag(key, raw(value), format!("{flag} {value}")))
}

/// Returns the overrides of the number of workers and of the least number of workers by one flag.
fn workers_by(flag: &str, count: RawValue, least: u32) -> [Override; 2] {
    let keys = [("cluster.nproc_per_node", count), ("cluster.workers_min", RawValue::Integer(least.into()))];
    keys.map(|(key, value)| Override::Flag(key, value, flag.to_owned()))
}

/// Returns torchrun's variable of this name; an empty one is ignored.
fn variable<'a>(name: &str, facts: &'a Facts) -> Option<&'a str> {
    facts.pet.get(name).map(String::as_str).filter(|text| !text.is_empty())
}

/// Returns the text as an integer, or else as a word such as "auto".
fn number(text: &str) -> RawValue {
    text.trim().parse().map_or_else(|_| RawValue::Text(text.to_owned()), RawValue::Integer)
}

/// Parses "2:4", or "4" as "4:4".
fn workers(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| match text.trim().parse::<u32>() {
        Ok(0) | Err(_) => Err(format!("found \"{text}\", expected a number of workers, or MIN:MAX, e.g. 2:4")),
        Ok(number) => Ok(number),
    };
    match text.split_once(':') {
        None => number(text).map(|count| (count, count)),
        Some((fewest, most)) => match (number(fewest)?, number(most)?) {
            (fewest, most) if fewest > most => Err(format!("found {fewest}:{most}, expected the smaller number first")),
            both => Ok(both),
        },
    }
}

impl Elastic {
    /// Returns the flags as overrides of `[cluster]`.
    pub(super) fn overrides(&self) -> Vec<Override> {
        let workers = self.workers.map(|(least, most)| {
            workers_by(&format!("--workers {least}:{most}"), RawValue::Integer(most.into()), least)
        });
        let evicts = self.evict_stragglers.then(|| "--evict-stragglers".to_owned());
        let others = [
            given("cluster.policy", "--policy", &self.policy, |name| RawValue::Text(name.clone())),
            given("cluster.spares", "--spares", &self.spares, |n| RawValue::Integer((*n).into())),
            evicts.map(|flag| Override::Flag("cluster.evict_stragglers", RawValue::Bool(true), flag)),
            given("cluster.hang_timeout_s", "--hang-timeout", &self.hang_timeout, |s| RawValue::Float(*s)),
        ];
        workers.into_iter().flatten().chain(others.into_iter().flatten()).collect()
    }
}

impl Show {
    pub(super) fn mode(&self) -> Mode {
        match (self.json, self.quiet, self.lines) {
            (true, ..) => Mode::Json,
            (_, true, _) => Mode::Quiet,
            (_, _, true) => Mode::Lines,
            _ => Mode::Auto,
        }
    }
}

/// Parses a span of time such as "30d", "12h" or "2w".
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let refused = || format!("found \"{text}\", expected a time such as 30d, 12h, 45m or 2w");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(refused)?;
    let seconds = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        "w" => 604_800.0,
        _ => return Err(refused()),
    };
    let number: f64 = number.trim().parse().map_err(|_| refused())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_say_what_no_flag_does() {
        let variables =
            [("PET_NPROC_PER_NODE", "gpu"), ("PET_MAX_RESTARTS", "7"), ("PET_NNODES", "2:4"), ("PET_ROLE", "")];
        let pet = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let facts = Facts { pet, ..Facts::gather() };
        let cluster = Cluster { nproc_per_node: None, max_restarts: None, grace: None, device: None };
        let nodes = |nnodes: Option<&str>| Nodes {
            nnodes: nnodes.map(str::to_owned),
            rdzv_endpoint: None,
            rdzv_id: None,
            node_rank: None,
            rdzv_conf: None,
            local_addr: None,
            token_file: None,
        };
        let nnodes = |given| nodes(given).flags(&cluster, &facts).unwrap().0.rendezvous.nnodes;
        assert_eq!((nnodes(None).as_deref(), nnodes(Some("3")).as_deref()), (Some("2:4"), Some("3")));
        assert!(cluster.gives_workers(&facts));
        let overrides: Vec<_> = Cluster::variables(&facts)
            .into_iter()
            .filter_map(|one| match one {
                Override::Flag(key, value, place) => Some((key, value, place)),
                Override::Set(_) => None,
            })
            .collect();
        let workers = "PET_NPROC_PER_NODE=gpu".to_owned();
        assert_eq!(
            overrides,
            [
                ("cluster.nproc_per_node", RawValue::Text("gpu".into()), workers.clone()),
                ("cluster.workers_min", RawValue::Integer(0), workers),
                ("cluster.max_restarts", RawValue::Integer(7), "PET_MAX_RESTARTS=7".into()),
            ]
        );
    }

    #[test]
    fn workers_are_a_number_or_two() {
        assert_eq!((workers("3"), workers("2:4")), (Ok((3, 3)), Ok((2, 4))));
        for wrong in ["", "0", "0:2", "4:2", "a:b", "1:2:3", "-1"] {
            assert!(workers(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_of_time_have_a_unit() {
        assert_eq!((span("30d"), span("1.5h")), (Ok(Duration::from_secs(2_592_000)), Ok(Duration::from_secs(5_400))));
        for wrong in ["", "d", "30", "-1d", "1y", "nand", "infd", "1ä"] {
            assert!(span(wrong).unwrap_err().contains("30d"), "{wrong}");
        }
    }
}
