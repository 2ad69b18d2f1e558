//! Models outside of a training: new ones with seeded weights, saved ones, loaded ones.

use super::{announce::Announcer, launch, predict, train};
use crate::{
    Error,
    agent::{self, Durable, Ended, Job},
    convert::{self, Saved},
    facts::Facts,
    run_dir::RunDir,
    ui::{Mode, Sink},
};
use enn_common::{config::RunConfig, fs::atomic, staged::StagedMeta};
use std::path::{Path, PathBuf};

/// Makes a run directory under `runs_dir` with the seeded initial weights of `config` for data described by `meta`, as a
/// committed checkpoint of step 0; returns the directory.
///
/// # Errors
/// A machine that lacks something, or [`Error::Worker`] when the model cannot be built.
pub fn new_model(config: &RunConfig, meta: &StagedMeta, facts: &Facts, runs_dir: &Path) -> Result<PathBuf, Error> {
    let run = RunDir::create(runs_dir, &config.name, time::OffsetDateTime::now_utc())?;
    run.write_config(config)?;
    let path = run.path().join("meta.json");
    let text = serde_json::to_vec_pretty(meta).map_err(|source| Error::Json { path: path.clone(), source })?;
    atomic::write(&path, &text)?;
    let announcer = Announcer::start(Sink::new(run.path(), Mode::Quiet)?);
    let spec = launch::agent_spec(config, facts, &run, Job::Init { meta: path }, false)?;
    let draft = train::draft(&run.id(), config, meta)?;
    let durable = Durable::new(run.checkpoints(), config.train.checkpoint_keep, draft, Box::new(|_| {}));
    let outcome = agent::run(&spec, Box::new(durable), &mut |what| announcer.tell(what))?;
    match outcome.ended {
        Ended::Failed { cause } => Err(Error::Worker(cause)),
        _ => Ok(run.path().to_owned()),
    }
}

/// Saves the best weights of a run or a checkpoint: `NAME.safetensors`, `NAME.pt` (readable with
/// `torch.load(weights_only=True)`), or without extension the whole checkpoint, readable by `torch.distributed.checkpoint`.
///
/// # Errors
/// No complete checkpoint, a target that exists unless `replace`, or too little disk.
pub fn save_model(source: &Path, target: &Path, replace: bool) -> Result<Saved, Error> {
    Ok(convert::save_model(source, target, replace)?)
}

/// Loads a model that [`save_model`] wrote into a new run directory under `runs_dir`; returns the directory.
///
/// # Errors
/// A file that is damaged or not ours, with a list of the tensors that do not fit.
pub fn load_model(source: &Path, runs_dir: &Path) -> Result<PathBuf, Error> {
    let stem = source.file_stem().map_or_else(|| "model".into(), |stem| stem.to_string_lossy().into_owned());
    let run = RunDir::create(runs_dir, &stem, time::OffsetDateTime::now_utc())?;
    let committed = convert::load_model(source, &run.checkpoints(), predict::now())?;
    let manifest = enn_common::checkpoint::Manifest::read(&committed.path)?;
    let json = |source| Error::Json { path: committed.path.clone(), source };
    let config: RunConfig = serde_json::from_value(manifest.config).map_err(json)?;
    run.write_config(&config)?;
    Ok(run.path().to_owned())
}
