//! Converts a saved model to a checkpoint, for prediction or as the start of a training.

use super::{
    ConvertError, Form,
    copy::copy_checkpoint,
    native::Native,
    python,
    safetensors::{MappedFile, Stored},
};
use enn_common::{
    artifact::model_card::{self, CardTensor, Findings, ModelCard},
    checkpoint::{
        Checkpoint, Committed, Draft, Element, Extent, ShardWriter, TensorDType, commit, find_sound, name,
        state_file::StateFile,
    },
    config::RunConfig,
    staged::{StagedMeta, meta::Stats},
};
use std::{collections::BTreeMap, path::Path};

/// Maximum size of a state tensor that starts at zero and is larger than all tensors of the model, such as counts; bytes.
const ZEROS_MAX: u64 = 2 << 20;
const ATTEMPT: &str = "load";

/// Loads a model into `checkpoints` (the `checkpoints` directory of a run), as a committed checkpoint.
///
/// `source` is a `.safetensors` or `.pt` file written by `save_model`, giving step 0 with the saved weights and a fresh
/// optimizer, or a checkpoint directory, copied as it is with its step. `wall_time` is now, seconds since the Unix epoch.
pub fn load_model(source: &Path, checkpoints: &Path, wall_time: f64) -> Result<Committed, ConvertError> {
    let weights = match Form::of_source(source)? {
        Form::Safetensors => Weights::Safetensors(MappedFile::open(source)?),
        Form::Pt => Weights::Pt(open_safe(source)?),
        Form::Directory => return load_directory(source, checkpoints),
    };
    let card = read_card(source, &weights)?;
    let problems = card_mismatches(&card, &weights.tensors());
    if !problems.is_empty() {
        return Err(ConvertError::Fit { path: source.to_path_buf(), problems });
    }
    let temporary = checkpoints.join(name::temporary(0, ATTEMPT));
    let mut shard = ShardWriter::create(&temporary, 0)?;
    for entry in &card.state {
        let dtype = TensorDType::of_torch(&entry.dtype).ok_or_else(|| cannot_make(source, entry))?;
        shard.whole(&entry.name, dtype, &entry.shape, &content(source, &card, entry, &weights)?)?;
    }
    let tables = [shard.finish()?];
    let draft = Draft {
        run: card.run,
        attempt: ATTEMPT.to_owned(),
        config: card.config,
        meta: card.meta,
        metrics: card.metrics,
        findings: card.findings,
        versions: card.versions,
        wall_time,
        ..Draft::default()
    };
    Ok(commit(&temporary, &checkpoints.join(name::committed(0)), &tables, draft)?)
}

/// Opens a file of `torch.save`; refuses a file that refers to code.
fn open_safe(source: &Path) -> Result<StateFile, ConvertError> {
    let file = StateFile::open(source)?;
    match file.mentions().dangerous() {
        [] => Ok(file),
        [first, ..] => Err(ConvertError::Dangerous { path: source.to_path_buf(), mention: first.to_string() }),
    }
}

/// Converts a file of ENN for PyTorch to a committed checkpoint below `checkpoints` for fine-tuning; returns `None` for any other file. The
/// file does not name its inputs: they must be those of `own`, in order.
///
/// # Errors
/// The data have other sizes, or no part of the file can be used.
pub fn load_native(
    source: &Path,
    checkpoints: &Path,
    config: &RunConfig,
    own: &StagedMeta,
    wall_time: f64,
) -> Result<Option<Committed>, ConvertError> {
    let file = open_safe(source)?;
    if !Native::is(&file) {
        return Ok(None);
    }
    let native = Native::map(file);
    let problems = data_mismatches(&native, own);
    if !problems.is_empty() {
        return Err(ConvertError::Fit { path: source.to_path_buf(), problems });
    }
    let temporary = checkpoints.join(name::temporary(0, ATTEMPT));
    let mut shard = ShardWriter::create(&temporary, 0)?;
    for tensor in native.tensors() {
        let prefix = if tensor.name.starts_with("scaler.") { "model" } else { "best" };
        let dtype = tensor.element.dtype().unwrap_or(TensorDType::F32);
        shard.whole(&format!("{prefix}.{}", tensor.name), dtype, &tensor.shape, &native.tensor(&tensor.name)?)?;
    }
    let tables = [shard.finish()?];
    let json =
        |error: serde_json::Error| ConvertError::unfit(source, format!("its description cannot be written: {error}"));
    let config = RunConfig { model: native.model(&config.model)?, ..config.clone() };
    let draft = Draft {
        run: "ENN for PyTorch".to_owned(),
        attempt: ATTEMPT.to_owned(),
        config: serde_json::to_value(&config).map_err(json)?,
        meta: serde_json::to_value(described(&native, own)?).map_err(json)?,
        findings: Findings { baselines: BTreeMap::new(), decisions: native.unmapped_lines() },
        wall_time,
        ..Draft::default()
    };
    Ok(Some(commit(&temporary, &checkpoints.join(name::committed(0)), &tables, draft)?))
}

