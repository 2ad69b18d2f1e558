//! Sources of tensors in any form: a DCP directory, safetensors alone or in shards, a file of `torch.save`.

use super::{ConvertError, native::Native, safetensors::Tensor, sharded::Sharded};
use enn_common::{
    artifact::model_card,
    checkpoint::{
        Checkpoint, Element, PathPart, Region, Value,
        form::FileForm,
        listing,
        mention::Mention,
        name::{self, is_dcp},
        state_file::StateFile,
    },
};
use std::{collections::BTreeMap, path::Path};

pub(crate) enum Source {
    Dcp(Box<Checkpoint>),
    /// One or more .safetensors files.
    Safetensors(Sharded),
    /// A file of `torch.save`, or a pickle.
    Pt(Box<StateFile>),
    /// A .pt of ENN for PyTorch, by ENN's names.
    Native(Box<Native>),
}

pub(super) enum PlainValue {
    /// The item in a checkpoint and the CRC-32 of its pickle, copied unchanged even if it cannot be decoded.
    Item(Vec<u8>, u32),
    Value(Value),
}

impl Source {
    /// Opens `path`: a file by its content; a directory by its files, where a run or its checkpoints stand for the newest complete
    /// checkpoint.
    pub(crate) fn open(path: &Path) -> Result<Self, ConvertError> {
        if !path.is_dir() {
            let extension = path.extension().and_then(|extension| extension.to_str());
            return match (FileForm::of(path)?, extension) {
                (FileForm::Safetensors, _) | (_, Some("safetensors" | "json")) => {
                    Ok(Self::Safetensors(Sharded::open(path)?))
                }
                _ => Ok(Self::Pt(Box::new(StateFile::open(path)?))),
            };
        }
        if Sharded::is_in(path) && !is_dcp(path) {
            return Ok(Self::Safetensors(Sharded::open(path)?));
        }
        Ok(Self::Dcp(Box::new(listing::find(path)?)))
    }

    /// Converts a file of ENN for PyTorch to its view in ENN; returns other sources unchanged.
    pub(super) fn mapped(self) -> Self {
        match self {
            Self::Pt(file) if Native::is(&file) => Self::Native(Box::new(Native::map(*file))),
            other => other,
        }
    }

    pub(super) fn checkpoint(&self) -> Option<&Checkpoint> {
        if let Self::Dcp(open) = self { Some(open) } else { None }
    }

