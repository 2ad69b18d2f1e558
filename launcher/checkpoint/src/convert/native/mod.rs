//! Maps a file of ENN for PyTorch to ENN: settings, statistics and weights with the same meaning in both get ENN's names, and all other
//! entries are listed with the reason.
//!
//! ```text
//! {version, in_dim, out_shape, config, tasks, pytorch_version, extra, state_dict[, optimizer_state_dict]}
//! ```
//! **Invariant:** a tensor is taken only where it does the same thing in the same place; every name in the file is either taken or
//! told.

mod names;
mod settings;

use super::{
    ConvertError,
    cast::{self, cast},
    python,
    safetensors::Tensor,
};
use enn_common::{
    checkpoint::{Element, TensorDType, Value, state_file::StateFile},
    config::model::ModelConfig,
};
use names::{Destination, ValueChange};
use std::collections::BTreeMap;

const STATE: &str = "state_dict.";

#[derive(Debug)]
struct TensorParts {
    /// Names in the file, stacked along the rows, each with the range of rows that is used.
    parts: Vec<Option<(String, Option<std::ops::Range<u64>>)>>,
    change: ValueChange,
}

#[derive(Debug)]
pub(crate) struct Native {
    file: StateFile,
    pub in_dim: u64,
    pub out_shape: Vec<u64>,
    made: BTreeMap<String, (TensorParts, Tensor)>,
    /// The name in the file, the setting of ENN, and the value.
    pub settings: Vec<(String, String, Value)>,
    /// Entries that are not used, with the reason.
    pub left: Vec<(String, String)>,
}

impl Native {
    pub(crate) fn is(file: &StateFile) -> bool {
        let has = |key: &str| file.values().keys().any(|name| name == key || name.starts_with(&format!("{key}.")));
        has("in_dim") && has("out_shape") && file.tensors().any(|(name, ..)| name.starts_with(STATE))
    }

    pub(crate) fn map(file: StateFile) -> Self {
        let values = file.values();
        let in_dim = match values.get("in_dim") {
            Some(Value::Int(count)) => count.unsigned_abs(),
            _ => 0,
        };
        let out_shape = match values.get("out_shape") {
            Some(Value::Tuple(axes) | Value::List(axes)) => axes.iter().filter_map(size).collect(),
            _ => Vec::new(),
        };
        let (settings, mut left) = settings::of(values);
        left.extend(file.refused().iter().map(|(name, error)| (name.clone(), error.to_string())));
        let mut native = Self { in_dim, out_shape, made: BTreeMap::new(), settings, left, file };
        native.weights();
        native
    }

    fn weights(&mut self) {
        let layers = self.self_layers();
        let mut made: BTreeMap<String, TensorParts> = BTreeMap::new();
        let mut shapes = BTreeMap::new();
        for (name, element, shape) in self.file.tensors() {
            shapes.insert(name.to_owned(), (element, shape.to_vec()));
            let leave = |why: String| (name.to_owned(), why);
            let Some(own) = name.strip_prefix(STATE) else {
                self.left.push(leave(names::reason_outside_state(name).to_owned()));
                continue;
            };
            if !element.dtype().is_some_and(|dtype| cast::FLOATS.contains(&dtype)) {
                let found = element.torch();
                self.left.push(leave(format!("is of type {found}, expected floating-point numbers")));
                continue;
            }
            match names::destinations(own, shape, layers) {
                Err(why) => self.left.push(leave(why.to_owned())),
                Ok(destinations) => {
                    for Destination { name: ours, slot, slots, rows, change } in destinations {
                        let entry =
                            made.entry(ours).or_insert_with(|| TensorParts { parts: vec![None; slots], change });
                        entry.parts[slot] = Some((name.to_owned(), rows));
                    }
                }
            }
        }
        for (name, made) in made {
            match shape_of(&made, &shapes) {
                Ok(shape) => {
                    let element = if made.change.is_double() { TensorDType::F64 } else { TensorDType::F32 };
                    let tensor = Tensor { name: name.clone(), element: element.into(), shape };
                    self.made.insert(name, (made, tensor));
                }
                Err(why) => {
                    let parts = made.parts.into_iter().flatten();
                    self.left.extend(parts.map(|(theirs, _)| (theirs, format!("{name} cannot be made: {why}"))));
                }
            }
        }
        self.left.sort();
        self.left.dedup();
    }

