//! One file that `torch.save` could have written: dictionaries and lists of tensors and plain values, under "model" and "enn"
//! in what ENN saves. `torch.load(weights_only=True)` reads what is written here.
//!
//! **Invariant:** tensors are written and read one at a time; the largest bounds the memory.

mod read;
mod walk;

use super::{
    boxes::Region,
    element::Element,
    form::FileForm,
    item::rebuild_tensor,
    mention::Mentions,
    metadata::PathPart,
    nest::Nest,
    pickle::{Pickler, Protocol},
    stored::{ItemError, StoredTensor},
    value::Value,
    zip::Builder,
};
use crate::fs::{FileError, Storage, regular};
use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
};
use walk::StateFileParts;

/// Alignment of payloads, so that `torch.load(mmap=True)` maps them well.
const ALIGN_BYTES: u64 = 64;
/// Largest tensor whose storage is smaller than itself.
const EXPANDED_BYTES_MAX: u64 = 64 << 20;

/// Why such a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}{}: {source}", path.display(), name.as_ref().map(|name| format!(", tensor {name}")).unwrap_or_default())]
    Item {
        path: PathBuf,
        /// Tensor; `None`: the file as a whole.
        name: Option<String>,
        source: ItemError,
    },
}

/// A tensor or a value to be written, and where it goes in the file's dictionaries and lists.
#[derive(Debug, Clone)]
pub struct StateEntry {
    /// From the outermost dictionary on. No path is the beginning of another.
    pub path: Vec<PathPart>,
    pub content: Content,
}

#[derive(Debug, Clone)]
pub enum Content {
    /// A tensor; its bytes are asked for when their turn comes.
    Tensor(Element, Vec<u64>),
    Value(Value),
}

