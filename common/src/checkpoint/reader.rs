//! Opens checkpoints and reads tensors, whole or in part, whoever wrote them and however they were divided.
//!
//! **Invariant:** nothing is returned that was not checked: the manifest by its own digest, files by their size, tensors by
//! exact coverage and by the CRC-32 of every chunk that is read whole.

mod inspect;
mod parts;

pub use inspect::Inspection;
pub(super) use parts::Boxed;

use super::{
    boxes::{CoverageError, Region, runs},
    element::Element,
    manifest::{FileEntry, Manifest},
    metadata::{Metadata, MetadataError, StoredChunk, StoredPlace, TensorEntry},
    name,
    stored::{ItemError, PICKLE_BYTES_MAX, StoredItem, StoredTensor, check_crc},
    table::TensorDType,
    transform,
    value::Value,
};
use crate::{
    artifact::seal::SealError,
    fs::{FileError, RelPath, digest, regular},
};
use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

const METADATA_BYTES_MAX: u64 = 4 << 30;

/// Why a checkpoint could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no manifest: not a checkpoint, or one that was never completed.
    #[error("{} is not a complete checkpoint: it has no {}", dir.display(), name::MANIFEST)]
    NotComplete { dir: PathBuf },
    #[error(
        "{} was found damaged and is set aside: its manifest is called {}\n  hint: `enn ckpt verify` tells what is wrong; what \
         counts again gets the name {} back",
        dir.display(), name::SET_ASIDE, name::MANIFEST
    )]
    SetAside { dir: PathBuf },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error("{} has {found} bytes, the manifest says {expected}: it was cut or replaced", path.display())]
    Size { path: PathBuf, found: u64, expected: u64 },
    #[error("{} is damaged: its {what} is {found}, the manifest says {expected}", path.display())]
    Digest {
        path: PathBuf,
        /// "blake3" or "CRC-32".
        what: &'static str,
        found: String,
        expected: String,
    },
    #[error("{} cannot be understood: {source}", path.display())]
    Metadata { path: PathBuf, source: MetadataError },
    #[error("tensor {fqn} of {}: {source}", dir.display())]
    Coverage { fqn: String, dir: PathBuf, source: Box<CoverageError> },
    #[error("{} holds no {kind} {fqn}", dir.display())]
    Absent {
        /// "tensor" or "value".
        kind: &'static str,
        fqn: String,
        dir: PathBuf,
    },
    #[error("tensor {fqn} has the shape {shape:?}; {asked} does not fit it")]
    Shape { fqn: String, shape: Vec<u64>, asked: String },
    #[error("{fqn} in {} at byte {offset}: {source}", path.display())]
    Item { fqn: String, path: PathBuf, offset: u64, source: ItemError },
}

impl ReadError {
    /// Whether the checkpoint is to blame, and not who asks or what the system allows at the moment.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::File(error) | Self::Seal(SealError::File(error)) => is_lost(&error.source),
            Self::Item { source: ItemError::Io(error), .. } => is_lost(error),
            Self::Absent { .. } | Self::Shape { .. } => false,
            _ => true,
        }
    }

    /// The file that is wrong, where it is known.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(error) | Self::Seal(SealError::File(error)) => Some(&error.path),
            Self::Size { path, .. }
            | Self::Digest { path, .. }
            | Self::Metadata { path, .. }
            | Self::Item { path, .. } => Some(path),
            _ => None,
        }
    }
}

/// Whether bytes that were written cannot be read any more.
fn is_lost(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    matches!(error.kind(), InvalidData | NotFound | UnexpectedEof) || error.raw_os_error() == Some(nix::libc::EIO)
}

/// A tensor or a part of one: row-major elements in little-endian order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorData {
    pub dtype: TensorDType,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

/// A checkpoint that is open for reading. Cheap to open; can be shared between threads.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    manifest: Option<Manifest>,
    metadata: Metadata,
    /// Expected CRC-32 by file and offset of the item, from the manifest.
    checksums: BTreeMap<(RelPath, u64), u32>,
    files: Mutex<BTreeMap<RelPath, Arc<(File, u64)>>>,
}

