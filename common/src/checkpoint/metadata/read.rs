//! Reads `.metadata`, ours and PyTorch's (2.2 to 2.15): fields set by BUILD or given to constructors, 5 or 6 properties.

use super::{
    Metadata, PathPart, StoredChunk, StoredPlace, TensorEntry,
    error::{MetadataError, VERSION_MAJOR},
};
use crate::checkpoint::{
    boxes::Region,
    torch::METADATA_GLOBALS,
    tree::{Tree, TreeId, TreeNode},
    unpickle::unpickle,
};
use crate::fs::RelPath;
use std::collections::{BTreeMap, HashMap};

/// Containers around a tensor. PyTorch's own recursion would not go deeper either.
const PATH_PARTS_MAX: usize = 64;

/// Limit on the transformations of an item. PyTorch knows one way, compression.
const TRANSFORMS_MAX: usize = 16;

/// Places by name and offsets; a value has no offsets.
type StoredPlaces = HashMap<(String, Option<Vec<u64>>), StoredPlace>;

impl Metadata {
    pub fn parse(bytes: &[u8]) -> Result<Self, MetadataError> {
        let tree = unpickle(bytes, METADATA_GLOBALS)?;
        let version = tree.field(tree.root, "version", 4).and_then(|id| tree.text(id));
        if let Some(found) = version.filter(|version| version.split('.').next() != Some(VERSION_MAJOR)) {
            return Err(MetadataError::Version { found: found.to_owned() });
        }
        let field = |name: &'static str, position| {
            let missing = MetadataError::Field { name: ".metadata".into(), field: name };
            tree.field(tree.root, name, position).and_then(|id| tree.pairs(id)).ok_or(missing)
        };
        let mut places = read_places(&tree, field("storage_data", 2)?)?;
        let mut metadata = Self { paths: read_paths(&tree), ..Self::default() };
        for &(key, value) in field("state_dict_metadata", 0)? {
            let missing = || MetadataError::Field { name: ".metadata".into(), field: "name of an entry" };
            let fqn = tree.owned(key).ok_or_else(missing)?;
            if matches!(tree.object(value), Some(("BytesStorageMetadata", ..))) {
                let place = places.remove(&(fqn.clone(), None));
                let place = place.or_else(|| places.remove(&(fqn.clone(), Some(Vec::new()))));
                let place = place.ok_or_else(|| MetadataError::NoPlace { name: fqn.clone(), offsets: Vec::new() })?;
                metadata.values.insert(fqn, place);
            } else {
                let entry = read_tensor(&tree, value, &fqn, &mut places)?;
                metadata.tensors.insert(fqn, entry);
            }
        }
        Ok(metadata)
    }
}

/// `planner_data`: only needed to nest what is flat, so that what cannot be read of it is left out.
fn read_paths(tree: &Tree<'_>) -> BTreeMap<String, Vec<PathPart>> {
    let part = |&id: &TreeId| match tree.node(id) {
        TreeNode::Text(_) => tree.owned(id).map(PathPart::Key),
        _ => tree.count(id).map(PathPart::Index),
    };
    let data = tree.field(tree.root, "planner_data", 1).and_then(|id| tree.pairs(id));
    let path = |&(key, value): &(TreeId, TreeId)| {
        let parts = tree.sequence(value).filter(|parts| (1..=PATH_PARTS_MAX).contains(&parts.len()))?;
        Some((tree.owned(key)?, parts.iter().map(part).collect::<Option<_>>()?))
    };
    data.unwrap_or_default().iter().filter_map(path).collect()
}

