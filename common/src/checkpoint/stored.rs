//! An item as it is found in a file: ours, or any that `torch.save` wrote.
//!
//! **Invariant:** sizes come from the central directory, and every number is checked against the item's own bounds before
//! anything is read or allocated for it.

pub use super::item_error::ItemError;

use super::{
    boxes::volume,
    element::{Element, UNTYPED},
    mention::Mentions,
    metadata::StoredPlace,
    sequence,
    storages::{Payload, StorageSeen, Storages, read_storage},
    torch::{FILE_GLOBALS, ITEM_GLOBALS},
    tree::{Tree, TreeId, TreeNode},
    unpickle::{UnpickleError, unpickle, unpickle_any},
    value::Value,
    zip::{self, DirectoryEnd, DirectoryEntry, ZipError},
};
use std::{fs::File, os::unix::fs::FileExt};

/// Bytes read from the end of an item at first: the end record and, nearly always, the whole central directory.
const TAIL_BYTES: u64 = 4096;
/// Largest data.pkl that is read.
pub(super) const PICKLE_BYTES_MAX: u64 = 256 << 20;

/// Where the payload of a tensor item is, and how to look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredTensor {
    pub(super) element: Element,
    pub(super) sizes: Vec<u64>,
    pub(super) strides: Vec<u64>,
    /// First element in the payload.
    pub(super) first: u64,
    /// Payload in the file.
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// 0: not computed by the writer.
    pub(super) crc32: u32,
}

pub(super) struct StoredItem<'a> {
    file: &'a File,
    offset: u64,
    length: u64,
    entries: Vec<DirectoryEntry>,
    root: String,
}

impl<'a> StoredItem<'a> {
    /// Reads the zip's directory. `file_bytes` is the length of the file.
    pub(super) fn open(file: &'a File, file_bytes: u64, place: &StoredPlace) -> Result<Self, ItemError> {
        if let Some(transform) = place.transforms.first() {
            return Err(ItemError::Unsupported { what: format!("transformed by {transform}") });
        }
        let end = place.offset.checked_add(place.length).ok_or(ItemError::Cut)?;
        if end > file_bytes {
            return Err(ItemError::Cut);
        }
        let mut item =
            Self { file, offset: place.offset, length: place.length, entries: Vec::new(), root: String::new() };
        item.entries = item.directory().map_err(|error| item.or_bare(error))?;
        let pickle = item.entries.iter().find_map(|entry| entry.name.strip_suffix("/data.pkl"));
        item.root = pickle.ok_or(ItemError::Record { name: "data.pkl".into() })?.to_owned();
        item.check_byte_order()?;
        Ok(item)
    }

    fn directory(&self) -> Result<Vec<DirectoryEntry>, ItemError> {
        let farthest = zip::END_SEARCH_BYTES_MAX as u64;
        let mut tail_bytes = TAIL_BYTES.min(self.length);
        let (tail, end) = loop {
            let tail = self.read(self.length - tail_bytes, tail_bytes)?;
            match zip::parse_end(&tail, self.length - tail_bytes) {
                Err(ZipError::NoEnd) if tail_bytes < farthest.min(self.length) => {
                    tail_bytes = farthest.min(self.length);
                }
                found => break (tail, found?),
            }
        };
        let span = match end {
            DirectoryEnd::Directory(span) => span,
            DirectoryEnd::Wide { at } => zip::parse_end64(&self.read(at, zip::END64_BYTES as u64)?, at)?,
        };
        let tail_at = self.length - tail_bytes;
        let inside = span.at.checked_sub(tail_at).and_then(|start| usize::try_from(start).ok());
        let held = inside.and_then(|start| tail.get(start..start + usize::try_from(span.bytes).ok()?));
        match held {
            Some(bytes) => Ok(zip::parse_directory(bytes, span)?),
            None => Ok(zip::parse_directory(&self.read(span.at, span.bytes)?, span)?),
        }
    }

    /// Why there is no directory: what is no zip may be a pickle by itself.
    fn or_bare(&self, error: ItemError) -> ItemError {
        let begin = self.read(0, 2.min(self.length)).unwrap_or_default();
        match (&error, begin.as_slice()) {
            (ItemError::Zip(ZipError::NoEnd), [0x80, 2..=5]) => ItemError::Unsupported {
                what: "a bare pickle, as torch.save wrote before PyTorch 1.6, inside a checkpoint".into(),
            },
            _ => error,
        }
    }

    fn check_byte_order(&self) -> Result<(), ItemError> {
        match self.record("byteorder") {
            Ok(entry) if entry.bytes != 6 || self.contents(entry)? != b"little" => {
                Err(ItemError::Unsupported { what: "written on a big-endian machine".into() })
            }
            _ => Ok(()),
        }
    }

