//! One or more .safetensors files that are one set of tensors: alone, listed by an index, or shards written by DCP.
//!
//! **Invariant:** a tensor is read only when its pieces tile it exactly; a missing or stale shard is an error that names it.

use super::{
    ConvertError,
    safetensors::{MappedFile, Stored, Tensor},
};
use enn_common::{
    checkpoint::{Element, Region, check_coverage, paste},
    fs::{FileError, RelPath, atomic, regular},
    keys,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

pub(super) const INDEX_END: &str = ".safetensors.index.json";
/// Key of DCP's description of a shard, a JSON text in `__metadata__`.
const SHARDING: &str = "DCP_SHARDING_INFO";
const INDEX_BYTES_MAX: u64 = 1 << 30;

#[derive(Debug)]
struct Piece {
    file: usize,
    region: Region,
    stored: Stored,
}

#[derive(Debug)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    pieces: Vec<Piece>,
}

#[derive(Debug, Default)]
pub(crate) struct Sharded {
    /// The given file or directory.
    path: PathBuf,
    files: Vec<MappedFile>,
    tensors: BTreeMap<String, Entry>,
    index: Option<PathBuf>,
    /// A tensor whose shards contain offsets but no global shape.
    unbounded: Option<String>,
}

impl Sharded {
    pub(super) fn is_in(dir: &Path) -> bool {
        !files_in(dir, ".safetensors").is_empty()
    }

    pub(super) fn open(path: &Path) -> Result<Self, ConvertError> {
        if !path.is_dir() {
            let indexed = path.to_string_lossy().ends_with(INDEX_END);
            return if indexed { Self::of_index(path, path) } else { Self::of_files(path, &[path.to_path_buf()]) };
        }
        match files_in(path, INDEX_END).as_slice() {
            [] => Self::of_files(path, &files_in(path, ".safetensors")),
            [index] => Self::of_index(path, index),
            [one, other, ..] => {
                let what = format!("it has two indices, {} and {}; name one of them", one.display(), other.display());
                Err(ConvertError::sharded(path, what))
            }
        }
    }

    fn of_files(path: &Path, files: &[PathBuf]) -> Result<Self, ConvertError> {
        let files = files.iter().map(|file| MappedFile::open(file)).collect::<Result<Vec<_>, _>>()?;
        let mut all = Self { path: path.to_path_buf(), ..Self::default() };
        for (number, file) in files.iter().enumerate() {
            let sharding = sharding(file)?;
            for (name, stored) in file.tensors() {
                all.add(number, file, name, stored, sharding.as_ref())?;
            }
        }
        all.files = files;
        Ok(all)
    }

    fn of_index(path: &Path, index: &Path) -> Result<Self, ConvertError> {
        let map = weight_map(index)?;
        let names: BTreeSet<&RelPath> = map.values().collect();
        let mut all = Self { path: path.to_path_buf(), index: Some(index.to_path_buf()), ..Self::default() };
        for file in names {
            let mapped = MappedFile::open(&listed_file(index, file)?)?;
            let number = all.files.len();
            for name in map.iter().filter(|(_, of)| *of == file).map(|(name, _)| name) {
                let stored = mapped.tensors().get(name);
                let what = || format!("tensor {name} is listed in {file}, which does not hold it");
                let stored = stored.ok_or_else(|| ConvertError::sharded(index, what()))?;
                all.add(number, &mapped, name, stored, None)?;
            }
            all.files.push(mapped);
        }
        Ok(all)
    }