    /// Returns the number of self-attention layers in each round of the Perceiver.
    fn self_layers(&self) -> usize {
        let count = |part: &str| {
            let begin = format!("{STATE}fuser.perceiver.{part}.");
            let index = |name: &str| name.strip_prefix(&begin)?.split('.').next()?.parse::<usize>().ok();
            self.file
                .tensors()
                .filter_map(|(name, ..)| index(&names::current_name(name)))
                .max()
                .map_or(0, |last| last + 1)
        };
        count("self_blocks") / count("cross").max(1)
    }

    pub(crate) fn file(&self) -> &StateFile {
        &self.file
    }

    /// Returns the tensors by ENN's names: weights as in a saved model, buffers below `scaler.`.
    pub(crate) fn tensors(&self) -> Vec<Tensor> {
        self.made.values().map(|(_, tensor)| tensor.clone()).collect()
    }

    pub(crate) fn origin(&self, name: &str) -> Vec<&str> {
        let parts = self.made.get(name).map(|(made, _)| made.parts.iter());
        parts.into_iter().flatten().flatten().map(|(theirs, _)| theirs.as_str()).collect()
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Vec<u8>, ConvertError> {
        let Some((made, tensor)) = self.made.get(name) else {
            return Err(ConvertError::unfit(self.file.path(), format!("{name} is not in it")));
        };
        let mut bytes = Vec::new();
        for (theirs, rows) in made.parts.iter().flatten() {
            let (element, shape) = self.described(theirs);
            let part = cast(self.file.tensor(theirs)?, element, tensor.element).0;
            let row = part.len() / usize::try_from(shape.first().copied().unwrap_or(1)).unwrap_or(1).max(1);
            match rows {
                None => bytes.extend(part),
                Some(rows) => bytes.extend(&part[rows.start as usize * row..rows.end as usize * row]),
            }
        }
        made.change.apply(&mut bytes);
        Ok(bytes)
    }

    fn described(&self, name: &str) -> (Element, Vec<u64>) {
        let found = self.file.tensors().find(|(own, ..)| *own == name);
        found.map_or((TensorDType::F32.into(), Vec::new()), |(_, element, shape)| (element, shape.to_vec()))
    }

    pub(crate) fn model(&self, base: &ModelConfig) -> Result<ModelConfig, ConvertError> {
        let problem = |error| format!("its settings make no model: {error}");
        settings::model(&self.settings, base)
            .map_err(|error: serde_json::Error| ConvertError::unfit(self.file.path(), problem(error)))
    }

    pub(crate) fn unmapped_lines(&self) -> Vec<String> {
        self.left.iter().map(|(name, why)| format!("{name}: {why}")).collect()
    }

    pub(crate) fn setting_lines(&self) -> Vec<(String, String, String)> {
        let line =
            |(theirs, ours, value): &(String, String, Value)| (theirs.clone(), ours.clone(), python::plain(value));
        self.settings.iter().map(line).collect()
    }
}

fn size(value: &Value) -> Option<u64> {
    if let Value::Int(size) = value { u64::try_from(*size).ok() } else { None }
}

fn shape_of(made: &TensorParts, shapes: &BTreeMap<String, (Element, Vec<u64>)>) -> Result<Vec<u64>, String> {
    let mut shape: Option<Vec<u64>> = None;
    for part in &made.parts {
        let (name, rows) = part.as_ref().ok_or("a part of it is not in the file")?;
        let mut own = shapes.get(name).map(|(_, shape)| shape.clone()).unwrap_or_default();
        if let (Some(rows), Some(first)) = (rows, own.first_mut()) {
            *first = rows.end - rows.start;
        }
        shape = match shape {
            None => Some(own),
            Some(mut above) if above.len() == own.len() && !own.is_empty() && above[1..] == own[1..] => {
                above[0] += own[0];
                Some(above)
            }
            Some(above) => return Err(format!("{name} is {own:?} below {above:?}")),
        };
    }
    shape.ok_or_else(|| "it has no part".to_owned())
}