    /// Bytes of the item, checked against its bounds.
    fn read(&self, at: u64, bytes: u64) -> Result<Vec<u8>, ItemError> {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.length);
        let length = usize::try_from(bytes).ok().filter(|_| fits).ok_or(ItemError::Cut)?;
        let mut out = vec![0; length];
        self.file.read_exact_at(&mut out, self.offset + at)?;
        Ok(out)
    }

    fn record(&self, name: &str) -> Result<&DirectoryEntry, ItemError> {
        let full = format!("{}/{name}", self.root);
        self.entries.iter().find(|entry| entry.name == full).ok_or_else(|| ItemError::Record { name: name.to_owned() })
    }

    /// Where the data of a record begin in the item.
    fn data_at(&self, entry: &DirectoryEntry) -> Result<u64, ItemError> {
        let header = self.read(entry.header_at, zip::LOCAL_BYTES as u64)?;
        let at = entry.header_at + zip::parse_local(&header, entry.header_at)?;
        let fits = at.checked_add(entry.bytes).is_some_and(|end| end <= self.length);
        if fits { Ok(at) } else { Err(ItemError::Cut) }
    }

    fn contents(&self, entry: &DirectoryEntry) -> Result<Vec<u8>, ItemError> {
        if entry.bytes > PICKLE_BYTES_MAX {
            return Err(ItemError::Unsupported { what: format!("a record {} of {} bytes", entry.name, entry.bytes) });
        }
        let bytes = self.read(self.data_at(entry)?, entry.bytes)?;
        check_crc(&bytes, entry.crc32)?;
        Ok(bytes)
    }

    /// The plain value of the item, and the CRC-32 of its pickle.
    pub(super) fn value(&self) -> Result<(Value, u32), ItemError> {
        let bytes = self.pickle()?;
        let tree = unpickle(&bytes, ITEM_GLOBALS)?;
        Ok((tree.value(tree.root)?, crc32fast::hash(&bytes)))
    }

    /// Globals of the item that are no part of a checkpoint.
    pub(super) fn mentions(&self) -> Result<Mentions, ItemError> {
        let bytes = self.pickle()?;
        let tree = unpickle_any(&bytes, FILE_GLOBALS)?;
        let mut mentions = Mentions::default();
        sequence::mentioned_inside(&tree, &mut mentions);
        Ok(mentions)
    }

    pub(super) fn tensor(&self) -> Result<StoredTensor, ItemError> {
        let bytes = self.pickle()?;
        let tree = unpickle(&bytes, ITEM_GLOBALS)?;
        locate(&tree, tree.root, self)
    }

    pub(super) fn pickle(&self) -> Result<Vec<u8>, ItemError> {
        self.contents(self.record("data.pkl")?)
    }
}

impl Storages for StoredItem<'_> {
    fn payload(&self, key: &str) -> Result<Payload, ItemError> {
        let entry = self.record(&format!("data/{key}"))?;
        let at = if entry.bytes == 0 { 0 } else { self.offset + self.data_at(entry)? };
        Ok(Payload { name: entry.name.clone(), at, bytes: entry.bytes, crc32: entry.crc32 })
    }
}

/// Finds the payload of the tensor below `id`.
pub(super) fn locate(tree: &Tree<'_>, id: TreeId, storages: &dyn Storages) -> Result<StoredTensor, ItemError> {
    let seen = read_tensor(tree, id)?;
    let found = match &seen.storage {
        Held::Keyed(key) => storages.payload(key)?,
        Held::Inside(payload) => payload.clone(),
    };
    let bytes = seen.numel.checked_mul(seen.element.bytes()).filter(|&bytes| bytes == found.bytes);
    let wrong = || ItemError::Record { name: found.name.clone() };
    let bytes = bytes.ok_or_else(wrong)?;
    if seen.end().is_none_or(|end| end > seen.numel) {
        return Err(wrong());
    }
    let Seen { element, sizes, strides, first, .. } = seen;
    Ok(StoredTensor { element, sizes, strides, first, at: found.at, bytes, crc32: found.crc32 })
}

impl StoredTensor {
    /// Whether the payload is the row-major tensor and nothing else.
    pub(super) fn is_plain(&self) -> bool {
        self.first == 0
            && volume(&self.sizes).is_some_and(|count| count.checked_mul(self.element.bytes()) == Some(self.bytes))
            && self.sizes.iter().zip(self.strides.iter().zip(super::item::strides(&self.sizes))).all(
                // The stride of an axis of length 1 is never used.
                |(&size, (&found, plain))| size <= 1 || found == plain,
            )
    }

