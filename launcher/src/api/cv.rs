//! `cv`: stages once, divides the data for every fold, trains each fold in its own process, and evaluates the forecasts on the held-out
//! rows.

use super::{
    announce::Announcer,
    cv_options::CvOptions,
    folds::{FORECASTS, Folds},
    launch, staging,
};
use crate::{Error, error::Usage, facts::Facts};
use enn_common::{
    artifact::{
        cv::{CvRecord, FORMAT, FoldRecord, FoldState, VERSION},
        evaluation::Evaluation,
    },
    config::{
        RunConfig,
        data::{DataConfig, SplitConfig, SplitKind},
        train::{Device, Nproc},
    },
    fs::RelPath,
    secrets,
    staged::Staged,
};
use enn_data::{
    cv::{
        self, FoldRunner, FoldTask,
        rule::{self, FoldSpec, Rule},
    },
    stage as stager,
};
use enn_process::run_dir::{self, RunDir};
use enn_ui::Sink;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Forecasts of all rows, below the directory of the cross-validation.
pub const OUT_OF_FOLD: &str = "out-of-fold.parquet";
/// Output of a fold's process, below its run directory.
const LOG: &str = "launcher.log";

#[derive(Debug, Clone, PartialEq)]
pub struct CrossValidated {
    pub dir: PathBuf,
    pub record: CvRecord,
    /// The evaluation over all finished folds, which is also written to evaluation.json and report.html; `None` when stopped or when no
    /// fold is done.
    pub evaluation: Option<Evaluation>,
    /// The signal that stopped the cross-validation.
    pub stopped: Option<i32>,
}

/// Trains and evaluates `config` on every fold; `on_fold` is called when a fold has ended. With `None` the cross-validation in `resume` is
/// resumed.
///
/// # Errors
/// Wrong data or options, or a machine that lacks something. A fold that fails is recorded.
pub fn cross_validate(
    config: Option<&RunConfig>,
    facts: &Facts,
    options: &CvOptions,
    on_fold: &mut dyn FnMut(&CvRecord, usize),
) -> Result<CrossValidated, Error> {
    let (run, mut record) = match (config, &options.resume) {
        (Some(config), None) => begin(config, facts, options)?,
        (None, Some(path)) => {
            let run = RunDir::open(path)?;
            let record = CvRecord::read(run.path())?;
            (run, record)
        }
        _ => return Err(Error::Usage(Usage::ConfigOrResume)),
    };
    let config: RunConfig = serde_json::from_value(record.config.clone())
        .map_err(|source| Error::Json { path: run.path().to_owned(), source })?;
    let program = program(facts)?;
    let mut folds = Folds::new(&config, facts, options, run.path(), &record.staged)?;
    let open: Vec<usize> =
        (0..record.folds.len()).filter(|fold| record.folds[*fold].state != FoldState::Done).collect();
    let mut tasks = Vec::new();
    for fold in open {
        record.folds[fold].state = FoldState::Pending;
        tasks.push(task(&program, run.path(), fold, &record.folds[fold], &config, facts)?);
    }
    record.write(run.path())?;
    let mut runner = FoldRunner::new(options.handle_signals)?;
    let seats = seats(&config, facts, record.jobs);
    let mut broken = None;
    runner.work(tasks, &seats, &mut |ended| {
        settle(&mut record, &ended, &mut folds);
        record.sum_up();
        if let Err(error) = record.write(run.path()) {
            broken.get_or_insert(error);
        }
        on_fold(&record, ended.fold);
    })?;
    if let Some(error) = broken {
        return Err(error.into());
    }
    let stopped = runner.stopped().map(|signal| signal as i32);
    gather_folds(&record, run.path())?;
    let evaluation = if stopped.is_none() { folds.evaluation(&record)? } else { None };
    Ok(CrossValidated { dir: run.path().to_owned(), record, evaluation, stopped })
}