impl Checkpoint {
    /// Says whether a checkpoint of ours is complete, without reading more than its manifest: its digest, and the sizes of all
    /// files.
    pub fn whole(dir: &Path) -> Result<Manifest, ReadError> {
        let manifest = match Manifest::read(dir) {
            Err(SealError::File(error)) if error.is_missing() => {
                let dir = dir.to_path_buf();
                let was = dir.join(name::SET_ASIDE).exists();
                return Err(if was { ReadError::SetAside { dir } } else { ReadError::NotComplete { dir } });
            }
            found => found?,
        };
        for file in &manifest.files {
            let path = file.path.locate(dir)?;
            let found = std::fs::metadata(&path).map_err(FileError::of("look at", &path))?.len();
            if found != file.bytes {
                return Err(ReadError::Size { path, found, expected: file.bytes });
            }
        }
        Ok(manifest)
    }

    /// Opens a checkpoint of ours: reads the manifest, checks its digest, the sizes of all files, and `.metadata`.
    pub fn open(dir: &Path) -> Result<Self, ReadError> {
        let manifest = Self::whole(dir)?;
        let (metadata, digest) = read_metadata(dir)?;
        let listed = manifest.files.iter().find(|file| file.path == name::METADATA);
        if let Some(file) = listed.filter(|file| file.blake3 != digest) {
            let path = dir.join(name::METADATA);
            let expected = file.blake3.clone();
            return Err(ReadError::Digest { path, what: "blake3", found: digest, expected });
        }
        for (fqn, tensor) in &metadata.tensors {
            check_coverage(dir, fqn, tensor)?;
        }
        let checksums = checksums(&manifest, &metadata);
        Ok(Self { dir: dir.to_path_buf(), manifest: Some(manifest), metadata, checksums, files: Mutex::default() })
    }

    /// Opens any DCP directory, without a manifest: what PyTorch wrote. Coverage is checked when a tensor is read.
    pub fn open_dcp(dir: &Path) -> Result<Self, ReadError> {
        let (metadata, _) = read_metadata(dir)?;
        let checksums = BTreeMap::new();
        Ok(Self { dir: dir.to_path_buf(), manifest: None, metadata, checksums, files: Mutex::default() })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Our manifest; `None` for a directory that PyTorch wrote.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Names of all tensors, sorted.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.metadata.tensors.keys().map(String::as_str)
    }

    pub fn entry(&self, fqn: &str) -> Result<&TensorEntry, ReadError> {
        let absent = || ReadError::Absent { kind: "tensor", fqn: fqn.to_owned(), dir: self.dir.clone() };
        self.metadata.tensors.get(fqn).ok_or_else(absent)
    }

    /// A whole tensor, put together from its chunks.
    pub fn tensor(&self, fqn: &str) -> Result<TensorData, ReadError> {
        let shape = self.entry(fqn)?.shape.clone();
        self.tensor_box(fqn, &Region::whole(&shape))
    }

    /// A part of a tensor; reads only the bytes that are needed.
    pub fn tensor_box(&self, fqn: &str, wanted: &Region) -> Result<TensorData, ReadError> {
        let dtype = self.dtype(fqn, self.entry(fqn)?)?;
        let (_, bytes) = self.raw(fqn, wanted)?;
        Ok(TensorData { dtype, shape: wanted.sizes.clone(), bytes })
    }