    /// All bytes of the payload, after checking their CRC-32.
    pub(super) fn payload(&self, file: &File) -> Result<Vec<u8>, ItemError> {
        let mut payload = vec![0; usize::try_from(self.bytes).map_err(|_| ItemError::Cut)?];
        file.read_exact_at(&mut payload, self.at)?;
        check_crc(&payload, self.crc32)?;
        Ok(payload)
    }

    /// Where in the payload the `flat`-th element in row-major order is; `own` are the row-major strides of the sizes.
    pub(super) fn element_at(&self, flat: u64, own: &[u64]) -> u64 {
        let mut rest = flat;
        let mut place = self.first;
        for (own, stored) in own.iter().zip(&self.strides) {
            place += rest / own * stored;
            rest %= own;
        }
        place
    }
}

/// Compares a checksum; 0 means that the writer did not compute one.
pub(super) fn check_crc(bytes: &[u8], expected: u32) -> Result<(), ItemError> {
    let found = crc32fast::hash(bytes);
    if expected != 0 && found != expected {
        return Err(ItemError::Checksum { found, expected });
    }
    Ok(())
}

enum Held {
    /// Beside the pickle, under a key.
    Keyed(String),
    /// In the pickle itself.
    Inside(Payload),
}

/// A tensor as its pickle describes it.
struct Seen {
    element: Element,
    storage: Held,
    numel: u64,
    first: u64,
    sizes: Vec<u64>,
    strides: Vec<u64>,
}

impl Seen {
    /// One behind the last element that is reached.
    fn end(&self) -> Option<u64> {
        if self.sizes.contains(&0) {
            return Some(0);
        }
        if self.sizes.len() != self.strides.len() {
            return None;
        }
        let reach = self
            .sizes
            .iter()
            .zip(&self.strides)
            .try_fold(self.first, |sum, (&size, &stride)| sum.checked_add((size - 1).checked_mul(stride)?));
        reach?.checked_add(1)
    }
}

fn read_tensor(tree: &Tree<'_>, id: TreeId) -> Result<Seen, ItemError> {
    let unexpected = || ItemError::Pickle(UnpickleError::Unexpected { expected: "a tensor" });
    let (name, args, _) = tree.object(id).ok_or_else(unexpected)?;
    let unsupported = |what: &str| ItemError::Unsupported { what: what.to_owned() };
    match name {
        "_rebuild_parameter" => {
            let inner = *args.first().ok_or_else(unexpected)?;
            // One level only: a parameter of a parameter does not exist.
            let (inner_name, ..) = tree.object(inner).ok_or_else(unexpected)?;
            if inner_name == "_rebuild_parameter" { Err(unexpected()) } else { read_tensor(tree, inner) }
        }
        "_rebuild_qtensor" => Err(unsupported("a quantized tensor")),
        "_rebuild_from_type_v2" => Err(unsupported("a tensor subclass")),
        "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3" => {
            let flags_at = if name == "_rebuild_tensor_v3" { 7 } else { 6 };
            let plain = args.get(flags_at).is_none_or(|&id| tree.pairs(id).is_none_or(<[_]>::is_empty));
            if !plain {
                return Err(unsupported("a conjugated or negated view"));
            }
            let dtype = if name == "_rebuild_tensor_v3" { args.get(6) } else { None };
            read_view(tree, args, dtype.copied())?.ok_or_else(unexpected)
        }
        _ => Err(unexpected()),
    }
}

/// The arguments (storage, first element, sizes, strides, …). `None`: they are not that.
fn read_view(tree: &Tree<'_>, args: &[TreeId], dtype: Option<TreeId>) -> Result<Option<Seen>, ItemError> {
    let seen = || {
        let [storage, first, sizes, strides, ..] = args else { return None };
        let (seen, payload) = match read_storage(tree, *storage) {
            Some(seen) => (seen, None),
            None => sequence::inside(tree, *storage).map(|(seen, payload)| (seen, Some(payload)))?,
        };
        let sizes = tree.size(*sizes)?;
        let strides = tree.size(*strides)?;
        Some((seen, payload, tree.count(*first)?, sizes, strides))
    };
    let Some((StorageSeen { class, key, numel }, payload, first, sizes, strides)) = seen() else { return Ok(None) };
    let storage = payload.map_or(Held::Keyed(key), Held::Inside);
    let name = match dtype.map(|id| tree.node(id)) {
        Some(TreeNode::Global("torch", name)) => *name,
        _ => class,
    };
    let element = Element::of_torch(name).or_else(|| Element::of_storage(name));
    let element = element.ok_or_else(|| ItemError::Unsupported { what: format!("of the element type {name}") })?;
    let numel = if class == UNTYPED { numel / element.bytes() } else { numel };
    Ok(Some(Seen { element, storage, numel, first, sizes, strides }))
}
