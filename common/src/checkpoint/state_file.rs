//! One file that `torch.load(weights_only=True)` reads: `{"model": {name: tensor, …}, "enn": text}`.
//!
//! **Invariant:** tensors are written and read one at a time; the largest bounds the memory.

use super::{
    boxes::Region,
    item::rebuild_tensor,
    metadata::Place,
    pickle::{Pickler, Protocol},
    reader::TensorData,
    stored::{ItemError, StoredItem, StoredTensor, check_crc},
    table::DType,
    torch::ITEM_GLOBALS,
    unpickle::{UnpickleError, unpickle},
    zip::{Builder, Payload},
};
use crate::fs::{FileError, Storage};
use std::{collections::BTreeMap, fs::File, os::unix::fs::FileExt, path::Path};

/// Alignment of payloads, so that `torch.load(mmap=True)` maps them well.
const ALIGN_BYTES: u64 = 64;

/// Why such a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The disk.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file, or one of its tensors, is damaged or of a kind that is not read.
    #[error("{}{}: {source}", path.display(), name.as_ref().map(|name| format!(", tensor {name}")).unwrap_or_default())]
    Item {
        /// File.
        path: std::path::PathBuf,
        /// Tensor; `None`: the file as a whole.
        name: Option<String>,
        /// What is wrong.
        source: ItemError,
    },
}

/// Writes such a file in place of `path` (not atomically: give a temporary name). `about` is the text under "enn".
///
/// `read` is called once per tensor, in order; its error ends the writing.
pub fn write<E: From<FileError>>(
    storage: &dyn Storage,
    path: &Path,
    about: &str,
    tensors: &[(String, DType, Vec<u64>)],
    read: &mut dyn FnMut(&str) -> Result<Vec<u8>, E>,
) -> Result<(), E> {
    let file = storage.create(path)?;
    let mut zip = Builder::new(0);
    let pickle = pickle(about, tensors);
    let mut at = 0;
    for (name, bytes) in [("version", &b"3\n"[..]), ("byteorder", b"little"), ("data.pkl", &pickle)] {
        let record = zip.small(&format!("archive/{name}"), bytes);
        file.write_at(at, &[&record])?;
        at += record.len() as u64;
    }
    for (key, (name, ..)) in tensors.iter().enumerate() {
        let bytes = read(name)?;
        let record = format!("archive/data/{key}");
        let (length, crc32) = (bytes.len() as u64, crc32fast::hash(&bytes));
        let header = zip.header(&Payload { name: &record, bytes: length, crc32, align: ALIGN_BYTES });
        file.write_at(at, &[&header, &bytes])?;
        at += header.len() as u64 + length;
    }
    file.write_at(at, &[&zip.finish()])?;
    Ok(file.sync()?)
}

fn pickle(about: &str, tensors: &[(String, DType, Vec<u64>)]) -> Vec<u8> {
    let mut out = Pickler::new(Protocol::Two);
    out.empty_dict();
    out.mark();
    out.text("model");
    out.empty_dict();
    out.mark();
    for (key, (name, dtype, shape)) in tensors.iter().enumerate() {
        out.text(name);
        rebuild_tensor(&mut out, &key.to_string(), *dtype, shape);
    }
    out.set_items();
    out.text(crate::artifact::card::KEY);
    out.text(about);
    out.set_items();
    out.finish()
}

/// An open file of that form.
#[derive(Debug)]
pub struct StateFile {
    file: File,
    path: std::path::PathBuf,
    tensors: BTreeMap<String, StoredTensor>,
    about: String,
}

impl StateFile {
    /// Reads names, shapes and the text; no tensor data.
    pub fn open(path: &Path) -> Result<Self, StateFileError> {
        let file = File::open(path).map_err(FileError::of("open", path))?;
        let length = file.metadata().map_err(FileError::of("look at", path))?.len();
        let wrong = |source| StateFileError::Item { path: path.to_path_buf(), name: None, source };
        let place = Place { file: String::new(), offset: 0, length, transforms: Vec::new() };
        let (tensors, about) = contents(&file, &place).map_err(wrong)?;
        Ok(Self { file, path: path.to_path_buf(), tensors, about })
    }