/// Writes such a file in place of `path` (not atomically: give a temporary name).
///
/// `read` is called with the place of every tensor in `entries`, in order; its error ends the writing.
pub fn write<E: From<FileError>>(
    storage: &dyn Storage,
    path: &Path,
    entries: &[StateEntry],
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

fn pickle(entries: &[StateEntry]) -> Vec<u8> {
    let mut out = Pickler::new(Protocol::Two);
    let nest = Nest::of(entries.iter().map(|entry| entry.path.as_slice()));
    nest.pickle(&mut out, &mut |out, key| match &entries[key].content {
        Content::Tensor(element, shape) => rebuild_tensor(out, &key.to_string(), *element, shape),
        Content::Value(value) => out.value(value),
    });
    out.finish()
}

#[derive(Debug)]
pub struct StateFile {
    file: File,
    path: PathBuf,
    form: FileForm,
    found: StateFileParts,
}

impl StateFile {
    /// Reads names, shapes and values; of tensors' data only those inside a bare pickle.
    ///
    /// # Errors
    /// The file as a whole cannot be read. What in it cannot be is in [`Self::refused`].
    pub fn open(path: &Path) -> Result<Self, StateFileError> {
        let file = regular::open(path)?;
        let length = file.metadata().map_err(FileError::of("look at", path))?.len();
        let form = FileForm::of_file(&file).map_err(FileError::of("read", path))?;
        let wrong = |source| StateFileError::Item { path: path.to_path_buf(), name: None, source };
        let found = read::contents(&file, form, length).map_err(wrong)?;
        Ok(Self { file, path: path.to_path_buf(), form, found })
    }

    pub fn form(&self) -> FileForm {
        self.form
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.found.values.get(name)?.as_str()
    }

    /// Name, element type and shape of all tensors, sorted by name: the keys from the outermost dictionary on, with dots.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, Element, &[u64])> {
        self.found.tensors.iter().map(|(name, stored)| (name.as_str(), stored.element, stored.sizes.as_slice()))
    }

    pub fn values(&self) -> &BTreeMap<String, Value> {
        &self.found.values
    }

    /// Where a tensor or value is in the file's dictionaries and lists.
    pub fn place(&self, name: &str) -> Option<&[PathPart]> {
        self.found.paths.get(name).map(Vec::as_slice)
    }

    /// Entries of the file that are not read, with the reason.
    pub fn refused(&self) -> &[(String, ItemError)] {
        &self.found.refused
    }

    /// Objects of other libraries, by their names in the file, each with its class. What is readable in them is read.
    pub fn foreign(&self) -> &[(String, String)] {
        &self.found.foreign
    }

    /// Classes and functions that the file mentions and that are no part of a checkpoint.
    pub fn mentions(&self) -> &Mentions {
        &self.found.mentions
    }

    /// A tensor's row-major elements, after checking its CRC-32.
    pub fn tensor(&self, name: &str) -> Result<Vec<u8>, StateFileError> {
        let wrong = |source| StateFileError::Item { path: self.path.clone(), name: Some(name.to_owned()), source };
        let read = || {
            let stored = self.found.tensors.get(name).ok_or_else(|| ItemError::Record { name: name.to_owned() })?;
            stored.row_major(stored.payload(&self.file)?)
        };
        read().map_err(wrong)
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
            let begin = usize::try_from(self.element_at(flat, &own)).unwrap_or(usize::MAX) * width;
            bytes.extend_from_slice(&payload[begin..begin + width]);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{checkpoint::TensorDType, fs::Disk};

    fn key(parts: &[&str]) -> Vec<PathPart> {
        parts.iter().map(|part| PathPart::Key((*part).to_owned())).collect()
    }

    fn entries() -> Vec<StateEntry> {
        let tensor = |path, dtype: TensorDType, shape: &[u64]| StateEntry {
            path,
            content: Content::Tensor(dtype.into(), shape.into()),
        };
        let value = |path, value| StateEntry { path, content: Content::Value(value) };
        let mut group = key(&["optim", "groups"]);
        group.extend([PathPart::Index(0), PathPart::Key("lr".into())]);
        vec![
            tensor(key(&["model", "b.weight"]), TensorDType::F32, &[2, 3]),
            tensor(key(&["model", "a"]), TensorDType::Bf16, &[]),
            tensor(key(&["model", "e"]), TensorDType::I64, &[0]),
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
        let steps = [0, 70_000, -1].map(place).map(|path| StateEntry { path, content: Content::Value(Value::Int(3)) });
        write(&Disk, &path, &steps, &mut payload).unwrap();
        let open = StateFile::open(&path).unwrap();
        assert_eq!(open.values().keys().collect::<Vec<_>>(), ["state.-1.step", "state.0.step", "state.70000.step"]);
        assert_eq!(open.place("state.70000.step"), Some(steps[1].path.as_slice()));
    }

    /// A file of torch.save with this pickle and one storage of four bytes.
    fn archive(pickle: &[u8]) -> Vec<u8> {
        let mut zip = Builder::new(0);
        let mut bytes = zip.small("archive/version", b"3\n");
        bytes.extend(zip.small("archive/data.pkl", pickle));
        bytes.extend(zip.small("archive/data/0", &[7; 4]));
        bytes.extend(zip.finish());
        bytes
    }

    /// A dictionary of a tensor "w" and of "x", which is pushed by `x`.
    fn with(x: &[u8]) -> Vec<u8> {
        let mut out = Pickler::new(Protocol::Two);
        out.dict(|out| {
            out.text("w");
            rebuild_tensor(out, "0", TensorDType::F32.into(), &[1]);
            out.text("x");
        });
        let mut bytes = out.finish();
        bytes.truncate(bytes.len() - b"u.".len());
        bytes.extend(x);
        bytes.extend(b"u.");
        bytes
    }

    #[test]
    fn an_object_of_another_library_is_a_name_and_everything_else_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.ckpt");
        // argparse.Namespace(), with the state {"lr": 3, "self": itself}.
        let namespace = b"cargparse\nNamespace\n)\x81q\x05}(X\x02\0\0\0lrK\x03X\x04\0\0\0selfh\x05ub";
        std::fs::write(&path, archive(&with(namespace))).unwrap();
        let open = StateFile::open(&path).unwrap();
        assert_eq!(open.tensor("w").unwrap(), [7; 4]);
        assert_eq!(open.values()["x.lr"], Value::Int(3));
        assert_eq!(open.foreign(), [("x".to_owned(), "argparse.Namespace".to_owned())]);
        assert!(open.refused().is_empty() && open.mentions().dangerous().is_empty());
        // os.system("true").
        std::fs::write(&path, archive(&with(b"cposix\nsystem\nX\x04\0\0\0true\x85R"))).unwrap();
        let open = StateFile::open(&path).unwrap();
        assert_eq!(open.tensor("w").unwrap(), [7; 4]);
        assert_eq!(open.mentions().dangerous()[0].to_string(), "posix.system");
        assert!(open.foreign().is_empty());
    }

    #[test]
    fn pickles_of_python_2_and_objects_that_hold_themselves_are_read_in_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pkl");
        std::fs::write(&path, b"(dp0\nS'a'\np1\nI5\nsS'b'\np2\nL70000L\nsS'c'\n(lp3\nF0.5\naI01\nas.").unwrap();
        let open = StateFile::open(&path).unwrap();
        assert_eq!((&open.values()["a"], &open.values()["b"]), (&Value::Int(5), &Value::Int(70_000)));
        assert_eq!(open.values()["c"], Value::List(vec![Value::Float(0.5), Value::Bool(true)]));
        // A list of itself, and of an object, many times over.
        let mut itself = b"\x80\x02}X\x01\0\0\0a]q\x01(".to_vec();
        itself.extend(b"h\x01".repeat(50));
        itself.extend(b"cx\nY\n)\x81es.");
        std::fs::write(&path, &itself).unwrap();
        let open = StateFile::open(&path).unwrap();
        assert!(!open.refused().is_empty());
    }

    #[test]
    fn what_is_no_zip_or_has_keys_without_names_is_called_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("old.pt");
        for (bytes, what) in [
            (&b"no checkpoint"[..], "it is a file of no form that is read"),
            (b"\x89HDF\r\n\x1a\n", "it is an HDF5 file, which is not read"),
            (b"", "the file ends before it does"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = StateFile::open(&path).unwrap_err().to_string();
            assert!(error.contains("old.pt") && error.contains(what), "{error}");
        }
        // {None: a tensor}, alone and inside.
        let mut out = Pickler::new(Protocol::Two);
        out.dict(|out| {
            out.value(&Value::None);
            rebuild_tensor(out, "0", TensorDType::F32.into(), &[1]);
        });
        let mut zip = Builder::new(0);
        let mut bytes = zip.small("archive/version", b"3\n");
        bytes.extend(zip.small("archive/data.pkl", &out.finish()));
        bytes.extend(zip.small("archive/data/0", &[0; 4]));
        bytes.extend(zip.finish());
        std::fs::write(&path, &bytes).unwrap();
        let open = StateFile::open(&path).unwrap();
        let (name, error) = &open.refused()[0];
        assert!(name.is_empty() && error.to_string().contains("of which a key is neither a text nor a whole number"));
    }
}