    /// A part of a tensor of any element type, as its bytes.
    pub fn raw(&self, fqn: &str, wanted: &Region) -> Result<(Element, Vec<u8>), ReadError> {
        let entry = self.entry(fqn)?;
        let refused = |asked: String| ReadError::Shape { fqn: fqn.to_owned(), shape: entry.shape.clone(), asked };
        if !wanted.lies_in(&entry.shape) {
            return Err(refused(format!("the box at {:?} of size {:?}", wanted.offsets, wanted.sizes)));
        }
        let element = self.element(fqn, entry)?;
        // Before anything is allocated for it: what is wanted is there.
        check_coverage(&self.dir, fqn, entry)?;
        let bytes = wanted.volume().checked_mul(element.bytes());
        let bytes = bytes.filter(|&bytes| bytes <= self.stored_bytes_max(entry));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let mut out = vec![0; bytes.ok_or_else(|| refused("what its files can hold".to_owned()))?];
        self.fill(fqn, entry, wanted, &mut out)?;
        Ok((element, out))
    }

    /// The item of a plain value for a copy: its bytes, undone what a writer did to them (compression), and the CRC-32 of its
    /// pickle. What the value is need not be known.
    pub fn item(&self, fqn: &str) -> Result<(Vec<u8>, u32), ReadError> {
        let place = self.value_place(fqn)?;
        let read = || -> Result<_, CopyError> {
            let (file, plain) = self.open_item(place, PICKLE_BYTES_MAX)?;
            let crc32 = crc32fast::hash(&StoredItem::open(&file.0, file.1, &plain)?.pickle()?);
            let mut bytes = vec![0; usize::try_from(plain.length).map_err(|_| ItemError::Cut)?];
            file.0.read_exact_at(&mut bytes, plain.offset)?;
            Ok((bytes, crc32))
        };
        read().map_err(|error| self.copy_error(fqn, place, error))
    }

    /// A whole tensor into memory of the caller, which must have exactly its bytes.
    pub fn read_into(&self, fqn: &str, out: &mut [u8]) -> Result<(), ReadError> {
        let entry = self.entry(fqn)?;
        let wanted = Region::whole(&entry.shape);
        let bytes = wanted.volume().saturating_mul(self.element(fqn, entry)?.bytes());
        if bytes != out.len() as u64 {
            let asked = format!("a buffer of {} bytes (it has {bytes})", out.len());
            return Err(ReadError::Shape { fqn: fqn.to_owned(), shape: entry.shape.clone(), asked });
        }
        self.fill(fqn, entry, &wanted, out)
    }

    pub fn value(&self, fqn: &str) -> Result<Value, ReadError> {
        let place = self.value_place(fqn)?;
        let read = || -> Result<Value, CopyError> {
            let (file, plain) = self.open_item(place, PICKLE_BYTES_MAX)?;
            let (value, found) = StoredItem::open(&file.0, file.1, &plain)?.value()?;
            match self.expected(place) {
                Some(expected) if expected != found => Err(ItemError::Checksum { found, expected }.into()),
                _ => Ok(value),
            }
        };
        read().map_err(|error| self.copy_error(fqn, place, error))
    }

    /// Where the bytes of a tensor or a plain value are.
    pub fn places(&self, fqn: &str) -> impl Iterator<Item = &StoredPlace> {
        let chunks = self.metadata.tensors.get(fqn).into_iter().flat_map(|entry| &entry.chunks);
        chunks.map(|chunk| &chunk.place).chain(self.metadata.values.get(fqn))
    }

    /// Whether both manifests say that a tensor, divided alike, or a plain value has the same bytes in both.
    pub fn is_alike(&self, other: &Self, fqn: &str) -> bool {
        let checked = |one: &Self| -> Option<BTreeMap<_, _>> {
            let chunks = one.metadata.tensors.get(fqn).into_iter().flat_map(|entry| &entry.chunks);
            let value = one.metadata.values.get(fqn).map(|place| Some((vec![], (vec![], one.expected(place)?))));
            let of_chunk = |StoredChunk { region, place }: &StoredChunk| {
                Some((region.offsets.clone(), (region.sizes.clone(), one.expected(place)?)))
            };
            chunks.map(of_chunk).chain(value).collect()
        };
        let form = |one: &Self| one.metadata.tensors.get(fqn).map(|entry| (entry.dtype.clone(), entry.shape.clone()));
        let known = checked(self).filter(|known| !known.is_empty());
        known.is_some() && known == checked(other) && form(self) == form(other)
    }