fn data_mismatches(native: &Native, own: &StagedMeta) -> Vec<String> {
    let mut problems = Vec::new();
    if native.in_dim != own.features.len() as u64 {
        problems.push(format!("it has {} inputs, the data {}", native.in_dim, own.features.len()));
    }
    if let Some(category) = own.features.iter().find(|feature| !feature.categories.is_empty()) {
        let name = &category.name;
        problems.push(format!("input {name:?} is a category, of which the file has no names; declare it as a number"));
    }
    let shape: Vec<u64> = own.out_shape.iter().map(|size| *size as u64).collect();
    if native.out_shape != shape {
        problems.push(format!("its output is {:?}, that of the data {shape:?}", native.out_shape));
    }
    if native.tensors().is_empty() {
        problems.push("no tensor in it exists in ENN; see enn ckpt show".to_owned());
    }
    problems
}

/// Describes the data that the file was trained on, as far as it is known: the inputs and the grid of `own`, with the statistics of the
/// file.
fn described(native: &Native, own: &StagedMeta) -> Result<StagedMeta, ConvertError> {
    let numbers = |name: &str| -> Result<Vec<f64>, ConvertError> {
        if !native.tensors().iter().any(|tensor| tensor.name == name) {
            return Ok(Vec::new());
        }
        Ok(native.tensor(name)?.as_chunks().0.iter().map(|cell| f64::from_le_bytes(*cell)).collect())
    };
    let stats = |own: &[Stats], prefix: &str| -> Result<Vec<Stats>, ConvertError> {
        let [mean, std] = [numbers(&format!("scaler.{prefix}_mean"))?, numbers(&format!("scaler.{prefix}_std"))?];
        let at = |at: usize| mean.get(at).copied().zip(std.get(at).copied());
        let with = |(index, own): (usize, &Stats)| match at(index) {
            Some((mean, std)) => Stats { mean, std, ..*own },
            None => *own,
        };
        Ok(own.iter().enumerate().map(with).collect())
    };
    let mut meta = own.clone();
    meta.row_names.clear();
    meta.features.iter_mut().for_each(|feature| feature.has_missing = false);
    meta.x_stats = stats(&own.x_stats, "x")?;
    meta.y_stats = stats(&own.y_stats, "y")?;
    Ok(meta)
}

enum Weights {
    Safetensors(MappedFile),
    Pt(StateFile),
}

/// The element type (`None`: not supported) and the shape.
type TensorType = (Option<TensorDType>, Vec<u64>);

impl Weights {
    fn about(&self) -> Option<&str> {
        match self {
            Self::Safetensors(mapped) => mapped.about().get(model_card::KEY).map(String::as_str),
            Self::Pt(file) => file.text(model_card::KEY),
        }
    }

    fn tensors(&self) -> BTreeMap<String, TensorType> {
        match self {
            Self::Safetensors(mapped) => {
                let described = |stored: &Stored| (stored.element().and_then(Element::dtype), stored.shape.clone());
                mapped.tensors().iter().map(|(name, stored)| (name.clone(), described(stored))).collect()
            }
            Self::Pt(file) => file
                .tensors()
                .filter_map(|(name, element, shape)| {
                    let plain = name.strip_prefix(super::MODEL)?.strip_prefix('.')?;
                    Some((plain.to_owned(), (element.dtype(), shape.to_vec())))
                })
                .collect(),
        }
    }

    fn tensor(&self, name: &str) -> Result<Vec<u8>, ConvertError> {
        match self {
            Self::Safetensors(mapped) => Ok(mapped.tensor(name).to_vec()),
            Self::Pt(file) => Ok(file.tensor(&format!("{}.{name}", super::MODEL))?),
        }
    }
}

fn read_card(source: &Path, weights: &Weights) -> Result<ModelCard, ConvertError> {
    let missing = |what| ConvertError::NoModelCard { path: source.to_path_buf(), what };
    if let Weights::Pt(file) = weights {
        refuse_native(source, file)?;
    }
    let text = weights.about().ok_or_else(|| missing("it has no entry \"enn\" beside its tensors"))?;
    let found: ModelCard =
        serde_json::from_str(text).map_err(|_| missing("its entry \"enn\" is not a model card that can be read"))?;
    if found.format != model_card::FORMAT || found.version > model_card::VERSION {
        return Err(missing("its card is of a newer version of ENN"));
    }
    Ok(found)
}

