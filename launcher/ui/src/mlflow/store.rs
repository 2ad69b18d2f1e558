//! The files of the store.

use super::{
    error::MlflowError,
    names,
    options::{ArtifactMode, MlflowOptions, StoredRun},
    record::MlflowRecord,
};
use crate::report;
use enn_common::fs::{FileError, atomic};
use enn_process::run_dir;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

const META: &str = "meta.yaml";
const TRASH: &str = ".trash";
const ACTIVE: &str = "active";
const DELETED: &str = "deleted";
/// Folders of a run; MLflow takes no directory for a run that lacks one of them.
const FOLDERS: [&str; 4] = ["params", "metrics", "tags", "artifacts"];
/// Source type LOCAL, and the experiment with which a store begins.
const SOURCE_LOCAL: u8 = 4;
const DEFAULT_ID: &str = "0";
const DEFAULT_NAME: &str = "Default";
/// Largest meta.yaml that is read; bytes.
const META_BYTES_MAX: u64 = 1 << 20;

/// Writes the run into the store.
pub(super) fn write(record: &MlflowRecord, options: &MlflowOptions) -> Result<StoredRun, MlflowError> {
    let store = open(&options.store)?;
    let experiment_id = experiment(&store, record)?;
    let path = store.join(&experiment_id).join(&record.run_id);
    let old = read_meta(&path);
    if old.as_deref().and_then(|meta| names::yaml_value(meta, "lifecycle_stage")).as_deref() == Some(DELETED) {
        return Err(MlflowError::DeletedRun { run: record.name.clone(), id: record.run_id.clone() });
    }
    for folder in FOLDERS {
        let folder = path.join(folder);
        fs::create_dir_all(&folder).map_err(FileError::of("make", &folder))?;
    }
    let files = RunFiles { path: &path };
    files.write_all("params", record.params.iter())?;
    files.write_all("metrics", record.metrics.iter())?;
    files.write_all("tags", record.tags.iter())?;
    files.remove_others("params", &record.params.keys().map(String::as_str).collect())?;
    files.artifacts(&record.path, options.artifacts)?;
    atomic::write(&path.join(META), run_meta(record, &experiment_id, &path).as_bytes())?;
    Ok(StoredRun {
        run: record.name.clone(),
        experiment: record.experiment.clone(),
        experiment_id,
        run_id: record.run_id.clone(),
        path,
        is_new: old.is_none(),
    })
}

/// Makes the store where it is absent, with the experiment that MLflow makes in a new one.
fn open(store: &Path) -> Result<PathBuf, MlflowError> {
    if store.exists() && !store.is_dir() {
        return Err(MlflowError::NoStore { path: store.to_owned() });
    }
    let is_new = !store.exists();
    fs::create_dir_all(store).map_err(FileError::of("make", store))?;
    let store = fs::canonicalize(store).map_err(FileError::of("find", store))?;
    if is_new {
        make_experiment(&store, DEFAULT_ID, DEFAULT_NAME, 0)?;
    }
    Ok(store)
}

/// Returns the id of the experiment, which is made when absent.
fn experiment(store: &Path, record: &MlflowRecord) -> Result<String, MlflowError> {
    if let Some(id) = find_experiment(store, &record.experiment) {
        return Ok(id);
    }
    if let Some(id) = find_experiment(&store.join(TRASH), &record.experiment) {
        return Err(MlflowError::DeletedExperiment { name: record.experiment.clone(), id });
    }
    let id = names::experiment_id(&record.experiment);
    make_experiment(store, &id, &record.experiment, record.start_ms)?;
    Ok(id)
}

/// Finds the experiment of this name among the folders of `parent`.
fn find_experiment(parent: &Path, name: &str) -> Option<String> {
    let mut ids: Vec<String> = fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|id| {
            read_meta(&parent.join(id)).is_some_and(|meta| names::yaml_value(&meta, "name").as_deref() == Some(name))
        })
        .collect();
    ids.sort();
    ids.into_iter().next()
}