    fn value_place(&self, fqn: &str) -> Result<&StoredPlace, ReadError> {
        let absent = || ReadError::Absent { kind: "value", fqn: fqn.to_owned(), dir: self.dir.clone() };
        self.metadata.values.get(fqn).ok_or_else(absent)
    }

    /// Reads every file again and compares it with the manifest; without one, reads every tensor and value.
    /// `progress` gets the bytes read since the last call.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<(), ReadError> {
        let Some(manifest) = &self.manifest else {
            for (fqn, entry) in &self.metadata.tensors {
                if entry.dtype().is_some() {
                    progress(self.tensor(fqn)?.bytes.len() as u64);
                }
            }
            return Ok(());
        };
        for file in &manifest.files {
            check_file(&file.path.locate(&self.dir)?, file, progress)?;
        }
        Ok(())
    }

    fn dtype(&self, fqn: &str, entry: &TensorEntry) -> Result<TensorDType, ReadError> {
        entry.dtype().ok_or_else(|| self.unsupported(fqn, entry))
    }

    fn element(&self, fqn: &str, entry: &TensorEntry) -> Result<Element, ReadError> {
        entry.element().ok_or_else(|| self.unsupported(fqn, entry))
    }

    fn unsupported(&self, fqn: &str, entry: &TensorEntry) -> ReadError {
        let unsupported = ItemError::Unsupported { what: format!("of the element type {}", entry.dtype) };
        let nowhere = StoredPlace { file: RelPath::own(name::METADATA), offset: 0, length: 0, transforms: Vec::new() };
        let place = entry.chunks.first().map_or(nowhere, |chunk| chunk.place.clone());
        self.item_error(fqn, &place, unsupported)
    }

    /// Bytes that the chunks of a tensor can hold: no more than their items have; compressed ones may hold more.
    fn stored_bytes_max(&self, entry: &TensorEntry) -> u64 {
        let packed = entry.chunks.iter().any(|chunk| !chunk.place.transforms.is_empty());
        let stored = entry.chunks.iter().map(|chunk| chunk.place.length).fold(0, u64::saturating_add);
        // zstd's own limit is near 1 : 33,000 for zeros.
        if packed { stored.saturating_mul(1 << 16) } else { stored }
    }

    fn fill(&self, fqn: &str, entry: &TensorEntry, wanted: &Region, out: &mut [u8]) -> Result<(), ReadError> {
        check_coverage(&self.dir, fqn, entry)?;
        for chunk in &entry.chunks {
            let Some(both) = chunk.region.intersection(wanted) else { continue };
            let part = ChunkPart { chunk, both: &both, wanted, element: self.element(fqn, entry)? };
            self.copy(&part, out).map_err(|error| self.copy_error(fqn, &chunk.place, error))?;
        }
        Ok(())
    }

    fn copy(&self, part: &ChunkPart<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        let (file, stored) = self.stored(part.chunk, part.element)?;
        if stored.is_plain() && part.both.sizes != part.chunk.region.sizes {
            return Ok(part.copy_runs(&file.0, &stored, out)?);
        }
        if stored.is_plain() && &part.chunk.region == part.wanted {
            file.0.read_exact_at(out, stored.at).map_err(ItemError::Io)?;
            return Ok(check_crc(out, stored.crc32)?);
        }
        part.copy_elements(&stored.payload(&file.0)?, &stored, out);
        Ok(())
    }

    /// The file that holds a chunk in plain, and where its elements are there: what `.metadata` and the manifest say.
    fn stored(&self, chunk: &StoredChunk, element: Element) -> Result<(Arc<(File, u64)>, StoredTensor), CopyError> {
        let (file, stored) = self.open_tensor(chunk, element.torch(), element.bytes())?;
        let expected = self.expected(&chunk.place);
        if let Some(expected) = expected.filter(|&crc32| crc32 != stored.crc32) {
            return Err(ItemError::Checksum { found: stored.crc32, expected }.into());
        }
        Ok((file, stored))
    }

    /// The file that holds a chunk in plain, and what it says of it: as `.metadata` does. `torch` names the element type, of so many bytes.
    fn open_tensor(
        &self,
        chunk: &StoredChunk,
        torch: &str,
        bytes: u64,
    ) -> Result<(Arc<(File, u64)>, StoredTensor), CopyError> {
        let bytes = chunk.region.volume().saturating_mul(bytes);
        let (file, place) = self.open_item(&chunk.place, bytes.saturating_add(PICKLE_BYTES_MAX))?;
        let stored = StoredItem::open(&file.0, file.1, &place)?.tensor()?;
        if stored.element.torch() != torch || stored.sizes != chunk.region.sizes {
            let found = format!("a {} of size {:?}", stored.element.torch(), stored.sizes);
            return Err(ItemError::Mismatch { found }.into());
        }
        Ok((file, stored))
    }

    /// The file that holds an item in plain, and its place there. A compressed one may be `bytes_max` long in plain.
    fn open_item(&self, place: &StoredPlace, bytes_max: u64) -> Result<(Arc<(File, u64)>, StoredPlace), CopyError> {
        let file = self.file(&place.file).map_err(CopyError::File)?;
        if place.transforms.is_empty() {
            return Ok((file, place.clone()));
        }
        let (plain, place) = transform::undo(&file.0, file.1, place, bytes_max)?;
        let bytes = place.length;
        Ok((Arc::new((plain, bytes)), place))
    }

    /// The CRC-32 that the manifest has for an item.
    pub(super) fn expected(&self, place: &StoredPlace) -> Option<u32> {
        self.checksums.get(&(place.file.clone(), place.offset)).copied()
    }

    /// An open file and its length.
    pub(super) fn file(&self, name: &RelPath) -> Result<Arc<(File, u64)>, ReadError> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(name) {
            return Ok(Arc::clone(file));
        }
        let path = name.locate(&self.dir)?;
        let file = regular::open(&path)?;
        let bytes = file.metadata().map_err(FileError::of("look at", &path))?.len();
        let file = Arc::new((file, bytes));
        files.insert(name.clone(), Arc::clone(&file));
        Ok(file)
    }

    fn copy_error(&self, fqn: &str, place: &StoredPlace, error: CopyError) -> ReadError {
        match error {
            CopyError::File(error) => error,
            CopyError::Item(source) => self.item_error(fqn, place, source),
        }
    }

    fn item_error(&self, fqn: &str, place: &StoredPlace, source: ItemError) -> ReadError {
        ReadError::Item { fqn: fqn.to_owned(), path: place.file.below(&self.dir), offset: place.offset, source }
    }
}

