//! The .safetensors form: a JSON header, then the tensors one after another. Written one tensor at a time.

use super::ConvertError;
use enn_common::{
    checkpoint::Element,
    fs::{Disk, Storage, mmap::ReadMap},
    keys, panics,
};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

const RESERVED: &str = "__metadata__";
/// Alignment of the start of the data, bytes.
const ALIGN_BYTES: usize = 64;

/// The name, type and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    pub element: Element,
    pub shape: Vec<u64>,
}

impl Tensor {
    /// Returns the bytes of all elements; `u64::MAX` on overflow.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().fold(self.element.bytes(), |product, &length| product.saturating_mul(length))
    }

    /// Returns the shape in the format's unit of single numbers; `None` where packed elements lie along no axis.
    fn numbers(&self) -> Option<Vec<u64>> {
        let mut shape = self.shape.clone();
        let packed = self.element.packed();
        match shape.last_mut() {
            Some(length) => *length = length.checked_mul(packed)?,
            None if packed > 1 => return None,
            None => {}
        }
        Some(shape)
    }
}

/// Writes a file with `about` in its `__metadata__`. `read` is called once per tensor.
pub(super) fn write(
    path: &Path,
    about: &BTreeMap<String, String>,
    tensors: &[Tensor],
    read: &mut dyn FnMut(&str) -> Result<Vec<u8>, ConvertError>,
) -> Result<(), ConvertError> {
    if tensors.iter().any(|tensor| tensor.name == RESERVED) {
        let what = format!(
            "a tensor is named {RESERVED}, which the format keeps for itself\n  hint: write NAME.pt or a directory, which have room for it"
        );
        return Err(ConvertError::sharded(path, what));
    }
    let mut header = Map::new();
    let mut words = about.clone();
    words.insert("format".to_owned(), "pt".to_owned());
    header.insert(RESERVED.to_owned(), json!(words));
    // Wide elements first, so that each tensor is aligned for its own type.
    let mut order: Vec<&Tensor> = tensors.iter().collect();
    order.sort_by_key(|tensor| (std::cmp::Reverse(tensor.element.bytes()), tensor.name.clone()));
    let mut at = 0;
    for tensor in &order {
        let named = tensor.element.safetensors().zip(tensor.numbers());
        let (name, shape) = named.ok_or_else(|| ConvertError::NoType {
            path: path.to_path_buf(),
            name: tensor.name.clone(),
            element: tensor.element.torch(),
        })?;
        let end = at + tensor.bytes();
        header.insert(tensor.name.clone(), json!({"dtype": name, "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    let length = (text.len() + 8).next_multiple_of(ALIGN_BYTES) - 8;
    text.resize(length, b' ');
    let file = Disk.create(path)?;
    file.write_at(0, &[&(length as u64).to_le_bytes(), &text])?;
    let mut at = (length + 8) as u64;
    for tensor in order {
        let bytes = read(&tensor.name)?;
        file.write_at(at, &[&bytes])?;
        at += bytes.len() as u64;
    }
    Ok(file.sync()?)
}

/// A tensor in a file: element type in the format's spelling, shape, and byte range in the map.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    begin: usize,
    end: usize,
}

impl Stored {
    pub(super) fn element(&self) -> Option<Element> {
        Element::of_safetensors(&self.dtype)
    }
}

/// A memory-mapped file whose header the format's own reader has checked.
#[derive(Debug)]
pub(super) struct MappedFile {
    map: ReadMap,
    path: PathBuf,
    about: BTreeMap<String, String>,
    tensors: BTreeMap<String, Stored>,
}

impl MappedFile {
    pub(super) fn open(path: &Path) -> Result<Self, ConvertError> {
        let map = ReadMap::open(path)?;
        let names = keys::names_bytes(map.bytes());
        if names > keys::NAMES_BYTES_MAX {
            let what = format!("its header is said to have {names} bytes, expected at most {}", keys::NAMES_BYTES_MAX);
            return Err(ConvertError::sharded(path, what));
        }
        let wrong = |source| ConvertError::Safetensors { path: path.to_path_buf(), source };
        let read = panics::caught("safetensors", || SafeTensors::read_metadata(map.bytes()));
        let read = read.map_err(|panic| ConvertError::sharded(path, panic.to_string()))?;
        let (header_bytes, header) = read.map_err(wrong)?;
        let data_at = header_bytes + size_of::<u64>();
        if let Some(name) = keys::twice(map.bytes().get(size_of::<u64>()..data_at).unwrap_or_default()) {
            let what = format!("its header has {name:?} twice, which is ambiguous");
            return Err(ConvertError::sharded(path, what));
        }
        let stored = |info: &safetensors::tensor::TensorInfo| {
            let dtype = json!(info.dtype).as_str().unwrap_or_default().to_owned();
            let mut shape: Vec<u64> = info.shape.iter().map(|&length| length as u64).collect();
            if let (Some(element), Some(numbers)) = (Element::of_safetensors(&dtype), shape.last_mut()) {
                *numbers /= element.packed();
            }
            Stored { dtype, shape, begin: data_at + info.data_offsets.0, end: data_at + info.data_offsets.1 }
        };
        let tensors = header.tensors().into_iter().map(|(name, info)| (name, stored(info))).collect();
        let about = header.metadata().clone().unwrap_or_default().into_iter().collect();
        Ok(Self { map, path: path.to_path_buf(), about, tensors })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn about(&self) -> &BTreeMap<String, String> {
        &self.about
    }

    pub(super) fn tensors(&self) -> &BTreeMap<String, Stored> {
        &self.tensors
    }

    pub(super) fn bytes(&self, stored: &Stored) -> &[u8] {
        self.map.bytes().get(stored.begin..stored.end).unwrap_or_default()
    }

    /// Returns the row-major bytes of a tensor by name; empty if it does not exist.
    pub(super) fn tensor(&self, name: &str) -> &[u8] {
        self.tensors.get(name).map_or(&[], |stored| self.bytes(stored))
    }
}
