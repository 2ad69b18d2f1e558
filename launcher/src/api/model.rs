//! `new_model`: seeded initial weights as a run directory.

use super::{announce::Announcer, launch, train};
use crate::{
    Error,
    agent::{self, Durable, Ended, Job},
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
