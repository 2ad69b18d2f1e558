//! The .safetensors form: a JSON header, then the tensors behind each other. Written one tensor at a time.

use super::ConvertError;
use enn_common::{
    artifact::card,
    checkpoint::DType,
    fs::{Disk, Storage, mmap::ReadMap},
};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The data begin at a multiple of this.
const ALIGN_BYTES: usize = 64;

/// Writes a file under a temporary name. `read` is called once per tensor.
pub(super) fn write(
    path: &Path,
    about: &str,
    tensors: &[(String, DType, Vec<u64>)],
    read: &mut dyn FnMut(&str) -> Result<Vec<u8>, ConvertError>,
) -> Result<(), ConvertError> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt", card::KEY: about}));
    // Wide elements first, so that each tensor is aligned for its own type.
    let mut order: Vec<&(String, DType, Vec<u64>)> = tensors.iter().collect();
    order.sort_by_key(|(name, dtype, _)| (std::cmp::Reverse(dtype.bytes()), name.clone()));
    let mut at = 0;
    for (name, dtype, shape) in &order {
        let end = at + shape.iter().product::<u64>() * dtype.bytes();
        let entry = json!({"dtype": name_of(*dtype), "shape": shape, "data_offsets": [at, end]});
        header.insert(name.clone(), entry);
        at = end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    let length = (text.len() + 8).next_multiple_of(ALIGN_BYTES) - 8;
    text.resize(length, b' ');
    let file = Disk.create(path)?;
    file.write_at(0, &[&(length as u64).to_le_bytes(), &text])?;
    let mut at = (length + 8) as u64;
    for (name, ..) in order {
        let bytes = read(name)?;
        file.write_at(at, &[&bytes])?;
        at += bytes.len() as u64;
    }
    Ok(file.sync()?)
}

/// Name, element type (`None`: one that is not loaded) and shape of a tensor.
pub(super) type Described = (String, Option<DType>, Vec<u64>);

/// A mapped file: the format's own reader checks the header against the file.
pub(super) struct Mapped {
    map: ReadMap,
    path: PathBuf,
}

impl Mapped {
    pub(super) fn open(path: &Path) -> Result<Self, ConvertError> {
        let mapped = Self { map: ReadMap::open(path)?, path: path.to_path_buf() };
        mapped.parse()?;
        Ok(mapped)
    }

    fn parse(&self) -> Result<SafeTensors<'_>, ConvertError> {
        SafeTensors::deserialize(self.map.bytes()).map_err(|source| self.error(source))
    }

    fn error(&self, source: safetensors::SafeTensorError) -> ConvertError {
        ConvertError::Safetensors { path: self.path.clone(), source }
    }

    /// The card's text, if there is one.
    pub(super) fn about(&self) -> Result<Option<String>, ConvertError> {
        let (_, header) = SafeTensors::read_metadata(self.map.bytes()).map_err(|source| self.error(source))?;
        Ok(header.metadata().as_ref().and_then(|about| about.get(card::KEY)).cloned())
    }

    /// What every tensor is.
    pub(super) fn tensors(&self) -> Result<Vec<Described>, ConvertError> {
        let shape = |shape: &[usize]| shape.iter().map(|&length| length as u64).collect();
        let described = self.parse()?.tensors().into_iter();
        Ok(described.map(|(name, view)| (name, dtype_of(view.dtype()), shape(view.shape()))).collect())
    }

    pub(super) fn tensor(&self, name: &str) -> Result<Vec<u8>, ConvertError> {
        let parsed = self.parse()?;
        Ok(parsed.tensor(name).map_err(|source| self.error(source))?.data().to_vec())
    }
}

/// The format's names of element types.
const NAMES: &[(DType, Dtype, &str)] = &[
    (DType::F64, Dtype::F64, "F64"),
    (DType::F32, Dtype::F32, "F32"),
    (DType::F16, Dtype::F16, "F16"),
    (DType::Bf16, Dtype::BF16, "BF16"),
    (DType::I64, Dtype::I64, "I64"),
    (DType::I32, Dtype::I32, "I32"),
    (DType::I16, Dtype::I16, "I16"),
    (DType::I8, Dtype::I8, "I8"),
    (DType::U8, Dtype::U8, "U8"),
    (DType::Bool, Dtype::BOOL, "BOOL"),
];

fn name_of(dtype: DType) -> &'static str {
    NAMES.iter().find(|(ours, ..)| *ours == dtype).map_or("F32", |(.., name)| name)
}

fn dtype_of(theirs: Dtype) -> Option<DType> {
    NAMES.iter().find(|(_, dtype, _)| *dtype == theirs).map(|(ours, ..)| *ours)
}