/// Stages and divides the data, and writes the first record.
fn begin(config: &RunConfig, facts: &Facts, options: &CvOptions) -> Result<(RunDir, CvRecord), Error> {
    let data = config.data.as_ref().ok_or(Error::Usage(Usage::NoData))?;
    if data.split.kind == SplitKind::Column {
        return Err(Error::Usage(Usage::FoldsByColumn));
    }
    run_dir::local(&options.runs_dir)?;
    // All rows are training rows here, so that all categories are known; a fold keeps the categories of its training rows.
    let whole = SplitConfig { kind: SplitKind::Random, val: 0.0, test: 0.0, ..data.split.clone() };
    let staging = RunConfig { data: Some(DataConfig { split: whole, ..data.clone() }), ..config.clone() };
    let announcer = Announcer::start(Sink::bare(options.mode));
    let place = facts.cwd.join(&options.runs_dir).join(staging::STAGED_DIR);
    let staged = staging::stage_data(&staging, None, &place, &announcer)?;
    drop(announcer);
    if data.split.kind == SplitKind::Chronological {
        stager::require_order(data, &place)?;
    }
    let seed = options.seed.unwrap_or(config.seed);
    let wanted = FoldSpec { folds: options.folds, val: data.split.val, seed };
    let (rule, sentence) = folds_of(data, &staged.dir, wanted)?;
    let run = RunDir::create(&options.runs_dir, &format!("{}-cv", config.name), time::OffsetDateTime::now_utc())?;
    let mut folds = Vec::new();
    let whole = Staged::open(&staged.dir)?;
    for (fold, mut split) in rule::divide(&rule, wanted).into_iter().enumerate() {
        stager::purge(data, &whole, &mut split)?;
        let divided = stager::redivide(&staged.dir, &split)?;
        folds.push(FoldRecord {
            run: RelPath::parse(format!("fold-{fold:02}")).map_err(Error::Path)?,
            staged: divided.dir,
            rows: divided.meta.split_rows,
            state: FoldState::Pending,
            seconds: 0.0,
            errors: BTreeMap::new(),
        });
    }
    let jobs = jobs(config, facts, options);
    let config = fold_config(config, facts, jobs);
    let record = CvRecord {
        format: FORMAT.to_owned(),
        version: VERSION,
        run: run.id(),
        config: serde_json::to_value(&config).map_err(|source| Error::Json { path: run.path().to_owned(), source })?,
        units: staged.meta.units.clone(),
        rule: sentence,
        seed,
        staged: staged.dir,
        jobs,
        folds,
        contenders: Vec::new(),
        notes: Vec::new(),
    };
    Ok((run, record))
}

/// Returns the rule for the configured split, and a sentence about it.
fn folds_of(data: &DataConfig, staged: &Path, wanted: FoldSpec) -> Result<(Rule, String), Error> {
    let staged = Staged::open(staged)?;
    let samples = staged.rows();
    let folds = wanted.folds;
    let val = format!("{:.0} % of the others validate", 100.0 * wanted.val);
    let (rule, units, sentence) = match data.split.kind {
        SplitKind::Chronological | SplitKind::InOrder | SplitKind::Blocked => {
            let sources: Vec<usize> = staged.meta().sources.iter().map(|source| source.rows() as usize).collect();
            let of_each = if sources.is_empty() { "" } else { " of each source" };
            let sentence = format!(
                "{folds} blocks in the order of time{of_each}; the last {:.0} % of the other blocks validate",
                100.0 * wanted.val
            );
            (Rule::Blocks(if sources.is_empty() { vec![samples] } else { sources }), samples, sentence)
        }
        SplitKind::Group => {
            let column = data.split.column.as_deref().unwrap_or_default();
            let words = stager::labels(data, column, &staged)?;
            let (of, names) = units(&words);
            let groups = names.len();
            let sentence = format!(
                "{folds} folds of the {groups} groups of {column} by a hash of their names, seed {}; {val}",
                wanted.seed
            );
            (Rule::Units { of, names }, groups, sentence)
        }
        SplitKind::Random | SplitKind::Column => {
            let of = (0..samples as u32).collect();
            let sentence = format!("{folds} folds of rows by a hash of their ids, seed {}; {val}", wanted.seed);
            (Rule::Units { of, names: staged.row_id().to_vec() }, samples, sentence)
        }
    };
    if folds < 2 || folds > units {
        return Err(Error::Usage(Usage::Folds { folds, units }));
    }
    Ok((rule, sentence))
}

