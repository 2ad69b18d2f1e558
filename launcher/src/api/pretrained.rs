//! Fine-tuning and resuming: what a training takes from a pretrained model, or from its own earlier checkpoints.

use super::{checkpoints::sound_checkpoint, stamp::wall_time};
use crate::{Error, error::Usage};
use enn_checkpoint::convert::{self, Form};
use enn_common::{
    checkpoint::{Checkpoint, Manifest, listing},
    config::{Parent, RunConfig, parent::ScalerChoice},
    staged::{StagedMeta, meta::Stats},
};
use enn_data::stage;
use enn_process::run_dir::{self, RunDir};
use std::path::{Path, PathBuf};

/// Directory of a converted pretrained file below the run directory.
const DIR: &str = "parent";
/// The tensor whose second axis is the rank of the base head.
const FACTORS: &str = "best.base.factors";
/// Tolerance for equal statistics, as a fraction of the standard deviation.
const SAME: f64 = 1e-9;

/// The pretrained model of a fine-tuning run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinetuneOptions {
    /// A run directory, a checkpoint, or a file that `save_model` wrote.
    pub source: PathBuf,
    /// Which statistics standardise the inputs and targets; may be `None` where both are the same.
    pub scaler: Option<ScalerChoice>,
    /// Whether tensors that fit are loaded although others do not.
    pub partial: bool,
}

/// Returns the configuration for fine-tuning by `options` on data described by `own`.
///
/// A model whose sizes follow from the rows has the sizes of the pretrained model instead.
pub(super) fn finetuned_config(
    config: &RunConfig,
    options: &FinetuneOptions,
    run: &RunDir,
    own: &StagedMeta,
) -> Result<RunConfig, Error> {
    let checkpoint = match Form::of_source(&options.source)? {
        Form::Directory => sound_checkpoint(&options.source)?,
        form => {
            let source = &options.source;
            let beside = run.path().join(DIR);
            let native = match form {
                Form::Pt => convert::load_native(source, &beside, config, own, wall_time())?,
                _ => None,
            };
            let loaded = native.map_or_else(|| convert::load_model(source, &beside, wall_time()), Ok)?;
            Checkpoint::open(&loaded.path).map_err(Box::new)?
        }
    };
    let path = std::path::absolute(checkpoint.dir()).unwrap_or_else(|_| checkpoint.dir().to_owned());
    let manifest = checkpoint.manifest().ok_or_else(|| Error::NoManifest { path: path.clone() })?;
    let json = |source| Error::Json { path: path.clone(), source };
    let theirs: RunConfig = serde_json::from_value(manifest.config.clone()).map_err(json)?;
    let meta = described(&manifest.meta).map_err(json)?;
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
        // The rank would follow from the rows, which differ now.
        let rank = checkpoint.entry(FACTORS).ok().and_then(|factors| factors.shape.get(1).copied());
        model.head_rank = rank.map_or(0, |rank| rank as usize);
    }
    let parent = Parent { checkpoint: path, scaler, partial: options.partial };
    Ok(RunConfig { model, parent: Some(parent), ..config.clone() })
}

/// Returns the configuration of a resumed run, which keeps its pretrained model. A configuration that reads other columns is refused before
/// anything in the run directory is changed.
pub(super) fn resumed_config(config: &RunConfig, run: &Path) -> Result<RunConfig, Error> {
    same_layout(config, run)?;
    let Ok(before) = run_dir::read_config(run) else { return Ok(config.clone()) };
    let after = config.after(&before);
    Ok(RunConfig { parent: before.parent.or(after.parent), ..after })
}

/// Returns an error when the configuration reads other columns than the run.
fn same_layout(config: &RunConfig, run: &Path) -> Result<(), Error> {
    let Some(before) = trained(run) else { return Ok(()) };
    let theirs = serde_json::from_value(before.config).ok().and_then(|config: RunConfig| config.data);
    match (&config.data, theirs) {
        (Some(own), Some(theirs)) if own.layout != theirs.layout => {
            Err(other_data(run, "the configuration makes other inputs or targets".to_owned()))
        }
        _ => Ok(()),
    }
}