fn read_places(tree: &Tree<'_>, pairs: &[(TreeId, TreeId)]) -> Result<StoredPlaces, MetadataError> {
    let mut places = StoredPlaces::new();
    for &(key, value) in pairs {
        let missing = |field| MetadataError::Field { name: "an entry of storage_data".into(), field };
        let fqn = tree.field(key, "fqn", 0).and_then(|id| tree.owned(id)).ok_or_else(|| missing("fqn"))?;
        let offset = tree.field(key, "offset", 1).filter(|&id| !matches!(tree.node(id), TreeNode::None));
        let offset = match offset {
            Some(id) => Some(tree.size(id).ok_or_else(|| missing("offset"))?),
            None => None,
        };
        let place = read_place(tree, value, &fqn)?;
        places.insert((fqn, offset), place);
    }
    Ok(places)
}

fn read_place(tree: &Tree<'_>, id: TreeId, fqn: &str) -> Result<StoredPlace, MetadataError> {
    let missing = |field| MetadataError::Field { name: fqn.to_owned(), field };
    let file = tree.field(id, "relative_path", 0).and_then(|id| tree.owned(id));
    let count = |name, position| tree.field(id, name, position).and_then(|id| tree.count(id));
    let transforms = tree.field(id, "transform_descriptors", 3).and_then(|id| tree.sequence(id));
    let transforms = transforms.unwrap_or_default();
    if transforms.len() > TRANSFORMS_MAX {
        return Err(missing("transform_descriptors"));
    }
    let elsewhere = |source| MetadataError::Path { name: fqn.to_owned(), source };
    let text = |&id: &TreeId| match tree.node(id) {
        TreeNode::Text(_) => tree.owned(id).ok_or_else(|| missing("transform_descriptors")),
        _ => Ok("?".to_owned()),
    };
    Ok(StoredPlace {
        file: RelPath::parse(file.ok_or_else(|| missing("relative_path"))?).map_err(elsewhere)?,
        offset: count("offset", 1).ok_or_else(|| missing("offset"))?,
        length: count("length", 2).ok_or_else(|| missing("length"))?,
        transforms: transforms.iter().map(text).collect::<Result<_, _>>()?,
    })
}

fn read_tensor(
    tree: &Tree<'_>,
    id: TreeId,
    fqn: &str,
    places: &mut StoredPlaces,
) -> Result<TensorEntry, MetadataError> {
    let missing = |field| MetadataError::Field { name: fqn.to_owned(), field };
    let shape = tree.field(id, "size", 1).and_then(|id| tree.size(id)).ok_or_else(|| missing("size"))?;
    let properties = tree.field(id, "properties", 0).ok_or_else(|| missing("properties"))?;
    let dtype = read_dtype(tree, properties).ok_or_else(|| missing("element type"))?;
    let listed = tree.field(id, "chunks", 2).and_then(|id| tree.sequence(id)).ok_or_else(|| missing("chunks"))?;
    let mut chunks = Vec::new();
    for &chunk in listed {
        let size = |name, position| tree.field(chunk, name, position).and_then(|id| tree.size(id));
        let region = Region {
            offsets: size("offsets", 0).ok_or_else(|| missing("offsets"))?,
            sizes: size("sizes", 1).ok_or_else(|| missing("sizes"))?,
        };
        // An empty chunk holds nothing, and may share its offsets with one that does.
        if region.sizes.contains(&0) {
            continue;
        }
        let place = places.remove(&(fqn.to_owned(), Some(region.offsets.clone())));
        let offsets = region.offsets.clone();
        let place = place.ok_or_else(|| MetadataError::NoPlace { name: fqn.to_owned(), offsets })?;
        chunks.push(StoredChunk { region, place });
    }
    Ok(TensorEntry { dtype, shape, chunks })
}

/// The first of the 5 or 6 properties, which come as state or as constructor arguments.
fn read_dtype(tree: &Tree<'_>, id: TreeId) -> Option<String> {
    let (_, args, state) = tree.object(id)?;
    let first = match state {
        Some(state) => match tree.sequence(state) {
            Some(items) => *items.first()?,
            None => tree.entry(state, "dtype")?,
        },
        None => *args.first()?,
    };
    if let TreeNode::Global("torch", name) = tree.node(first) { Some((*name).to_owned()) } else { None }
}