/// A chunk, what is wanted of it, and the box that it goes to.
struct ChunkPart<'a> {
    chunk: &'a StoredChunk,
    both: &'a Region,
    wanted: &'a Region,
    element: Element,
}

enum CopyError {
    File(ReadError),
    Item(ItemError),
}

impl<E: Into<ItemError>> From<E> for CopyError {
    fn from(error: E) -> Self {
        Self::Item(error.into())
    }
}

impl ChunkPart<'_> {
    /// Reads only the stretches that are wanted.
    fn copy_runs(&self, file: &File, stored: &StoredTensor, out: &mut [u8]) -> Result<(), ItemError> {
        let width = self.element.bytes();
        runs(&self.chunk.region, self.both, self.wanted, &mut |from, to, count| {
            let to = index(to * width);
            let length = index(count * width);
            Ok(file.read_exact_at(&mut out[to..to + length], stored.at + from * width)?)
        })
    }

    /// Copies from a payload in memory, following its strides.
    fn copy_elements(&self, payload: &[u8], stored: &StoredTensor, out: &mut [u8]) {
        let width = self.element.bytes();
        let plain = stored.is_plain();
        let own = super::item::strides(&stored.sizes);
        // Cannot fail: the closure never returns an error.
        let _ = runs::<()>(&self.chunk.region, self.both, self.wanted, &mut |from, to, count| {
            let mut copy = |from: u64, to: u64, count: u64| {
                let from = index(from * width);
                let to = index(to * width);
                let length = index(count * width);
                out[to..to + length].copy_from_slice(&payload[from..from + length]);
            };
            if plain {
                copy(from, to, count);
            } else {
                (0..count).for_each(|step| copy(stored.element_at(from + step, &own), to + step, 1));
            }
            Ok(())
        });
    }
}