    pub(crate) fn form(&self) -> &'static str {
        match self {
            Self::Dcp(open) if open.manifest().is_some() => "ENN checkpoint",
            Self::Dcp(_) => "PyTorch DCP",
            Self::Safetensors(_) => "safetensors",
            Self::Pt(file) => match file.form() {
                FileForm::Sequence => "torch.save of before PyTorch 1.6",
                FileForm::Pickle => "pickle",
                _ => "torch.save",
            },
            Self::Native(_) => "ENN for PyTorch",
        }
    }

    pub(super) fn suspicions(&self) -> Vec<String> {
        match self {
            Self::Dcp(open) => open.suspicions(),
            Self::Safetensors(files) => files.unbounded().into_iter().collect(),
            Self::Pt(_) | Self::Native(_) => Vec::new(),
        }
    }

    pub(super) fn file_count(&self) -> usize {
        match self {
            Self::Dcp(open) => {
                let chunks = open.metadata().tensors.values().flat_map(|tensor| &tensor.chunks);
                chunks.map(|chunk| &chunk.place.file).collect::<std::collections::BTreeSet<_>>().len()
            }
            Self::Safetensors(files) => files.file_count(),
            Self::Pt(_) | Self::Native(_) => 1,
        }
    }

    /// Returns all tensors, sorted by name.
    pub(crate) fn tensors(&self) -> Result<Vec<Tensor>, ConvertError> {
        match self {
            Self::Dcp(open) => {
                let tensor = |name: &str| {
                    let entry = open.entry(name)?;
                    let element = entry.element();
                    let problem = || format!("{name} is of the element type {}, which is not read", entry.dtype);
                    let element = element.ok_or_else(|| ConvertError::unfit(open.dir(), problem()))?;
                    Ok(Tensor { name: name.to_owned(), element, shape: entry.shape.clone() })
                };
                open.tensor_names().map(tensor).collect()
            }
            Self::Safetensors(files) => files.tensors(),
            Self::Pt(file) => {
                let tensor = |(name, element, shape): (&str, Element, &[u64])| Tensor {
                    name: name.to_owned(),
                    element,
                    shape: shape.to_vec(),
                };
                Ok(file.tensors().map(tensor).collect())
            }
            Self::Native(native) => Ok(native.tensors()),
        }
    }

    pub(crate) fn tensor(&self, tensor: &Tensor) -> Result<Vec<u8>, ConvertError> {
        match self {
            Self::Dcp(open) => Ok(open.raw(&tensor.name, &Region::whole(&tensor.shape))?.1),
            Self::Safetensors(files) => files.tensor(&tensor.name),
            Self::Pt(file) => Ok(file.tensor(&tensor.name)?),
            Self::Native(native) => native.tensor(&tensor.name),
        }
    }

    pub(crate) fn values(&self) -> Vec<String> {
        match self {
            Self::Dcp(open) => open.metadata().values.keys().cloned().collect(),
            Self::Safetensors(_) | Self::Native(_) => Vec::new(),
            Self::Pt(file) => file.values().keys().cloned().collect(),
        }
    }

    pub(crate) fn value(&self, name: &str) -> Result<Value, ConvertError> {
        match self {
            Self::Dcp(open) => Ok(open.value(name)?),
            Self::Safetensors(_) | Self::Native(_) => Ok(Value::None),
            Self::Pt(file) => Ok(file.values().get(name).cloned().unwrap_or(Value::None)),
        }
    }

    pub(super) fn plain_value(&self, name: &str) -> Result<PlainValue, ConvertError> {
        match self {
            Self::Dcp(open) => open.item(name).map(|(bytes, crc32)| PlainValue::Item(bytes, crc32)).map_err(Into::into),
            _ => self.value(name).map(PlainValue::Value),
        }
    }

    /// Returns the path of a name in nested dictionaries and lists; the name alone in a flat source.
    pub(super) fn place(&self, name: &str) -> Vec<PathPart> {
        let known = match self {
            Self::Dcp(open) => open.metadata().paths.get(name).map(Vec::as_slice),
            Self::Safetensors(_) | Self::Native(_) => None,
            Self::Pt(file) => file.place(name),
        };
        known.map_or_else(|| vec![PathPart::Key(name.to_owned())], <[PathPart]>::to_vec)
    }

    /// Returns the texts stored with the tensors: `__metadata__` of safetensors, or the model card.
    pub(super) fn about(&self) -> BTreeMap<String, String> {
        match self {
            Self::Dcp(_) | Self::Native(_) => BTreeMap::new(),
            Self::Safetensors(files) => files.about(),
            Self::Pt(file) => file
                .text(model_card::KEY)
                .map(|text| (model_card::KEY.to_owned(), text.to_owned()))
                .into_iter()
                .collect(),
        }
    }

    pub(crate) fn refused(&self) -> Vec<String> {
        match self {
            Self::Pt(file) => {
                let refused = file.refused().iter().map(|(name, error)| format!("{}: {error}", named(name)));
                let foreign = foreign(file).into_iter().map(|object| format!("{object}, which is foreign"));
                let dangerous = self.dangerous().iter().map(|mention| format!("{mention}, which is dangerous"));
                refused.chain(foreign).chain(dangerous).collect()
            }
            Self::Native(native) => native.unmapped_lines(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn dangerous(&self) -> &[Mention] {
        match self {
            Self::Pt(file) => file.mentions().dangerous(),
            Self::Native(native) => native.file().mentions().dangerous(),
            _ => &[],
        }
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Dcp(open) => open.dir(),
            Self::Safetensors(files) => files.path(),
            Self::Pt(file) => file.path(),
            Self::Native(native) => native.file().path(),
        }
    }
}

fn named(name: &str) -> &str {
    if name.is_empty() { "the file itself" } else { name }
}

/// Lists the classes of objects of other libraries, with the first object and the number of objects of each.
pub(super) fn foreign(file: &StateFile) -> Vec<String> {
    let mut of_class: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    for (name, class) in file.foreign() {
        of_class.entry(class.as_str()).or_insert((name.as_str(), 0)).1 += 1;
    }
    let line = |(class, (first, count)): (&str, (&str, usize))| match count {
        1 => format!("{}: an object of {class}", named(first)),
        _ => format!("{} and {} more: objects of {class}", named(first), count - 1),
    };
    let mut lines: Vec<String> = of_class.into_iter().map(line).collect();
    // These are functions, and classes without a decoded object.
    let is_met = |mention: &Mention| file.foreign().iter().any(|(_, class)| *class == mention.to_string());
    let others = file.mentions().foreign().iter().filter(|mention| !is_met(mention));
    lines.extend(others.map(|mention| format!("a mention of {mention}")));
    if file.mentions().is_cut() {
        lines.push("mentions of more classes than are listed".to_owned());
    }
    lines
}

/// Returns whether a directory is a checkpoint, even a damaged or incomplete one.
pub(super) fn is_checkpoint(path: &Path) -> bool {
    path.is_dir() && (is_dcp(path) || path.join(name::MANIFEST).exists())
}
