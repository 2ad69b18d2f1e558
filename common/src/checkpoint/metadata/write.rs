//! Writes `.metadata` as CPython would pickle PyTorch's classes, readable by every PyTorch since 2.6.

use super::{Metadata, PathPart, StoredChunk, StoredPlace, TensorEntry};
use crate::checkpoint::{
    element::Element,
    pickle::{Pickler, Protocol},
};

const CLASSES: &str = "torch.distributed.checkpoint.metadata";
/// Bytes of a chunk and of a name, about: memory that is taken at once.
const CHUNK_BYTES: usize = 116;
const NAME_BYTES: usize = 256;

impl Metadata {
    /// The bytes of `.metadata`. `save_id` names this save; PyTorch only carries it along.
    pub fn to_bytes(&self, save_id: &str) -> Vec<u8> {
        let chunks: usize = self.tensors.values().map(|tensor| tensor.chunks.len()).sum();
        let names = self.tensors.len() + self.values.len();
        let mut out = Pickler::with_capacity(Protocol::Four, chunks * CHUNK_BYTES + names * NAME_BYTES);
        object(&mut out, CLASSES, "Metadata", |out| {
            out.field("state_dict_metadata");
            out.dict(|out| self.write_entries(out));
            out.field("planner_data");
            out.dict(|out| self.write_paths(out));
            out.field("storage_data");
            out.dict(|out| self.write_places(out));
            out.field("storage_meta");
            object(out, CLASSES, "StorageMeta", |out| {
                out.field("checkpoint_id");
                out.none();
                out.field("save_id");
                out.text(save_id);
                out.field("load_id");
                out.none();
                out.field("modules");
                out.empty_list();
            });
            out.field("version");
            out.text("1.0.0");
        });
        out.finish()
    }

    fn write_entries(&self, out: &mut Pickler) {
        for (fqn, tensor) in &self.tensors {
            out.text(fqn);
            write_tensor(out, tensor);
        }
        for fqn in self.values.keys() {
            out.text(fqn);
            out.global(CLASSES, "BytesStorageMetadata");
            out.new_object();
        }
    }

    /// Where each name goes when a flat checkpoint becomes a nested dictionary again.
    fn write_paths(&self, out: &mut Pickler) {
        for fqn in self.tensors.keys().chain(self.values.keys()) {
            out.text(fqn);
            out.tuple(|out| match self.paths.get(fqn) {
                Some(parts) => parts.iter().for_each(|part| match part {
                    PathPart::Key(key) => out.text(key),
                    PathPart::Number(number) => out.text(&number.to_string()),
                    PathPart::Index(index) => out.count(*index),
                }),
                None => path_of(fqn).iter().for_each(|part| out.text(part)),
            });
        }
    }

    fn write_places(&self, out: &mut Pickler) {
        for (fqn, tensor) in &self.tensors {
            for (index, chunk) in tensor.chunks.iter().enumerate() {
                write_index(out, fqn, Some((index as u64, chunk)));
                write_place(out, &chunk.place);
            }
        }
        for (fqn, place) in &self.values {
            write_index(out, fqn, None);
            write_place(out, place);
        }
    }
}

/// `model.a.b.weight` → model / a.b.weight; `optim.state.a.b.exp_avg` → optim / state / a.b / exp_avg: so that what
/// PyTorch's tools unpack is a dictionary of state dictionaries.
pub(crate) fn path_of(fqn: &str) -> Vec<&str> {
    let Some((first, rest)) = fqn.split_once('.') else { return vec![fqn] };
    if let ("optim", Some(("state", rest))) = (first, rest.split_once('.')) {
        return match rest.rsplit_once('.') {
            Some((parameter, part)) => vec![first, "state", parameter, part],
            None => vec![first, "state", rest],
        };
    }
    vec![first, rest]
}

fn write_tensor(out: &mut Pickler, tensor: &TensorEntry) {
    object(out, CLASSES, "TensorStorageMetadata", |out| {
        out.field("properties");
        write_properties(out, tensor.element());
        out.field("size");
        write_size(out, &tensor.shape);
        out.field("chunks");
        out.list(|out| {
            for chunk in &tensor.chunks {
                object(out, CLASSES, "ChunkStorageMetadata", |out| {
                    out.field("offsets");
                    write_size(out, &chunk.region.offsets);
                    out.field("sizes");
                    write_size(out, &chunk.region.sizes);
                });
            }
        });
    });
}

/// The five fields that every PyTorch reads. (2.15 writes a sixth, which 2.11 refuses.)
fn write_properties(out: &mut Pickler, element: Option<Element>) {
    out.global(CLASSES, "TensorProperties");
    out.new_object();
    out.tuple(|out| {
        out.global("torch", element.map_or("float32", Element::torch));
        out.once("layout", |out| {
            out.global("torch.serialization", "_get_layout");
            out.text("torch.strided");
            out.tuple1();
            out.call();
        });
        out.bool(false);
        out.once("memory format", |out| {
            out.global(CLASSES, "_MEM_FORMAT_ENCODING");
            out.int(0);
            out.tuple1();
            out.call();
        });
        out.bool(false);
    });
    out.build();
}

fn write_size(out: &mut Pickler, size: &[u64]) {
    out.global("torch", "Size");
    out.counts(size);
    out.tuple1();
    out.call();
}

/// The key of a place. Values have no `offset` field at all: that is how PyTorch tells them apart.
fn write_index(out: &mut Pickler, fqn: &str, chunk: Option<(u64, &StoredChunk)>) {
    object(out, CLASSES, "MetadataIndex", |out| {
        out.field("fqn");
        out.text(fqn);
        out.field("index");
        match chunk {
            None => out.none(),
            Some((index, chunk)) => {
                out.count(index);
                out.field("offset");
                write_size(out, &chunk.region.offsets);
            }
        }
    });
}

fn write_place(out: &mut Pickler, place: &StoredPlace) {
    object(out, "torch.distributed.checkpoint.filesystem", "_StorageInfo", |out| {
        out.field("relative_path");
        out.text(&place.file);
        out.field("offset");
        out.count(place.offset);
        out.field("length");
        out.count(place.length);
        if !place.transforms.is_empty() {
            out.field("transform_descriptors");
            out.list(|out| place.transforms.iter().for_each(|transform| out.text(transform)));
        }
    });
}

fn object(out: &mut Pickler, module: &'static str, name: &'static str, fields: impl FnOnce(&mut Pickler)) {
    out.global(module, name);
    out.new_object();
    out.dict(fields);
    out.build();
}