/// Returns an error when the data are not those of the run, or when it has done more epochs than configured.
pub(super) fn check_resumable(config: &RunConfig, run: &Path, own: &StagedMeta) -> Result<(), Error> {
    let Some(before) = trained(run) else { return Ok(()) };
    let theirs: Option<StagedMeta> = described(&before.meta).ok();
    if let Some(what) = theirs.and_then(|theirs| other_rows(own, &theirs)) {
        return Err(other_data(run, what));
    }
    let done = before.epoch;
    let wanted = config.train.passes(own.split_rows[0]);
    if done > wanted {
        return Err(Error::Usage(Usage::EpochsDone { run: name_of(run), done, wanted }));
    }
    Ok(())
}

/// Returns the manifest of the newest checkpoint; `None` when no step has been done.
pub(super) fn trained(run: &Path) -> Option<Manifest> {
    listing::find(run).ok()?.manifest().filter(|manifest| manifest.step > 0).cloned()
}

pub(super) fn name_of(run: &Path) -> String {
    run.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn other_data(run: &Path, what: String) -> Error {
    Error::Usage(Usage::OtherData { run: name_of(run), what })
}

/// Parses the data description of a manifest.
pub(super) fn described(meta: &serde_json::Value) -> Result<StagedMeta, serde_json::Error> {
    let mut meta = meta.clone();
    if let Some(fields) = meta.as_object_mut() {
        // Manifests do not contain the names of the training rows.
        fields.entry("row_names").or_insert_with(|| serde_json::Value::Array(Vec::new()));
    }
    serde_json::from_value(meta)
}

/// Describes how the data differ from those that the run was trained on, as far as it affects sampling, scaling or evaluation.
fn other_rows(own: &StagedMeta, before: &StagedMeta) -> Option<String> {
    let rows = |meta: &StagedMeta| meta.split_rows;
    let [train, val, test] = rows(own);
    if rows(own) != rows(before) {
        let [train_before, val_before, test_before] = rows(before);
        return Some(format!(
            "{train} rows train, {val} validate and {test} test, in its checkpoint {train_before}, {val_before} and {test_before}"
        ));
    }
    if own.features.len() != before.features.len() {
        return Some(format!("{} inputs, in its checkpoint {}", own.features.len(), before.features.len()));
    }
    for (input, there) in own.features.iter().zip(&before.features) {
        if input.name != there.name {
            return Some(format!("the input {:?} was {:?}", input.name, there.name));
        }
        if !stage::same_words(&input.categories, &there.categories) {
            return Some(format!("{} has other categories, or in another order", input.name));
        }
    }
    let mut labels = own.out_labels.iter().zip(&before.out_labels);
    if own.out_labels.len() != before.out_labels.len() || !labels.all(|(own, was)| stage::same_words(own, was)) {
        return Some("the targets have other names or classes".to_owned());
    }
    difference(own, before)
}

/// Describes the first statistics that differ; inputs are matched by name.
fn difference(own: &StagedMeta, parent: &StagedMeta) -> Option<String> {
    let near = |a: &Stats, b: &Stats| {
        let unit = a.std.abs().max(b.std.abs()).max(f64::MIN_POSITIVE);
        // Two empty columns are equal.
        a.n.min(b.n) == a.n.max(b.n) && a.n == 0
            || (a.mean - b.mean).abs() <= SAME * unit && (a.std - b.std).abs() <= SAME * unit
    };
    let describe = |name: &str, a: &Stats, b: &Stats| {
        format!("{name} has mean {:.4} and spread {:.4}, there {:.4} and {:.4}", a.mean, a.std, b.mean, b.std)
    };
    for (input, stats) in own.features.iter().zip(&own.x_stats).filter(|(input, _)| input.is_measured()) {
        let there = parent.features.iter().position(|other| other.name == input.name);
        let there = there.and_then(|at| parent.x_stats.get(at)).filter(|there| !near(stats, there));
        if let Some(there) = there {
            return Some(describe(&input.name, stats, there));
        }
    }
    let cells = own.y_stats.iter().zip(&parent.y_stats).enumerate();
    cells
        .into_iter()
        .find(|(_, (a, b))| !near(a, b))
        .map(|(cell, (a, b))| describe(&format!("target cell {cell}"), a, b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::{TrainOptions, lead, load_config, staging, train},
        error::Usage,
        facts::Facts,
    };
    use enn_common::checkpoint::{ShardWriter, TensorDType, commit, name};
    use enn_ui::Mode;
    use std::fs;

    const TOML: &str = "name = \"a\"\n[data]\nfiles = \"a.csv\"\n[data.rows]\nfeatures = [\"x\"]\ntargets = [\"y\"]\n";

    fn table(first: u32) -> String {
        let rows: String = (first..first + 40).map(|row| format!("{row},{}\n", row * 2)).collect();
        format!("x,y\n{rows}")
    }

    /// The content of the run's files, and the target of its link.
    fn content(run: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let read = |name: &str| (run.join(name), fs::read(run.join(name)).unwrap_or_default());
        let mut all = vec![read("run.json"), read("MANIFEST.json")];
        all.extend(fs::read_link(run.join("staged")).map(|to| (to, Vec::new())));
        all
    }

    #[test]
    fn a_run_is_not_gone_on_with_on_other_data_and_stays_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut facts = Facts::gather();
        facts.cwd = dir.path().to_owned();
        fs::write(at("a.toml"), TOML).unwrap();
        fs::write(at("b.toml"), TOML.replace("\"x\"", "\"x\", \"z\"")).unwrap();
        fs::write(at("a.csv"), table(0)).unwrap();
        let config = load_config(Path::new("a.toml"), &[], &facts).unwrap();
        let staged = staging::stage(&config, &at("staged"), Mode::Quiet).unwrap();
        let run = RunDir::create(&at("runs"), "a", time::OffsetDateTime::now_utc()).unwrap();
        run.write_config(&config).unwrap();
        run.link_staged(&staged.dir).unwrap();
        fs::write(run.path().join("MANIFEST.json"), "old").unwrap();
        let being_written = run.checkpoints().join(name::temporary(40, "a"));
        let mut shard = ShardWriter::create(&being_written, 0).unwrap();
        shard.whole("model.w", TensorDType::F32, &[1], &[0; 4]).unwrap();
        let tables = [shard.finish().unwrap()];
        let draft = lead::draft(&run.id(), &config, &staged.meta).unwrap();
        let draft = enn_common::checkpoint::Draft { step: 40, epoch: 2, ..draft };
        commit(&being_written, &run.checkpoints().join(name::committed(40)), &tables, draft).unwrap();
        let path = run.path().to_owned();
        let before = content(run.path());
        drop(run);

        let resumed = |file: &str| {
            let config = load_config(Path::new(file), &[], &facts).unwrap();
            let options = TrainOptions { resume: Some(path.clone()), runs_dir: at("runs"), ..TrainOptions::default() };
            match train(&config, &facts, &options) {
                Err(Error::Usage(Usage::OtherData { what, .. })) => what,
                other => panic!("{other:?}"),
            }
        };
        // A configuration with other columns is refused before anything is changed.
        assert!(resumed("b.toml").contains("other inputs or targets"));
        assert_eq!(content(&path), before);
        for (other, told) in [
            (table(0) + "1,1\n", "its checkpoint"),
            (table(7), "x has mean"),
            (
                table(0)
                    .replace("\n39,78\n", "\n39,79\n")
                    .replace("\n0,0\n", "\n0,1\n")
                    .replace("\n20,40\n", "\n20,41\n"),
                "target cell 0 has mean",
            ),
        ] {
            fs::write(at("a.csv"), other).unwrap();
            assert!(resumed("a.toml").contains(told), "{told}");
            let now = content(&path);
            assert_eq!((&now[0], &now[2]), (&before[0], &before[2]));
        }
        assert!(fs::read_to_string(path.join("MANIFEST.json")).unwrap().contains("\"code\""));
    }
}
