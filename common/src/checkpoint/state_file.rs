//! One file that `torch.save` could have written: dictionaries and lists of tensors and plain values, under "model" and "enn"
//! in what ENN saves. `torch.load(weights_only=True)` reads what is written here.
//!
//! **Invariant:** tensors are written and read one at a time; the largest bounds the memory.

use super::{
    boxes::Region,
    element::Element,
    item::rebuild_tensor,
    metadata::{PathPart, Place},
    nest::Nest,
    pickle::{Pickler, Protocol},
    stored::{ItemError, StoredItem, StoredTensor, check_crc},
    torch::ITEM_GLOBALS,
    tree::{Id, Node, Tree},
    unpickle::{UnpickleError, unpickle},
    value::Value,
    zip::Builder,
};
use crate::fs::{FileError, RelPath, Storage, regular};
use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Alignment of payloads, so that `torch.load(mmap=True)` maps them well.
const ALIGN_BYTES: u64 = 64;
/// Depth to which containers are followed.
const DEPTH_MAX: usize = 64;
/// Tensors, values and containers in a file; shared ones count as often as they are met.
const LEAVES_MAX: usize = 1 << 20;
/// Largest tensor whose storage is smaller than itself.
const EXPANDED_BYTES_MAX: u64 = 64 << 20;

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
        path: PathBuf,
        /// Tensor; `None`: the file as a whole.
        name: Option<String>,
        /// What is wrong.
        source: ItemError,
    },
}

/// A tensor or a value to be written, and where it goes in the file's dictionaries and lists.
#[derive(Debug, Clone)]
pub struct Entry {
    /// From the outermost dictionary on. No path is the beginning of another.
    pub path: Vec<PathPart>,
    /// What it is.
    pub content: Content,
}

/// What an entry is.
#[derive(Debug, Clone)]
pub enum Content {
    /// A tensor; its bytes are asked for when their turn comes.
    Tensor(Element, Vec<u64>),
    /// A plain value.
    Value(Value),
}

/// Writes such a file in place of `path` (not atomically: give a temporary name).
///
/// `read` is called with the place of every tensor in `entries`, in order; its error ends the writing.
pub fn write<E: From<FileError>>(
    storage: &dyn Storage,
    path: &Path,
    entries: &[Entry],
    read: &mut dyn FnMut(usize) -> Result<Vec<u8>, E>,
) -> Result<(), E> {
    let file = storage.create(path)?;
    let mut zip = Builder::new(0);
    let pickle = pickle(entries);
    let mut at = 0;
    for (name, bytes) in [("version", &b"3\n"[..]), ("byteorder", b"little"), ("data.pkl", &pickle)] {
        let record = zip.small(&format!("archive/{name}"), bytes);
        file.write_at(at, &[&record])?;
        at += record.len() as u64;
    }
    for (key, _) in entries.iter().enumerate().filter(|(_, entry)| matches!(entry.content, Content::Tensor(..))) {
        let bytes = read(key)?;
        let header = zip.record(&format!("archive/data/{key}"), &bytes, ALIGN_BYTES);
        file.write_at(at, &[&header, &bytes])?;
        at += (header.len() + bytes.len()) as u64;
    }
    file.write_at(at, &[&zip.finish()])?;
    Ok(file.sync()?)
}

fn pickle(entries: &[Entry]) -> Vec<u8> {
    let mut out = Pickler::new(Protocol::Two);
    let nest = Nest::of(entries.iter().map(|entry| entry.path.as_slice()));
    nest.pickle(&mut out, &mut |out, key| match &entries[key].content {
        Content::Tensor(element, shape) => rebuild_tensor(out, &key.to_string(), *element, shape),
        Content::Value(value) => out.value(value),
    });
    out.finish()
}

/// An open file of that form.
#[derive(Debug)]
pub struct StateFile {
    file: File,
    path: PathBuf,
    found: Found,
}

#[derive(Debug, Default)]
struct Found {
    tensors: BTreeMap<String, StoredTensor>,
    values: BTreeMap<String, Value>,
    paths: BTreeMap<String, Vec<PathPart>>,
    refused: Vec<(String, ItemError)>,
}

impl StateFile {
    /// Reads names, shapes and values; no tensor data.
    pub fn open(path: &Path) -> Result<Self, StateFileError> {
        let file = regular::open(path)?;
        let length = file.metadata().map_err(FileError::of("look at", path))?.len();
        let wrong = |source| StateFileError::Item { path: path.to_path_buf(), name: None, source };
        let place = Place { file: RelPath::own("data.pkl"), offset: 0, length, transforms: Vec::new() };
        let found = contents(&file, &place).map_err(wrong)?;
        Ok(Self { file, path: path.to_path_buf(), found })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text under a name, if there is one.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.found.values.get(name)?.as_str()
    }