fn make_experiment(store: &Path, id: &str, name: &str, time_ms: i64) -> Result<(), MlflowError> {
    let path = store.join(id);
    fs::create_dir_all(&path).map_err(FileError::of("make", &path))?;
    let meta = format!(
        "artifact_location: {}\ncreation_time: {time_ms}\nexperiment_id: '{id}'\nlast_update_time: {time_ms}\n\
         lifecycle_stage: {ACTIVE}\nname: {}\n",
        names::yaml(&names::file_uri(&path)),
        names::yaml(name)
    );
    Ok(atomic::write(&path.join(META), meta.as_bytes())?)
}

/// Reads the meta.yaml in `folder`; `None` where there is none that can be read.
fn read_meta(folder: &Path) -> Option<String> {
    let path = folder.join(META);
    let is_readable = fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() <= META_BYTES_MAX);
    is_readable.then(|| fs::read_to_string(&path).ok()).flatten()
}

fn run_meta(record: &MlflowRecord, experiment_id: &str, path: &Path) -> String {
    let end = record.end_ms.map_or_else(|| "null".to_owned(), |end| end.to_string());
    format!(
        "artifact_uri: {}\nend_time: {end}\nentry_point_name: ''\nexperiment_id: '{experiment_id}'\nlifecycle_stage: {ACTIVE}\n\
         run_id: '{id}'\nrun_name: {}\nrun_uuid: '{id}'\nsource_name: ''\nsource_type: {SOURCE_LOCAL}\nsource_version: ''\n\
         start_time: {}\nstatus: {}\ntags: []\nuser_id: {}\n",
        names::yaml(&names::file_uri(&path.join("artifacts"))),
        names::yaml(&record.name),
        record.start_ms,
        record.status as u8,
        names::yaml(&record.user),
        id = record.run_id,
    )
}

/// The directory of a run in the store.
struct RunFiles<'a> {
    path: &'a Path,
}

impl RunFiles<'_> {
    /// Returns a name in the directory of the run itself, where MLflow looks for no files. In the folders it would take one that a
    /// crash left for a parameter.
    fn beside(&self) -> PathBuf {
        atomic::temporary(&self.path.join("new"))
    }

    /// Gives the file, or the link, its name.
    fn place(&self, beside: &Path, path: &Path) -> Result<(), MlflowError> {
        let placed = fs::rename(beside, path).map_err(FileError::of("write", path));
        if placed.is_err() {
            // What could not be placed is of no use.
            let _gone = fs::remove_file(beside);
        }
        Ok(placed?)
    }

    fn write_all<'f>(
        &self,
        folder: &str,
        files: impl Iterator<Item = (&'f String, &'f String)>,
    ) -> Result<(), MlflowError> {
        for (name, text) in files {
            let path = self.path.join(folder).join(name);
            let parent = atomic::parent(&path);
            fs::create_dir_all(parent).map_err(FileError::of("make", parent))?;
            let beside = self.beside();
            fs::write(&beside, text).map_err(FileError::of("write", &beside))?;
            self.place(&beside, &path)?;
        }
        Ok(())
    }

    /// Removes what an earlier export wrote into the folder and this one did not, such as a key that is no longer set.
    fn remove_others(&self, folder: &str, kept: &BTreeSet<&str>) -> Result<(), MlflowError> {
        let folder = self.path.join(folder);
        for entry in fs::read_dir(&folder).map_err(FileError::of("list", &folder))?.flatten() {
            let is_kept = entry.file_name().to_str().is_some_and(|name| kept.contains(name));
            if !is_kept && entry.file_type().is_ok_and(|kind| kind.is_file()) {
                fs::remove_file(entry.path()).map_err(FileError::of("remove", &entry.path()))?;
            }
        }
        Ok(())
    }

    fn artifacts(&self, run: &Path, mode: ArtifactMode) -> Result<(), MlflowError> {
        if mode == ArtifactMode::None {
            return Ok(());
        }
        for name in [report::FILE, run_dir::RUN_JSON] {
            let from = run.join(name);
            let beside = self.beside();
            // MLflow does not follow symbolic links that lead out of the store.
            let made = match mode {
                ArtifactMode::Link => fs::hard_link(&from, &beside),
                _ => fs::copy(&from, &beside).map(|_| ()),
            };
            match made {
                // A run under way has no report yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                    return Err(MlflowError::Elsewhere { path: from });
                }
                other => other.map_err(FileError::of("copy", &from))?,
            }
            self.place(&beside, &self.path.join("artifacts").join(name))?;
        }
        Ok(())
    }
}