/// Returns the unit of every sample by its word, and for each unit a number that depends on the word alone.
fn units(words: &[String]) -> (Vec<u32>, Vec<i64>) {
    let mut index: BTreeMap<&str, u32> = words.iter().map(|word| (word.as_str(), 0)).collect();
    index.values_mut().zip(0..).for_each(|(unit, next)| *unit = next);
    let name = |word: &&str| {
        let digest = blake3::hash(word.as_bytes());
        digest.as_bytes().first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
    };
    (words.iter().map(|word| index[word.as_str()]).collect(), index.keys().map(name).collect())
}

/// Returns the number of folds that are trained in parallel.
fn jobs(config: &RunConfig, facts: &Facts, options: &CvOptions) -> usize {
    let places = if config.cluster.device == Device::Cuda { facts.gpus } else { facts.cores };
    options.jobs.unwrap_or(places).clamp(1, options.folds.max(1))
}

/// Returns the number of GPUs of each of `jobs` parallel folds.
fn gpus_each(facts: &Facts, jobs: usize) -> usize {
    (facts.gpus / jobs.max(1)).max(1)
}

/// Returns the GPUs of each of `jobs` parallel folds in the form of `CUDA_VISIBLE_DEVICES`; folds share GPUs when there are more folds than
/// GPUs.
fn seats(config: &RunConfig, facts: &Facts, jobs: usize) -> Vec<Option<String>> {
    if config.cluster.device != Device::Cuda || jobs == 1 {
        return vec![None; jobs.max(1)];
    }
    let named = facts.visible_devices.as_deref().map(|list| list.split(',').map(str::trim).collect::<Vec<_>>());
    let name = |gpu: usize| {
        let gpu = gpu % facts.gpus.max(1);
        named.as_ref().and_then(|names| names.get(gpu)).map_or_else(|| gpu.to_string(), |name| (*name).to_owned())
    };
    let each = gpus_each(facts, jobs);
    (0..jobs).map(|job| Some((job * each..(job + 1) * each).map(name).collect::<Vec<_>>().join(","))).collect()
}

/// Returns the configuration of one of `jobs` parallel folds: on CPUs one worker with its share of the cores, on GPUs one worker for each
/// of the fold's GPUs.
fn fold_config(config: &RunConfig, facts: &Facts, jobs: usize) -> RunConfig {
    let mut config = config.clone();
    let most = if config.cluster.device == Device::Cuda { gpus_each(facts, jobs) as u32 } else { 1 };
    let workers = launch::world(&config).min(most);
    config.cluster.nproc_per_node = Nproc::Count(workers);
    config.cluster.workers_min = config.cluster.workers_min.min(workers);
    if config.train.threads == 0 {
        config.train.threads = (facts.cores / (jobs * workers as usize)).max(1);
    }
    config
}

/// Finds the program `enn`: this executable, or the one next to the worker when this is another program.
pub(super) fn program(facts: &Facts) -> Result<PathBuf, Error> {
    let own = std::env::current_exe().ok().filter(|path| path.file_name().is_some_and(|name| name == "enn"));
    let beside =
        || facts.libtorch.worker().ok().map(|worker| worker.with_file_name("enn")).filter(|path| path.is_file());
    own.or_else(beside).ok_or_else(|| Error::NoEnn { hint: facts.libtorch.installation().get_enn() })
}