    /// Name, element type and shape of all tensors, sorted by name: the keys from the outermost dictionary on, with dots.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, Element, &[u64])> {
        self.found.tensors.iter().map(|(name, stored)| (name.as_str(), stored.element, stored.sizes.as_slice()))
    }

    /// All plain values by name.
    pub fn values(&self) -> &BTreeMap<String, Value> {
        &self.found.values
    }

    /// Where a tensor or value is in the file's dictionaries and lists.
    pub fn place(&self, name: &str) -> Option<&[PathPart]> {
        self.found.paths.get(name).map(Vec::as_slice)
    }

    /// What is in the file and is not read, with the reason.
    pub fn refused(&self) -> &[(String, ItemError)] {
        &self.found.refused
    }

    /// A tensor's row-major elements, after checking its CRC-32.
    pub fn tensor(&self, name: &str) -> Result<Vec<u8>, StateFileError> {
        let wrong = |source| StateFileError::Item { path: self.path.clone(), name: Some(name.to_owned()), source };
        let read = || {
            let stored = self.found.tensors.get(name).ok_or_else(|| ItemError::Record { name: name.to_owned() })?;
            let mut payload = vec![0; usize::try_from(stored.bytes).map_err(|_| ItemError::Cut)?];
            self.file.read_exact_at(&mut payload, stored.at)?;
            check_crc(&payload, stored.crc32)?;
            stored.row_major(payload)
        };
        read().map_err(wrong)
    }
}

fn contents(file: &File, place: &Place) -> Result<Found, ItemError> {
    let item = StoredItem::open(file, place.length, place)?;
    let pickle = item.pickle()?;
    let tree = unpickle(&pickle, ITEM_GLOBALS)?;
    let mut walk = Walk { item: &item, tree: &tree, found: Found::default(), left: LEAVES_MAX };
    if tree.pairs(tree.root).is_none() {
        return Err(UnpickleError::Unexpected { expected: "a dictionary of tensors" }.into());
    }
    walk.enter(tree.root, &mut Vec::new())?;
    Ok(walk.found)
}

/// Follows containers as DCP flattens them: dictionaries always, lists that hold tensors or dictionaries.
struct Walk<'a> {
    item: &'a StoredItem<'a>,
    tree: &'a Tree<'a>,
    found: Found,
    left: usize,
}

impl Walk<'_> {
    fn enter(&mut self, id: Id, path: &mut Vec<PathPart>) -> Result<(), ItemError> {
        let spent = UnpickleError::Unexpected { expected: "a dictionary of bounded size and depth" };
        self.left = self.left.checked_sub(1).filter(|_| path.len() <= DEPTH_MAX).ok_or(spent)?;
        if let Some(keys) = self.keys(id) {
            for (part, value) in keys {
                path.push(part);
                self.enter(value, path)?;
                path.pop();
            }
            return Ok(());
        }
        let name = path.iter().map(ToString::to_string).collect::<Vec<_>>().join(".");
        if self.found.paths.insert(name.clone(), path.clone()).is_some() {
            return Err(UnpickleError::Unexpected { expected: "different names for different tensors" }.into());
        }
        let tensor = self.tree.object(id).is_some_and(|(name, ..)| name.starts_with("_rebuild_"));
        let read = if tensor {
            self.item.locate(self.tree, id).map(|stored| _ = self.found.tensors.insert(name.clone(), stored))
        } else {
            let value = self.tree.value(id).map(|value| _ = self.found.values.insert(name.clone(), value));
            value.map_err(|error| match self.tree.pairs(id) {
                // Were it not for its keys, it would have been followed.
                Some(_) => ItemError::Unsupported {
                    what: "a dictionary of which a key is neither a text nor a whole number".into(),
                },
                None => error.into(),
            })
        };
        if let Err(error) = read {
            if path.is_empty() {
                return Err(error);
            }
            self.found.refused.push((name, error));
        }
        Ok(())
    }

    /// What is in a container that is followed.
    fn keys(&self, id: Id) -> Option<Vec<(PathPart, Id)>> {
        let part = |key: Id| match self.tree.text(key) {
            Some(text) => Some(PathPart::Key(text.to_owned())),
            None => self.tree.int(key).map(PathPart::Number),
        };
        if let Some(pairs) = self.tree.pairs(id) {
            return pairs.iter().map(|&(key, value)| Some((part(key)?, value))).collect();
        }
        let Node::List(items) = self.tree.node(id) else { return None };
        let deep = items.iter().any(|&item| matches!(self.tree.node(item), Node::Dict(_) | Node::Object { .. }));
        let numbered = || (0u64..).map(PathPart::Index).zip(items.iter().copied()).collect();
        deep.then(numbered)
    }
}

