//! A model that predicts: the checkpoint of a run, or an exported model.

use super::options::PredictOptions;
use crate::{Error, api::checkpoints::sound_checkpoint, export::Packed, facts::Facts};
use enn_common::{
    artifact::prediction::{ModelDigest, OutputAxis},
    checkpoint::{Checkpoint, name},
    config::{
        RunConfig,
        data::Layout,
        train::{ClusterConfig, TrainConfig},
    },
    staged::StagedMeta,
};
use enn_data::stage::{CategoryCoverage, StageError, check_classes};
use enn_process::run_dir;
use std::path::{Path, PathBuf};

/// Directory of temporary files of predictions by artifacts, below the user's cache directory.
pub(in crate::api) const SCRATCH: &str = "predict";

/// A model with the configuration and the data that it predicts.
pub(in crate::api) struct Subject {
    pub(in crate::api) runs: PathBuf,
    pub(in crate::api) checkpoint: PathBuf,
    pub(in crate::api) digest: ModelDigest,
    pub(in crate::api) config: RunConfig,
    pub(in crate::api) meta: StagedMeta,
    /// The exported model that is used instead of workers.
    pub(in crate::api) engine: Option<Packed>,
    /// Whether the exported model is used without a run.
    pub(super) is_alone: bool,
}

impl Subject {
    /// Opens the newest sound checkpoint of a run directory. A warning is logged when it is not the newest checkpoint, or when the run has
    /// not ended.
    pub(in crate::api) fn trained(model: &Path) -> Result<Self, Error> {
        let found = sound_checkpoint(model)?;
        if let Some(note) = found.manifest().and_then(|manifest| unfinished(model, manifest.step)) {
            tracing::warn!("{note}");
        }
        let checkpoint = std::path::absolute(found.dir()).unwrap_or_else(|_| found.dir().to_owned());
        let manifest = found.manifest().ok_or_else(|| Error::NoManifest { path: checkpoint.clone() })?;
        let json = |source| Error::Json { path: checkpoint.join(name::MANIFEST), source };
        let config: RunConfig = serde_json::from_value(manifest.config.clone()).map_err(json)?;
        let meta: StagedMeta = serde_json::from_value(manifest.meta.clone()).map_err(json)?;
        let digest = ModelDigest { run: manifest.run.clone(), step: manifest.step, blake3: manifest_digest(&found)? };
        let runs = model.parent().unwrap_or(model).to_owned();
        Ok(Self { runs, checkpoint, digest, config, meta, engine: None, is_alone: false })
    }

    /// Describes an exported model by its sidecar file.
    pub(super) fn packed(packed: Packed, facts: &Facts) -> Self {
        let origin = &packed.sidecar.model;
        let digest = ModelDigest { run: origin.run.clone(), step: origin.step, blake3: origin.checkpoint.clone() };
        Self {
            runs: facts.cache_dir.join(SCRATCH),
            checkpoint: packed.path.clone(),
            digest,
            config: configured(&packed),
            meta: packed.sidecar.staged.clone(),
            engine: Some(packed),
            is_alone: true,
        }
    }

    /// Returns an error when the rows have columns or classes that the model was not trained on.
    pub(super) fn check_known(&self, staged: &StagedMeta, options: &PredictOptions) -> Result<(), StageError> {
        let targets = self.targets();
        if options.is_judged && staged.has_classes {
            let classes = staged.out_labels.first().map_or(&[][..], Vec::as_slice);
            targets.iter().try_for_each(|target| check_classes(&staged.report, target, classes))?;
        }
        let mut words = CategoryCoverage::default();
        words.add(&staged.report, targets);
        if options.allow_unseen { Ok(()) } else { Ok(words.check()?) }
    }

    /// Returns the target columns; none for windows.
    pub(in crate::api) fn targets(&self) -> &[String] {
        match self.config.data.as_ref().map(|data| &data.layout) {
            Some(Layout::Rows(rows)) => &rows.targets,
            _ => &[],
        }
    }

    /// Returns the axes of the output grid: targets, classes, or series and times.
    pub(super) fn axes(&self) -> Vec<OutputAxis> {
        let labels = self.meta.out_labels.iter().cloned();
        let mut axes: Vec<OutputAxis> = labels.map(|labels| OutputAxis { labels, ..OutputAxis::default() }).collect();
        match (self.config.data.as_ref().map(|data| &data.layout), &mut axes[..]) {
            (Some(Layout::Windows(windows)), [series, times, ..]) => {
                series.column = Some(windows.entity.clone());
                times.column = Some(windows.time.clone());
                let steps = i64::try_from(times.labels.len()).unwrap_or(i64::MAX);
                times.seconds = (0..steps).map(|step| step * windows.step_s - windows.time_offset_s).collect();
            }
            (Some(Layout::Rows(rows)), [classes, ..]) if self.meta.has_classes => {
                classes.column = rows.targets.first().cloned();
            }
            _ => {}
        }
        axes
    }

    /// Returns the quantile levels computed for each cell, and whether only the point prediction is written.
    pub(in crate::api) fn levels(&self, is_point: bool) -> Result<(Vec<f64>, bool), Error> {
        match &self.engine {
            Some(packed) => Ok((packed.levels(is_point)?, false)),
            None => Ok((self.config.train.quantile_levels().to_vec(), is_point)),
        }
    }
}

/// Returns the configuration of an artifact without a run, which has no settings but its data.
pub(in crate::api) fn configured(packed: &Packed) -> RunConfig {
    RunConfig {
        version: 1,
        name: packed.sidecar.model.run.clone(),
        seed: 0,
        data: Some(packed.data.clone()),
        model: enn_common::config::model::ModelConfig::default(),
        train: TrainConfig::default(),
        cluster: ClusterConfig::default(),
        kernels: std::collections::BTreeMap::new(),
        parent: None,
    }
}

/// Returns a warning when the run is still training.
fn unfinished(model: &Path, step: u64) -> Option<String> {
    // The path may be the directory of a checkpoint.
    let run = model.ancestors().take(3).find(|dir| run_dir::is_run(dir))?;
    let run = run_dir::is_living(run).then_some(run)?;
    Some(format!(
        "{} is still training; its checkpoint of step {step} is used, and later ones may be better\n  hint: `enn status {}` shows the \
         progress",
        run.display(),
        run.display()
    ))
}

fn manifest_digest(checkpoint: &Checkpoint) -> Result<String, Error> {
    let path = checkpoint.dir().join(name::MANIFEST);
    let bytes = std::fs::read(&path).map_err(|source| Error::Read { path, source })?;
    Ok(blake3::hash(&bytes).to_hex().to_string())
}
