//! Fine-tuning and going on: what a training takes from the run, checkpoint or file that it begins with, and from its own past.

use super::train::wall_time;
use crate::{
    Error,
    convert::{self, Form},
    error::Usage,
    run_dir::{self, RunDir},
};
use enn_common::{
    checkpoint::{Checkpoint, listing},
    config::{Parent, RunConfig, parent::ScalerChoice},
    staged::{StagedMeta, meta::Stats},
};
use std::path::{Path, PathBuf};

/// Where a file's weights are put below the run.
const DIR: &str = "parent";
/// The tensor whose second axis is the rank of the base head.
const FACTORS: &str = "best.base.factors";
/// Statistics that differ by less than this share of a spread are the same.
const SAME: f64 = 1e-9;

/// What to begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentOptions {
    /// Run directory, checkpoint, or a file that `save_model` wrote.
    pub source: PathBuf,
    /// Whose statistics numbers are standardised by; may be left out where both are the same.
    pub scaler: Option<ScalerChoice>,
    /// Whether what fits is taken although something does not.
    pub partial: bool,
}

/// The configuration of a training that begins with `options` on data described by `own`.
///
/// A model whose sizes follow the rows has the parent's sizes instead.
pub(super) fn adopt(
    config: &RunConfig,
    options: &ParentOptions,
    (run, own): (&RunDir, &StagedMeta),
) -> Result<RunConfig, Error> {
    let checkpoint = match Form::of(&options.source)? {
        Form::Directory => listing::find(&options.source)?,
        form => {
            let (source, beside) = (&options.source, run.path().join(DIR));
            let native = match form {
                Form::Pt => convert::load_native(source, &beside, (config, own), wall_time())?,
                _ => None,
            };
            let loaded = native.map_or_else(|| convert::load_model(source, &beside, wall_time()), Ok)?;
            Checkpoint::open(&loaded.path).map_err(Box::new)?
        }
    };
    let path = std::path::absolute(checkpoint.dir()).unwrap_or_else(|_| checkpoint.dir().to_owned());
    let manifest = checkpoint.manifest().ok_or_else(|| Error::NoCard { path: path.clone() })?;
    let json = |source| Error::Json { path: path.clone(), source };
    let theirs: RunConfig = serde_json::from_value(manifest.config.clone()).map_err(json)?;
    let mut meta = manifest.meta.clone();
    if let Some(fields) = meta.as_object_mut() {
        // The manifest leaves the names of the training rows out.
        fields.entry("row_names").or_insert_with(|| serde_json::Value::Array(Vec::new()));
    }
    let meta: StagedMeta = serde_json::from_value(meta).map_err(json)?;
    let scaler = match (options.scaler, difference(own, &meta)) {
        (Some(choice), _) => choice,
        (None, None) => ScalerChoice::Keep,
        (None, Some(what)) => return Err(Error::Usage(Usage::Scaler { what })),
    };
    let mut model = config.model.clone();
    if model.by_rows {
        model = theirs.model.sized(meta.split_rows[0], &meta.out_shape);
        model.by_rows = false;
    }
    if model.head_rank == 0 {
        // By rule it follows the rows, which are others now.
        let rank = checkpoint.entry(FACTORS).ok().and_then(|factors| factors.shape.get(1).copied());
        model.head_rank = rank.map_or(0, |rank| rank as usize);
    }
    let parent = Parent { checkpoint: path, scaler, partial: options.partial };
    Ok(RunConfig { model, parent: Some(parent), ..config.clone() })
}

/// A run that is resumed with a configuration of its own began with the parent that it began with.
pub(super) fn carried(config: &RunConfig, run: &Path) -> Result<RunConfig, Error> {
    let before = match run_dir::read_config(run) {
        Ok(before) if before.parent.is_some() => before,
        _ => return Ok(config.clone()),
    };
    let model = if config.model.by_rows { before.model } else { config.model.clone() };
    Ok(RunConfig { parent: before.parent, model, ..config.clone() })
}

/// Refuses to go on with a run that has done more than it is to do.
pub(super) fn goes_on(config: &RunConfig, run: &RunDir, own: &StagedMeta) -> Result<(), Error> {
    let Ok(newest) = listing::find(run.path()) else { return Ok(()) };
    let done = newest.manifest().map_or(0, |manifest| manifest.epoch);
    let wanted = config.train.passes(own.split_rows[0]);
    if done > wanted {
        return Err(Error::Usage(Usage::EpochsDone { run: run.id(), done, wanted }));
    }
    Ok(())
}

/// The first statistics that the two do not share; those of inputs by name.
fn difference(own: &StagedMeta, parent: &StagedMeta) -> Option<String> {
    let near = |a: &Stats, b: &Stats| {
        let unit = a.std.abs().max(b.std.abs()).max(f64::MIN_POSITIVE);
        // Two that hold nothing are the same.
        a.n.min(b.n) == a.n.max(b.n) && a.n == 0
            || (a.mean - b.mean).abs() <= SAME * unit && (a.std - b.std).abs() <= SAME * unit
    };
    let told = |name: &str, a: &Stats, b: &Stats| {
        format!("{name} has mean {:.4} and spread {:.4}, there {:.4} and {:.4}", a.mean, a.std, b.mean, b.std)
    };
    for (input, stats) in own.features.iter().zip(&own.x_stats).filter(|(input, _)| input.is_measured()) {
        let there = parent.features.iter().position(|other| other.name == input.name);
        let there = there.and_then(|at| parent.x_stats.get(at)).filter(|there| !near(stats, there));
        if let Some(there) = there {
            return Some(told(&input.name, stats, there));
        }
    }
    let cells = own.y_stats.iter().zip(&parent.y_stats).enumerate();
    cells.into_iter().find(|(_, (a, b))| !near(a, b)).map(|(cell, (a, b))| told(&format!("target cell {cell}"), a, b))
}