/// Returns an error for the layout of ENN for PyTorch: "in_dim", "out_shape", "config", "tasks" and "state_dict".
fn refuse_native(path: &Path, file: &StateFile) -> Result<(), ConvertError> {
    if !Native::is(file) {
        return Ok(());
    }
    let tensors = file.tensors().filter(|(name, ..)| name.starts_with("state_dict.")).count();
    let value = |key: &str| file.values().get(key).map(python::plain).unwrap_or_default();
    let settings = file.values().keys().filter(|name| name.starts_with("config.")).count();
    let about = format!("in_dim {}, out_shape {}, {settings} settings", value("in_dim"), value("out_shape"));
    Err(ConvertError::Native { path: path.to_path_buf(), about, tensors })
}

fn card_mismatches(card: &ModelCard, found: &BTreeMap<String, (Option<TensorDType>, Vec<u64>)>) -> Vec<String> {
    let mut problems = Vec::new();
    let wanted: BTreeMap<&str, &CardTensor> =
        card.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    for (name, tensor) in &wanted {
        match found.get(*name) {
            None => problems.push(format!("{name} is missing")),
            Some((dtype, shape)) => {
                let dtype = dtype.map_or("another type", TensorDType::torch);
                if dtype != tensor.dtype || shape != &tensor.shape {
                    let expected = format!("{} {:?}", tensor.dtype, tensor.shape);
                    problems.push(format!("{name} is {dtype} {shape:?}, expected {expected}"));
                }
            }
        }
    }
    problems.extend(
        found.keys().filter(|name| !wanted.contains_key(name.as_str())).map(|name| format!("{name} is unexpected")),
    );
    problems
}

fn cannot_make(source: &Path, entry: &CardTensor) -> ConvertError {
    let problem = format!("{} of type {} {:?} cannot be made", entry.name, entry.dtype, entry.shape);
    ConvertError::unfit(source, problem)
}

/// Returns the initial content of one state tensor: a weight, a given value, or zeros.
fn content(source: &Path, card: &ModelCard, entry: &CardTensor, weights: &Weights) -> Result<Vec<u8>, ConvertError> {
    let wrong = || cannot_make(source, entry);
    let weight = entry.name.split_once('.').filter(|(prefix, _)| matches!(*prefix, "model" | "best" | "ema"));
    if let Some((_, plain)) = weight {
        let same = card.tensors.iter().any(|tensor| tensor.name == plain && tensor.shape == entry.shape);
        return if same { weights.tensor(plain) } else { Err(wrong()) };
    }
    let dtype = TensorDType::of_torch(&entry.dtype).ok_or_else(wrong)?;
    let elements = |shape: &[u64]| shape.iter().try_fold(1, |product: u64, &length| product.checked_mul(length));
    let bytes = elements(&entry.shape).and_then(|elements| elements.checked_mul(dtype.bytes())).ok_or_else(wrong)?;
    // A size that occurs in the file's own tensors is plausible; other sizes are limited.
    let is_known = card.tensors.iter().any(|tensor| elements(&tensor.shape) >= elements(&entry.shape));
    let bytes = Some(bytes).filter(|bytes| is_known || *bytes <= ZEROS_MAX);
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(wrong)?;
    match card.initial.get(&entry.name) {
        Some(text) => unhex(text).filter(|found| found.len() == bytes).ok_or_else(wrong),
        None => Ok(vec![0; bytes]),
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// Copies a checkpoint of ENN; a checkpoint written by PyTorch does not describe its model.
fn load_directory(source: &Path, checkpoints: &Path) -> Result<Committed, ConvertError> {
    let found = find_sound(source, Extent::Whole)?;
    found.notes().iter().for_each(|note| tracing::warn!("{note}"));
    let open = found.checkpoint;
    let no_card = || ConvertError::NoModelCard { path: open.dir().to_path_buf(), what: "it has no manifest.json" };
    let manifest = open.manifest().ok_or_else(no_card)?;
    let target = checkpoints.join(name::committed(manifest.step));
    copy_checkpoint(&open, manifest, &target)?;
    let copied = Checkpoint::open(&target)?;
    let bytes = manifest.bytes();
    let files = manifest.files.len() as u64 + 1;
    Ok(Committed { step: manifest.step, path: copied.dir().to_path_buf(), bytes, files })
}
