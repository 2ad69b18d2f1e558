//! Saves the best weights of a run or checkpoint as one file, or the whole checkpoint as a directory.

use super::{
    ConvertError, Form,
    copy::{copy_checkpoint, write_beside},
    safetensors::{self, Tensor},
};
use enn_common::{
    artifact::model_card::{self, CardTensor, ModelCard},
    checkpoint::{
        Checkpoint, Extent, Manifest, PathPart, Value, find_sound, name,
        state_file::{self, Content, StateEntry},
    },
    fs::{Disk, atomic, displace, space},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

const ORDER: &str = "progress.order";
const BEST_METRIC: &str = "progress.best_metric";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    pub path: PathBuf,
    pub tensors: u64,
    pub bytes: u64,
}

/// Saves a model.
///
/// `source` is a run directory, a checkpoints directory (the newest complete checkpoint of it) or a checkpoint. `target` is
/// `NAME.safetensors`, `NAME.pt` or, without extension, a directory: the whole checkpoint, readable by
/// `torch.distributed.checkpoint`. The file forms hold the best weights under their plain names and the model card.
pub fn save_model(source: &Path, target: &Path, replace: bool) -> Result<Saved, ConvertError> {
    let form = Form::of(target)?;
    let extent = if form == Form::Directory { Extent::Whole } else { Extent::Weights };
    let found = find_sound(source, extent)?;
    found.notes().iter().for_each(|note| tracing::warn!("{note}"));
    let checkpoint = found.checkpoint;
    if target.exists() && !replace {
        return Err(ConvertError::Exists { path: target.to_path_buf() });
    }
    match form {
        Form::Directory => displace::by_directory(target, &name::is_part)?,
        _ => displace::by_file(target)?,
    }
    let no_card = ConvertError::NoModelCard { path: checkpoint.dir().to_path_buf(), what: "it has no manifest.json" };
    let manifest = checkpoint.manifest().ok_or(no_card)?;
    if form == Form::Directory {
        copy_checkpoint(&checkpoint, manifest, target)?;
        let tensors = manifest.tensors.count;
        let bytes = manifest.tensors.bytes;
        return Ok(Saved { path: target.to_path_buf(), tensors, bytes });
    }
    let sources = weights(&checkpoint)?;
    let tensors = sources.iter().map(|(name, source)| described(&checkpoint, name, source));
    let tensors: Vec<Tensor> = tensors.collect::<Result<_, _>>()?;
    let bytes = tensors.iter().map(Tensor::bytes).sum();
    space::require(atomic::parent(target), bytes)?;
    let about = card(&checkpoint, manifest, &tensors)?;
    let mut read = |name: &str| -> Result<Vec<u8>, ConvertError> {
        let from = sources.get(name).map_or(name, String::as_str);
        Ok(checkpoint.tensor(from)?.bytes)
    };
    write_beside(target, true, |beside| match form {
        Form::Safetensors => {
            let about = [(model_card::KEY.to_owned(), about)].into();
            safetensors::write(beside, &about, &tensors, &mut read)
        }
        _ => write_pt(beside, &about, &tensors, &mut read),
    })?;
    Ok(Saved { path: target.to_path_buf(), tensors: tensors.len() as u64, bytes })
}

/// Writes `{"model": {name: tensor, …}, "enn": card}`.
fn write_pt(
    path: &Path,
    about: &str,
    tensors: &[Tensor],
    read: &mut dyn FnMut(&str) -> Result<Vec<u8>, ConvertError>,
) -> Result<(), ConvertError> {
    let key = |name: &str| PathPart::Key(name.to_owned());
    let mut entries: Vec<StateEntry> = tensors
        .iter()
        .map(|tensor| StateEntry {
            path: vec![key(super::MODEL), key(&tensor.name)],
            content: Content::Tensor(tensor.element, tensor.shape.clone()),
        })
        .collect();
    entries.push(StateEntry { path: vec![key(model_card::KEY)], content: Content::Value(Value::from(about)) });
    state_file::write(&Disk, path, &entries, &mut |entry| read(&tensors[entry].name))
}

fn weights(checkpoint: &Checkpoint) -> Result<BTreeMap<String, String>, ConvertError> {
    let plain = |prefix: &str| {
        let names = checkpoint.tensor_names().filter_map(|name| Some((name.strip_prefix(prefix)?.to_owned(), name)));
        names.map(|(plain, name)| (plain, name.to_owned())).collect::<BTreeMap<_, _>>()
    };
    let best = plain("best.");
    if best.is_empty() {
        return Err(ConvertError::NoWeights { path: checkpoint.dir().to_path_buf() });
    }
    let mut all = plain("model.");
    all.extend(best);
    Ok(all)
}

fn described(checkpoint: &Checkpoint, name: &str, source: &str) -> Result<Tensor, ConvertError> {
    let entry = checkpoint.entry(source)?;
    let problem = || format!("{source} is of the element type {}, which is not saved", entry.dtype);
    let element = entry.dtype().ok_or_else(|| ConvertError::unfit(checkpoint.dir(), problem()))?.into();
    Ok(Tensor { name: name.to_owned(), element, shape: entry.shape.clone() })
}

fn card(checkpoint: &Checkpoint, manifest: &Manifest, tensors: &[Tensor]) -> Result<String, ConvertError> {
    let of_file = |tensor: &Tensor| CardTensor {
        name: tensor.name.clone(),
        dtype: tensor.element.torch().to_owned(),
        shape: tensor.shape.clone(),
    };
    let state = checkpoint.metadata().tensors.iter().map(|(name, entry)| CardTensor {
        name: name.clone(),
        dtype: entry.dtype.clone(),
        shape: entry.shape.clone(),
    });
    let mut initial = BTreeMap::new();
    if checkpoint.entry(ORDER).is_ok() {
        initial.insert(ORDER.to_owned(), hex(&checkpoint.tensor(ORDER)?.bytes));
    }
    if checkpoint.entry(BEST_METRIC).is_ok() {
        initial.insert(BEST_METRIC.to_owned(), hex(&f64::INFINITY.to_le_bytes()));
    }
    let card = ModelCard {
        format: model_card::FORMAT.to_owned(),
        version: model_card::VERSION,
        run: manifest.run.clone(),
        step: manifest.step,
        epoch: manifest.epoch,
        metric: manifest.metric,
        metrics: manifest.metrics.clone(),
        findings: manifest.findings.clone(),
        config: manifest.config.clone(),
        meta: manifest.meta.clone(),
        tensors: tensors.iter().map(of_file).collect(),
        state: state.collect(),
        initial,
        versions: manifest.versions.clone(),
    };
    let path = checkpoint.dir().to_path_buf();
    serde_json::to_string(&card)
        .map_err(|_| ConvertError::NoModelCard { path, what: "its card cannot be written as JSON" })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