/// Returns the task that trains a fold. The fold's directory is made like that of a run, so that every command finds it.
fn task(
    program: &Path,
    dir: &Path,
    fold: usize,
    record: &FoldRecord,
    config: &RunConfig,
    facts: &Facts,
) -> Result<FoldTask, Error> {
    let path = record.run.locate(dir)?;
    if !path.exists() {
        let run = RunDir::create_at(&path)?;
        run.write_config(config)?;
    }
    let mut command = secrets::command(program);
    command
        .arg("train")
        .arg("--resume")
        .arg(&path)
        .arg("--staged")
        .arg(&record.staged)
        // All baselines are fitted when the fold is evaluated, on its validation rows too.
        .args(["--nnodes", "1", "--lines", "--baselines", "quick"]);
    // The configuration already contains the values of these variables.
    facts.pet.keys().for_each(|name| {
        command.env_remove(name);
    });
    Ok(FoldTask { fold, command, log: path.join(LOG) })
}

/// Evaluates a trained fold and records the result.
fn settle(record: &mut CvRecord, ended: &cv::FoldOutcome, folds: &mut Folds<'_>) {
    let fold = &mut record.folds[ended.fold];
    fold.seconds += ended.seconds;
    let judged = match &ended.failed {
        Some(cause) => Err(cause.clone()),
        None => folds.evaluate_fold(ended.fold, fold).map_err(|error| error.to_string()),
    };
    match judged {
        Err(cause) => fold.state = FoldState::Failed { cause },
        Ok((errors, notes)) => {
            fold.state = FoldState::Done;
            fold.errors = errors;
            for note in notes {
                let note = format!("fold {}: {note}", ended.fold);
                record.notes.push(note);
            }
        }
    }
}

/// Writes the forecasts of all finished folds as one table.
fn gather_folds(record: &CvRecord, dir: &Path) -> Result<(), Error> {
    let done = record.folds.iter().enumerate().filter(|(_, fold)| fold.state == FoldState::Done);
    let done: Vec<_> =
        done.map(|(number, fold)| (number, fold.staged.clone(), fold.run.below(dir).join(FORECASTS))).collect();
    Ok(cv::write_table(&dir.join(OUT_OF_FOLD), &record.staged, &done)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::config::train::ClusterConfig;

    #[test]
    fn folds_share_the_gpus_of_a_node() {
        let facts = |gpus: usize, visible: Option<&str>| Facts {
            gpus,
            cores: 16,
            visible_devices: visible.map(str::to_owned),
            ..Facts::gather()
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        std::fs::write(&path, "name = \"a\"\n").unwrap();
        let config = crate::api::load_config(&path, &[], &facts(0, None)).unwrap();
        let of = |device: Device| RunConfig {
            cluster: ClusterConfig { device, nproc_per_node: Nproc::Count(8), ..config.cluster.clone() },
            ..config.clone()
        };
        let cuda = of(Device::Cuda);
        let told = |facts: &Facts, jobs: usize| {
            let seats = seats(&cuda, facts, jobs).into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>();
            (seats.join(" "), launch::world(&fold_config(&cuda, facts, jobs)))
        };
        assert_eq!(told(&facts(8, None), 8), ("0 1 2 3 4 5 6 7".to_owned(), 1));
        assert_eq!(told(&facts(4, Some("GPU-a, 5,6,7")), 2), ("GPU-a,5 6,7".to_owned(), 2));
        assert_eq!(told(&facts(2, None), 3), ("0 1 0".to_owned(), 1), "some share one");
        assert_eq!(told(&facts(8, None), 1), (String::new(), 8), "one fold has all");
        let cpu = of(Device::Cpu);
        assert_eq!(seats(&cpu, &facts(8, None), 2), [None, None]);
        assert_eq!(
            (
                launch::world(&fold_config(&cpu, &facts(0, None), 4)),
                fold_config(&cpu, &facts(0, None), 4).train.threads
            ),
            (1, 4)
        );
    }
}
