//! The package: a directory that is whole or absent.

use super::{
    SPECIFICATION,
    block::{Block, port},
    mil::{self, Type},
};
use crate::{Batch, ExportError, Model, model::write_dir, proto::Message};
use enn_common::{
    fs::{Disk, FileError, Storage, atomic},
    graph::{Dim, GraphValue},
};
use serde_json::{Value as Json, json};
use std::path::Path;

pub(super) const MANIFEST: &str = "Manifest.json";
/// Directory of the items, which the manifest names relative to it.
pub(super) const DATA: &str = "Data";
pub(super) const PROGRAM: &str = "com.apple.CoreML/model.mlmodel";
pub(super) const WEIGHTS_DIR: &str = "com.apple.CoreML/weights";
/// File of the weights in its folder.
pub(super) const WEIGHTS_FILE: &str = "weight.bin";
/// Field of the program in the model.
pub(super) const ML_PROGRAM: u32 = 502;

/// Writes the package `dir`, replacing an existing one.
///
/// # Errors
/// Core ML lacks a feature of the model, before anything is written; the disk fails; or the directory is no package.
pub fn write(model: &Model<'_>, dir: &Path) -> Result<(), ExportError> {
    let mut block = Block::of(model.graph)?;
    for node in model.graph.nodes() {
        block.node(node)?;
    }
    let (function, weights) = block.function();
    let program = Message::new().int(1, 1).message(2, &mil::entry("main", &function));
    let bytes = Message::new()
        .uint(1, SPECIFICATION)
        .message(2, &description(model))
        .message(ML_PROGRAM, &program)
        .into_bytes();
    if Disk.exists(dir) && !dir.join(MANIFEST).is_file() {
        return Err(ExportError::io(dir)(std::io::Error::other("it is there, and is no package")));
    }
    write_dir(dir, |temporary| fill(temporary, &bytes, &weights))
}

fn fill(dir: &Path, program: &[u8], weights: &super::weights::Weights<'_>) -> Result<(), ExportError> {
    let data = dir.join(DATA);
    let mut items = vec![(PROGRAM, "model.mlmodel", "CoreML Model Specification", blake3::hash(program))];
    let folder = data.join(WEIGHTS_DIR);
    let parent = atomic::parent(&folder).to_owned();
    Disk.create_dir(&parent)?;
    if !weights.is_empty() {
        Disk.create_dir(&folder)?;
        items.push((WEIGHTS_DIR, "weights", "CoreML Model Weights", weights.write(&folder.join(WEIGHTS_FILE))?));
        Disk.sync_dir(&folder)?;
    }
    put(&data.join(PROGRAM), program)?;
    let entry = |(path, name, description, hash): &(&str, &str, &str, blake3::Hash)| {
        (uuid(hash), json!({"author": "com.apple.CoreML", "description": description, "name": name, "path": path}))
    };
    let root = uuid(&items[0].3);
    let entries: serde_json::Map<String, Json> = items.iter().map(entry).collect();
    let manifest = json!({"fileFormatVersion": "1.0.0", "itemInfoEntries": entries, "rootModelIdentifier": root});
    put(&dir.join(MANIFEST), format!("{manifest:#}\n").as_bytes())?;
    [parent, data].iter().try_for_each(|dir| Disk.sync_dir(dir)).map_err(ExportError::from)
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let file = Disk.create(path)?;
    file.write_at(0, &[bytes])?;
    file.sync()
}

/// Returns an identifier of the content: RFC 9562, version 8.
fn uuid(hash: &blake3::Hash) -> String {
    let mut bytes: [u8; 16] = std::array::from_fn(|at| hash.as_bytes()[at]);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Builds the description: the ports and the metadata.
fn description(model: &Model<'_>) -> Message {
    let graph = model.graph;
    let feature = |value: &GraphValue, array: Message| {
        Message::new().text(1, &value.name).message(3, &Message::new().message(5, &array))
    };
    let inputs = graph.inputs().iter().map(|id| graph.value(*id));
    let inputs = inputs.map(|value| feature(value, input(&port(value), model.batch)));
    let outputs = graph.outputs().iter().map(|id| graph.value(*id));
    let outputs = outputs.map(|value| feature(value, Message::new().uint(2, port(value).kind.of_port())));
    let about = model.about.iter().map(|(key, value)| Message::new().text(1, key).text(2, value));
    let metadata = Message::new().text(1, model.name).messages(100, about);
    Message::new().messages(1, inputs).messages(10, outputs).message(100, &metadata)
}

/// Describes an input: its default sizes, and their range where they follow the batch.
fn input(ty: &Type, batch: Batch) -> Message {
    let usual: Vec<i64> = ty.shape.iter().map(|dim| dim.of(batch.opt) as i64).collect();
    let array = Message::new().ints(1, &usual).uint(2, ty.kind.of_port());
    if !ty.shape.iter().any(|dim| dim.is_open()) {
        return array;
    }
    let range = |dim: &Dim| Message::new().uint(1, dim.of(batch.min)).int(2, dim.of(batch.max) as i64);
    array.message(31, &Message::new().messages(1, ty.shape.iter().map(range)))
}
