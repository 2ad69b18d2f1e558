//! Models without training: `new_model` with seeded initial weights, `save_model` and `load_model` in exchange formats, and the tasks of a
//! configuration.

use super::{address::find_run, announce::Announcer, launch, lead, settings::read_text};
use crate::{
    Error,
    facts::Facts,
    tasks::{self, TaskEdit},
};
use enn_checkpoint::convert::{self, Saved};
use enn_cluster::supervise::{self, CheckpointStore, RunEnd, RunJob};
use enn_common::{
    checkpoint::Checkpoint,
    config::{Forest, RunConfig},
    fs::atomic,
    staged::StagedMeta,
};
use enn_process::run_dir::{self, RunDir};
use enn_ui::Mode;
use enn_ui::runs::Need;
use std::path::{Path, PathBuf};

/// Makes a run directory under `runs_dir` with the seeded initial weights of `config` for data described by `meta`, as a committed
/// checkpoint of step 0; returns the directory.
///
/// # Errors
/// The machine lacks something, or [`Error::Worker`] when the model cannot be built.
pub fn new_model(config: &RunConfig, meta: &StagedMeta, facts: &Facts, runs_dir: &Path) -> Result<PathBuf, Error> {
    let run = RunDir::create(runs_dir, &config.name, time::OffsetDateTime::now_utc())?;
    run.write_config(config)?;
    let path = run.path().join("meta.json");
    let text = serde_json::to_vec_pretty(meta).map_err(|source| Error::Json { path: path.clone(), source })?;
    atomic::write(&path, &text)?;
    let announcer = Announcer::of_run(&run, Mode::Quiet, None)?;
    let spec = launch::agent_spec(config, facts, &run, RunJob::Init { meta: path }, false)?;
    let draft = lead::draft(&run.id(), config, meta)?;
    let durable = CheckpointStore::new(run.checkpoints(), &config.train, draft, Box::new(|_| {}));
    let outcome = supervise::run(&spec, Box::new(durable), &mut |what| announcer.send(what))?;
    match outcome.end {
        RunEnd::Failed { cause } => Err(Error::Worker(cause)),
        _ => Ok(run.path().to_owned()),
    }
}

/// Saves the newest checkpoint of a run (or a checkpoint directory) as `NAME.safetensors`, `NAME.pt` or, without extension, a DCP
/// directory. The file forms hold the best weights and what is needed to use them.
///
/// # Errors
/// There is no complete checkpoint, the target exists (unless `replace`), or the disk is too small.
pub fn save_model(source: &Path, target: &Path, replace: bool) -> Result<Saved, Error> {
    Ok(convert::save_model(source, target, replace)?)
}

/// Makes a run directory under `runs_dir` from a saved model; returns the directory. `predict` accepts it, and `train` continues from it
/// with `resume`.
///
/// # Errors
/// The file is not of ENN, is damaged, or does not fit its own description: the error lists the differences.
pub fn load_model(source: &Path, runs_dir: &Path) -> Result<PathBuf, Error> {
    let now = time::OffsetDateTime::now_utc();
    let name = source.file_stem().map_or_else(|| "model".into(), |stem| stem.to_string_lossy());
    let run = RunDir::create(runs_dir, &name, now)?;
    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are far below 2^53")]
    let wall_time = now.unix_timestamp() as f64;
    let committed = convert::load_model(source, &run.checkpoints(), wall_time)?;
    let checkpoint = Checkpoint::open(&committed.path).map_err(Box::new)?;
    let manifest = checkpoint.manifest().ok_or_else(|| Error::NoManifest { path: committed.path.clone() })?;
    let config: RunConfig = serde_json::from_value(manifest.config.clone())
        .map_err(|source| Error::Json { path: committed.path.clone(), source })?;
    run.write_config(&config)?;
    Ok(run.path().to_owned())
}

/// Returns the task forest of a configuration's file, or of a run among `runs`.
///
/// # Errors
/// The file cannot be read, the run does not exist, or the model section has mistakes, which are all listed.
pub fn tasks_of(place: &Path, runs: &Path, facts: &Facts) -> Result<Forest, Error> {
    let file = facts.cwd.join(place);
    if file.is_file() {
        return Ok(tasks::read(&read_text(&file)?, place)?);
    }
    let run = find_run(&[runs.to_owned()], &place.to_string_lossy(), Need::Training, facts, &mut |_, _| {})?.path;
    Ok(tasks::forest(&run_dir::read_config(&run)?.model, place)?)
}

/// Edits the tasks of a configuration's file; returns the new forest.
///
/// # Errors
/// The file cannot be read or written, its model section has mistakes, or the edit would leave no valid forest.
pub fn edit_tasks(path: &Path, edit: &TaskEdit, facts: &Facts) -> Result<Forest, Error> {
    let file = facts.cwd.join(path);
    let (text, forest) = tasks::edited(&read_text(&file)?, path, edit)?;
    // A symbolic link is not replaced.
    let file = file.canonicalize().map_err(|source| Error::Read { path: file.clone(), source })?;
    atomic::write(&file, text.as_bytes())?;
    Ok(forest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::TaskKeys;
    use enn_common::config::forest::Mode;

    #[test]
    fn tasks_of_a_file_are_edited_through_a_link_and_a_refused_edit_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut facts = Facts::gather();
        facts.cwd = dir.path().to_owned();
        std::fs::write(dir.path().join("real.toml"), "# mine\n[model]\npreset = \"spatial\"\n").unwrap();
        std::os::unix::fs::symlink("real.toml", dir.path().join("a.toml")).unwrap();
        let add = |name: &str| {
            let keys = TaskKeys { mode: Some(Mode::Temporal), ..TaskKeys::default() };
            let edit = TaskEdit::Add { name: name.into(), parent: None, children: Vec::new(), keys };
            edit_tasks(Path::new("a.toml"), &edit, &facts)
        };
        add("week").unwrap();
        let text = std::fs::read_to_string(dir.path().join("real.toml")).unwrap();
        assert!(text.starts_with("# mine\n[model]\n") && text.contains("name = \"week\""), "{text}");
        assert!(dir.path().join("a.toml").is_symlink());
        assert!(add("spatial").unwrap_err().to_string().contains("already a task"));
        assert_eq!(std::fs::read_to_string(dir.path().join("real.toml")).unwrap(), text);
        let forest = tasks_of(Path::new("a.toml"), dir.path(), &facts).unwrap();
        assert_eq!(forest.tasks().iter().map(|task| task.name.as_str()).collect::<Vec<_>>(), ["spatial", "week"]);
        assert!(tasks_of(Path::new("b.toml"), dir.path(), &facts).is_err());
    }
}