    fn add(
        &mut self,
        number: usize,
        file: &MappedFile,
        name: &str,
        stored: &Stored,
        sharding: Option<&Value>,
    ) -> Result<(), ConvertError> {
        let wrong = |what: String| ConvertError::sharded(file.path(), what);
        let numbers = |value: &Value| value.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<_>>>();
        let mut offsets = vec![0; stored.shape.len()];
        let mut global = None;
        if let Some(sharding) = sharding {
            let entry =
                sharding.get(name).ok_or_else(|| wrong(format!("its {SHARDING} does not say where {name} is")))?;
            let saved = entry.get("saved_offsets").and_then(numbers);
            // PyTorch writes one offset for a replicated tensor of any number of axes.
            let saved = saved.map(|saved| if saved == [0] { vec![0; stored.shape.len()] } else { saved });
            offsets = saved
                .filter(|saved| saved.len() == stored.shape.len())
                .ok_or_else(|| wrong(format!("its {SHARDING} of {name} has no offsets that fit its shape")))?;
            global = entry.get("global_shape").and_then(numbers);
            if global.is_none() && self.unbounded.is_none() {
                self.unbounded = Some(name.to_owned());
            }
        }
        let ends: Option<Vec<u64>> =
            offsets.iter().zip(&stored.shape).map(|(at, size)| at.checked_add(*size)).collect();
        let ends = ends.ok_or_else(|| wrong(format!("its {SHARDING} puts {name} beyond all bounds")))?;
        let region = Region { offsets, sizes: stored.shape.clone() };
        let piece = Piece { file: number, region, stored: stored.clone() };
        let entry = self.tensors.entry(name.to_owned()).or_insert_with(|| Entry {
            dtype: stored.dtype.clone(),
            shape: global.clone().unwrap_or_else(|| ends.clone()),
            pieces: Vec::new(),
        });
        if entry.dtype != stored.dtype || entry.shape.len() != ends.len() {
            return Err(wrong(format!(
                "{name} is {} {ends:?} here, {} {:?} in another shard",
                stored.dtype, entry.dtype, entry.shape
            )));
        }
        entry.shape.iter_mut().zip(ends).for_each(|(length, end)| *length = (*length).max(end));
        // Every rank writes replicated tensors.
        if entry.pieces.iter().all(|have| have.region != piece.region) {
            entry.pieces.push(piece);
        }
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Returns the texts of the first file, without those that describe one shard.
    pub(super) fn about(&self) -> BTreeMap<String, String> {
        let mut about = self.files.first().map(|file| file.about().clone()).unwrap_or_default();
        about.retain(|key, _| !matches!(key.as_str(), SHARDING | "DCP_VERSION"));
        about
    }

    pub(super) fn tensors(&self) -> Result<Vec<Tensor>, ConvertError> {
        let tensor = |(name, entry): (&String, &Entry)| {
            let element = Element::of_safetensors(&entry.dtype);
            let what = || format!("tensor {name} is of the element type {}, which is not read", entry.dtype);
            let element = element.ok_or_else(|| ConvertError::sharded(&self.path, what()))?;
            Ok(Tensor { name: name.clone(), element, shape: entry.shape.clone() })
        };
        self.tensors.iter().map(tensor).collect()
    }

    pub(super) fn check(&self, name: &str) -> Result<(), ConvertError> {
        let Some(entry) = self.tensors.get(name) else { return Ok(()) };
        let holders = || entry.pieces.iter().map(|piece| self.files[piece.file].path().display().to_string());
        check_coverage(&entry.shape, entry.pieces.iter().map(|piece| &piece.region)).map_err(|error| {
            let holders = holders().collect::<Vec<_>>().join(", ");
            let what = format!("tensor {name}: {error}; it is in {holders}: a shard is missing or of another save");
            ConvertError::sharded(&self.path, what)
        })
    }

    pub(super) fn tensor(&self, name: &str) -> Result<Vec<u8>, ConvertError> {
        let Some(entry) = self.tensors.get(name) else { return Ok(Vec::new()) };
        if let [piece] = entry.pieces.as_slice()
            && piece.region.sizes == entry.shape
        {
            return Ok(self.files[piece.file].bytes(&piece.stored).to_vec());
        }
        self.check(name)?;
        let whole = Region::whole(&entry.shape);
        let width = entry.pieces.first().and_then(|piece| piece.stored.element()).map_or(1, Element::bytes);
        let mut out = vec![0; usize::try_from(whole.volume().saturating_mul(width)).unwrap_or(usize::MAX)];
        for piece in &entry.pieces {
            paste(&piece.region, self.files[piece.file].bytes(&piece.stored), &whole, &mut out, width);
        }
        Ok(out)
    }

    /// Warns that the last shards may be missing, where the existing ones would not show it.
    pub(super) fn unbounded(&self) -> Option<String> {
        let name = self.unbounded.as_ref()?;
        let files = self.files.len();
        let known = &self.tensors.get(name)?.shape;
        Some(format!(
            "the shards do not contain the sizes of tensors: it cannot be detected that a last one is missing behind these {files} \
             (with them {name} is {known:?})"
        ))
    }

    /// Lists differences between the index and the files, and files that the index does not list.
    pub(super) fn inconsistencies(&self) -> Vec<String> {
        let Some(index) = &self.index else { return Vec::new() };
        let unlisted = |file: &MappedFile| {
            let names = file.tensors().keys().filter(|name| !self.tensors.contains_key(*name)).cloned();
            let path = file.path().display().to_string();
            names.map(move |name| format!("{path} holds {name}, which the index does not list")).collect::<Vec<_>>()
        };
        let known: BTreeSet<&Path> = self.files.iter().map(MappedFile::path).collect();
        let beside = files_in(enn_common::fs::atomic::parent(index), ".safetensors");
        let stale = beside.iter().filter(|path| !known.contains(path.as_path()));
        let stale = stale.map(|path| format!("{} is not in the index: left over from another save", path.display()));
        self.files.iter().flat_map(unlisted).chain(stale).collect()
    }
}

/// Returns the files of a directory whose names have the given end, sorted.
fn files_in(dir: &Path, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<_> = entries
        .filter(|path| path.is_file() && path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(end)))
        .filter(|path| path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.')))
        .collect();
    found.sort();
    found
}

fn sharding(file: &MappedFile) -> Result<Option<Value>, ConvertError> {
    let Some(text) = file.about().get(SHARDING) else { return Ok(None) };
    let wrong = |_| ConvertError::sharded(file.path(), format!("its {SHARDING} is no JSON"));
    serde_json::from_str(text).map(Some).map_err(wrong)
}

fn weight_map(index: &Path) -> Result<BTreeMap<String, RelPath>, ConvertError> {
    let wrong = |what: &str| ConvertError::sharded(index, what);
    let length = fs::metadata(index).map_err(FileError::of("read", index))?.len();
    if length > INDEX_BYTES_MAX {
        return Err(wrong("it is larger than any index"));
    }
    let text = regular::read(index, INDEX_BYTES_MAX)?;
    let json: Value = serde_json::from_slice(&text).map_err(|_| wrong("it is no JSON"))?;
    if let Some(name) = keys::twice(&text) {
        return Err(wrong(&format!("it has {name:?} twice, which is ambiguous")));
    }
    let map = json.get("weight_map").and_then(Value::as_object).ok_or_else(|| wrong("it has no weight_map"))?;
    let plain = |file: &str| RelPath::parse(file).ok().filter(RelPath::is_name);
    let entry = |(name, file): (&String, &Value)| Some((name.clone(), file.as_str().and_then(plain)?));
    map.iter().map(entry).collect::<Option<_>>().ok_or_else(|| wrong("its weight_map holds what is no plain file name"))
}

/// Returns the path of a file that an index lists. In a cache of the Hugging Face hub it is a link to `blobs/DIGEST` of the same model, two
/// directories up.
fn listed_file(index: &Path, file: &RelPath) -> Result<PathBuf, FileError> {
    let dir = atomic::parent(index);
    let blobs = dir.canonicalize().ok().and_then(|dir| Some(dir.parent()?.parent()?.join("blobs")));
    file.locate_within(dir, blobs.as_slice())
}