/// Places below the length of a buffer that is in memory.
fn index(place: u64) -> usize {
    usize::try_from(place).unwrap_or(usize::MAX)
}

/// The metadata of a directory, and the blake3 of `.metadata`. Where every rank wrote its own, they are put together.
fn read_metadata(dir: &Path) -> Result<(Metadata, String), ReadError> {
    let global = dir.join(name::METADATA);
    let local = name::local_metadata(dir);
    let files = if global.exists() || local.is_empty() { vec![global] } else { local };
    let mut all = Metadata::default();
    let mut digest = String::new();
    for path in files {
        let length = std::fs::metadata(&path).map_err(FileError::of("read", &path))?.len();
        if length > METADATA_BYTES_MAX {
            return Err(ReadError::Size { path, found: length, expected: METADATA_BYTES_MAX });
        }
        let bytes = regular::read(&path, METADATA_BYTES_MAX)?;
        let found = Metadata::parse(&bytes).and_then(|metadata| all.absorb(metadata));
        found.map_err(|source| ReadError::Metadata { path, source })?;
        digest = blake3::hash(&bytes).to_hex().to_string();
    }
    Ok((all, digest))
}

/// Reads the file at `path` and compares it with what the manifest says of it: by its blake3 where it has one, else by its CRC-32.
pub fn check_file(path: &Path, listed: &FileEntry, progress: &mut dyn FnMut(u64)) -> Result<(), ReadError> {
    let damaged = |what, found, expected| Err(ReadError::Digest { path: path.to_owned(), what, found, expected });
    if listed.blake3.is_empty() {
        let found = digest::crc32_of_file(path, progress)?;
        return match listed.whole_crc32 {
            Some(expected) if expected == found => Ok(()),
            expected => {
                let expected = expected.map_or_else(|| "none".to_owned(), |crc32| format!("{crc32:08x}"));
                damaged("CRC-32", format!("{found:08x}"), expected)
            }
        };
    }
    let (_, found) = digest::of_file(path, progress)?;
    if found == listed.blake3 { Ok(()) } else { damaged("blake3", found, listed.blake3.clone()) }
}

fn check_coverage(dir: &Path, fqn: &str, tensor: &TensorEntry) -> Result<(), ReadError> {
    let wrong = |error| ReadError::Coverage { fqn: fqn.to_owned(), dir: dir.to_path_buf(), source: Box::new(error) };
    tensor.check_coverage().map_err(wrong)
}

/// Pairs the items of each file, in order of their offsets, with the checksums in the manifest.
fn checksums(manifest: &Manifest, metadata: &Metadata) -> BTreeMap<(RelPath, u64), u32> {
    let mut offsets: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let chunks = metadata.tensors.values().flat_map(|tensor| tensor.chunks.iter().map(|chunk| &chunk.place));
    for place in chunks.chain(metadata.values.values()) {
        offsets.entry(&place.file).or_default().push(place.offset);
    }
    let mut found = BTreeMap::new();
    for file in &manifest.files {
        let Some(offsets) = offsets.get_mut(file.path.as_str()) else { continue };
        offsets.sort_unstable();
        if offsets.len() == file.crc32.len() {
            found.extend(offsets.iter().zip(&file.crc32).map(|(&at, &crc32)| ((file.path.clone(), at), crc32)));
        }
    }
    found
}