impl StoredTensor {
    /// The payload as row-major elements.
    fn row_major(&self, payload: Vec<u8>) -> Result<Vec<u8>, ItemError> {
        if self.is_plain() {
            return Ok(payload);
        }
        let whole = Region::whole(&self.sizes);
        let width = usize::try_from(self.element.bytes()).unwrap_or(1);
        // Elements that overlap (an expanded tensor) are written out as often as they are seen; a file does not say how often.
        if whole.volume().saturating_mul(self.element.bytes()) > EXPANDED_BYTES_MAX.max(self.bytes) {
            return Err(ItemError::Unsupported { what: format!("of size {:?} over {} bytes", self.sizes, self.bytes) });
        }
        let own = super::item::strides(&self.sizes);
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
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{checkpoint::DType, fs::Disk};

    fn key(parts: &[&str]) -> Vec<PathPart> {
        parts.iter().map(|part| PathPart::Key((*part).to_owned())).collect()
    }

    fn entries() -> Vec<Entry> {
        let tensor =
            |path, dtype: DType, shape: &[u64]| Entry { path, content: Content::Tensor(dtype.into(), shape.into()) };
        let value = |path, value| Entry { path, content: Content::Value(value) };
        let mut group = key(&["optim", "groups"]);
        group.extend([PathPart::Index(0), PathPart::Key("lr".into())]);
        vec![
            tensor(key(&["model", "b.weight"]), DType::F32, &[2, 3]),
            tensor(key(&["model", "a"]), DType::Bf16, &[]),
            tensor(key(&["model", "e"]), DType::I64, &[0]),
            value(key(&["enn"]), Value::from("{\"x\": 1}")),
            value(group, Value::Float(0.5)),
        ]
    }

    fn payload(entry: usize) -> Result<Vec<u8>, FileError> {
        Ok(match entry {
            0 => (0..24).collect(),
            1 => vec![7, 8],
            _ => Vec::new(),
        })
    }

    #[test]
    fn comes_back_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.pt");
        write(&Disk, &path, &entries(), &mut payload).unwrap();
        let open = StateFile::open(&path).unwrap();
        assert_eq!(open.text("enn"), Some("{\"x\": 1}"));
        assert_eq!(open.values()["optim.groups.0.lr"], Value::Float(0.5));
        assert_eq!(open.place("optim.groups.0.lr"), Some(entries()[4].path.as_slice()));
        let names: Vec<_> = open.tensors().map(|(name, ..)| name.to_owned()).collect();
        assert_eq!(names, ["model.a", "model.b.weight", "model.e"]);
        for (index, name) in ["model.b.weight", "model.a", "model.e"].into_iter().enumerate() {
            assert_eq!(open.tensor(name).unwrap(), payload(index).unwrap());
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(24).position(|window| window == payload(0).unwrap()).unwrap();
        assert_eq!(at % 64, 0);
        bytes[at + 3] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = StateFile::open(&path).unwrap().tensor("model.b.weight").unwrap_err().to_string();
        assert!(error.contains("m.pt, tensor model.b.weight: its bytes have CRC-32"), "{error}");
        std::fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
        assert!(StateFile::open(&path).is_err());
    }

    #[test]
    fn numbers_as_keys_stay_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("optimizer.pt");
        let place =
            |number| vec![PathPart::Key("state".into()), PathPart::Number(number), PathPart::Key("step".into())];
        let steps = [0, 70_000, -1].map(place).map(|path| Entry { path, content: Content::Value(Value::Int(3)) });
        write(&Disk, &path, &steps, &mut payload).unwrap();
        let open = StateFile::open(&path).unwrap();
        assert_eq!(open.values().keys().collect::<Vec<_>>(), ["state.-1.step", "state.0.step", "state.70000.step"]);
        assert_eq!(open.place("state.70000.step"), Some(steps[1].path.as_slice()));
    }

    #[test]
    fn what_is_no_zip_or_has_keys_without_names_is_called_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("old.pt");
        std::fs::write(&path, b"\x80\x02}q\x00.").unwrap();
        let error = StateFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("old.pt: it is a bare pickle, as torch.save wrote before PyTorch 1.6"), "{error}");
        // {None: a tensor}, alone and inside.
        let mut out = Pickler::new(Protocol::Two);
        out.empty_dict();
        out.mark();
        out.value(&Value::None);
        rebuild_tensor(&mut out, "0", DType::F32.into(), &[1]);
        out.set_items();
        let mut zip = Builder::new(0);
        let mut bytes = zip.small("archive/version", b"3\n");
        bytes.extend(zip.small("archive/data.pkl", &out.finish()));
        bytes.extend(zip.small("archive/data/0", &[0; 4]));
        bytes.extend(zip.finish());
        std::fs::write(&path, &bytes).unwrap();
        let error = StateFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("of which a key is neither a text nor a whole number"), "{error}");
    }
}