    /// The text under "enn".
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Name, element type and shape of all tensors, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, DType, &[u64])> {
        self.tensors.iter().map(|(name, stored)| (name.as_str(), stored.dtype, stored.sizes.as_slice()))
    }

    /// A tensor, after checking its CRC-32.
    pub fn tensor(&self, name: &str) -> Result<TensorData, StateFileError> {
        let wrong = |source| StateFileError::Item { path: self.path.clone(), name: Some(name.to_owned()), source };
        let read = || {
            let stored = self.tensors.get(name).ok_or_else(|| ItemError::Record { name: name.to_owned() })?;
            let mut payload = vec![0; usize::try_from(stored.bytes).map_err(|_| ItemError::Cut)?];
            self.file.read_exact_at(&mut payload, stored.at)?;
            check_crc(&payload, stored.crc32)?;
            Ok(stored.row_major(payload))
        };
        read().map_err(wrong)
    }
}

/// The tensors under "model" and the text under "enn".
fn contents(file: &File, place: &Place) -> Result<(BTreeMap<String, StoredTensor>, String), ItemError> {
    let item = StoredItem::open(file, place.length, place)?;
    let pickle = item.pickle()?;
    let tree = unpickle(&pickle, ITEM_GLOBALS)?;
    let missing =
        || UnpickleError::Unexpected { expected: "a model saved by ENN: a dictionary with \"model\" and \"enn\"" };
    let about = tree.entry(tree.root, crate::artifact::card::KEY).and_then(|id| tree.text(id)).ok_or_else(missing)?;
    let model = tree.entry(tree.root, "model").and_then(|id| tree.pairs(id)).ok_or_else(missing)?;
    let mut tensors = BTreeMap::new();
    for &(name, tensor) in model {
        let name = tree.text(name).ok_or_else(missing)?;
        tensors.insert(name.to_owned(), item.locate(&tree, tensor)?);
    }
    Ok((tensors, about.to_owned()))
}

impl StoredTensor {
    /// The payload as row-major elements.
    fn row_major(&self, payload: Vec<u8>) -> TensorData {
        let (dtype, shape) = (self.dtype, self.sizes.clone());
        if self.is_plain() {
            return TensorData { dtype, shape, bytes: payload };
        }
        let whole = Region::whole(&shape);
        let width = usize::try_from(dtype.bytes()).unwrap_or(1);
        let own = super::item::strides(&shape);
        let mut bytes = Vec::with_capacity(payload.len());
        for flat in 0..whole.volume() {
            let mut rest = flat;
            let mut element = self.first;
            for (axis, &stride) in own.iter().enumerate() {
                element += rest / stride * self.strides[axis];
                rest %= stride;
            }
            let begin = usize::try_from(element).unwrap_or(usize::MAX) * width;
            bytes.extend_from_slice(&payload[begin..begin + width]);
        }
        TensorData { dtype, shape, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Disk;

    fn tensors() -> Vec<(String, DType, Vec<u64>)> {
        vec![
            ("b.weight".into(), DType::F32, vec![2, 3]),
            ("a".into(), DType::Bf16, vec![]),
            ("e".into(), DType::I64, vec![0]),
        ]
    }

    fn payload(name: &str) -> Result<Vec<u8>, FileError> {
        Ok(match name {
            "b.weight" => (0..24).collect(),
            "a" => vec![7, 8],
            _ => Vec::new(),
        })
    }

    #[test]
    fn comes_back_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.pt");
        write(&Disk, &path, "{\"x\": 1}", &tensors(), &mut |name| payload(name)).unwrap();
        let open = StateFile::open(&path).unwrap();
        assert_eq!(open.about(), "{\"x\": 1}");
        let names: Vec<_> = open.tensors().map(|(name, ..)| name.to_owned()).collect();
        assert_eq!(names, ["a", "b.weight", "e"]);
        for (name, dtype, shape) in tensors() {
            let found = open.tensor(&name).unwrap();
            assert_eq!(found, TensorData { dtype, shape, bytes: payload(&name).unwrap() });
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(24).position(|window| window == payload("b.weight").unwrap()).unwrap();
        assert_eq!(at % 64, 0);
        bytes[at + 3] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = StateFile::open(&path).unwrap().tensor("b.weight").unwrap_err().to_string();
        assert!(error.contains("m.pt, tensor b.weight: its bytes have CRC-32"), "{error}");
        std::fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
        assert!(StateFile::open(&path).is_err());
    }
}
