//! The readers, each with a few valid files of its own form.

use arrow_array::{DictionaryArray, Float32Array, Int64Array, RecordBatch, StringArray, types::Int32Type};
use arrow_ipc::{
    CompressionType,
    writer::{IpcWriteOptions, StreamWriter},
};
use enn_checkpoint::convert::{self, ConvertOptions, Target};
use enn_common::{
    artifact::seal,
    checkpoint::{
        Checkpoint, DirectoryWriter, Draft, Element, Manifest, PathPart, ShardWriter, TensorDType, Value, commit,
        metadata::Metadata,
        name,
        state_file::{self, Content, StateEntry, StateFile},
    },
    fs::{Disk, FileError},
    staged::npy,
};
use enn_data::stage::Batches;
use std::{cell::RefCell, fs, io::Cursor, path::Path, sync::Arc};
use tempfile::TempDir;

/// What an Arrow batch may take.
const ROOM_BYTES: u64 = 2 << 20;

thread_local! {
    /// Where a reader that reads files finds its input.
    static PLACE: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// Calls `read` with a directory of this thread.
pub(crate) fn in_place(read: impl FnOnce(&Path)) {
    PLACE.with(|place| {
        let mut place = place.borrow_mut();
        let dir =
            place.get_or_insert_with(|| tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap());
        read(dir.path());
    });
}

fn value() -> Value {
    let list =
        Value::List(vec![Value::Int(1 << 40), Value::Tuple(vec![Value::Float(0.5), Value::Bytes(vec![0, 255])])]);
    Value::dict([("list", list), ("text", Value::from("Zürich")), ("none", Value::None)])
}

/// A directory in the form of a checkpoint, with tensors of several types and a value.
pub(crate) fn directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = DirectoryWriter::create(&Disk, dir.path(), 1 << 20).unwrap();
    writer.tensor("a.weight", TensorDType::F32.into(), &[2, 3], &[7; 24]).unwrap();
    writer.tensor("b", Element::of_torch("float8_e5m2").unwrap(), &[4], &[1, 2, 3, 4]).unwrap();
    writer.value("v", &value()).unwrap();
    writer.finish(Some(Draft { step: 3, ..Draft::default() })).unwrap();
    dir
}

fn file(name: &str) -> Vec<u8> {
    fs::read(directory().path().join(name)).unwrap()
}

pub(crate) fn metadata_seeds() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let temporary = dir.path().join(name::temporary(1, "a"));
    let mut shard = ShardWriter::create(&temporary, 0).unwrap();
    shard.whole("w", TensorDType::I64, &[3], &[1; 24]).unwrap();
    shard.value("v", &value()).unwrap();
    let tables = [shard.finish().unwrap()];
    let done = commit(&temporary, &dir.path().join(name::committed(1)), &tables, Draft::default()).unwrap();
    vec![file(name::METADATA), fs::read(done.path.join(name::METADATA)).unwrap()]
}

pub(crate) fn metadata(bytes: &[u8]) {
    if let Ok(found) = Metadata::parse(bytes) {
        for tensor in found.tensors.values() {
            let _ = tensor.check_coverage();
        }
        let _ = found.to_bytes("x");
    }
}

/// The shard with the metadata that belongs to a sound one.
pub(crate) fn shard_seeds() -> Vec<Vec<u8>> {
    vec![file("__0_0.distcp"), without_checksums(file("__0_0.distcp"))]
}

/// Zeroes the checksums in zip headers, so that what is behind them is reached.
pub(crate) fn without_checksums(mut bytes: Vec<u8>) -> Vec<u8> {
    for at in 0..bytes.len().saturating_sub(20) {
        let crc = match &bytes[at..at + 4] {
            b"PK\x03\x04" => 14,
            b"PK\x01\x02" => 16,
            _ => continue,
        };
        bytes[at + crc..at + crc + 4].fill(0);
    }
    bytes
}

pub(crate) fn shard(bytes: &[u8]) {
    in_place(|dir| {
        if !dir.join(name::METADATA).exists() {
            fs::write(dir.join(name::METADATA), file(name::METADATA)).unwrap();
        }
        fs::write(dir.join("__0_0.distcp"), bytes).unwrap();
        let open = Checkpoint::open_dcp(dir).unwrap();
        let _ = open.tensor("a.weight");
        let _ = open.value("v");
        let _ = open.item("v");
        let _ = open.inspect(&mut |_| {});
    });
}

pub(crate) fn state_file_seeds() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt");
    let key = |parts: &[&str]| parts.iter().map(|part| PathPart::Key((*part).into())).collect::<Vec<_>>();
    let mut group = key(&["optim"]);
    group.extend([PathPart::Index(0), PathPart::Key("lr".into())]);
    let entries = [
        StateEntry { path: key(&["model", "w"]), content: Content::Tensor(TensorDType::F32.into(), vec![2, 2]) },
        StateEntry { path: key(&["model", "h"]), content: Content::Tensor(TensorDType::F16.into(), vec![3]) },
        StateEntry { path: group, content: Content::Value(value()) },
    ];
    let bytes = |entry: usize| Ok::<_, FileError>(vec![5; [16, 6, 0][entry]]);
    state_file::write(&Disk, &path, &entries, &mut { bytes }).unwrap();
    let sound = fs::read(path).unwrap();
    vec![without_checksums(sound.clone()), sound]
}

pub(crate) fn state_file(bytes: &[u8]) {
    in_place(|dir| {
        let path = dir.join("m.pt");
        fs::write(&path, bytes).unwrap();
        if let Ok(open) = StateFile::open(&path) {
            let names: Vec<String> = open.tensors().map(|(name, ..)| name.to_owned()).collect();
            for name in names {
                let _ = open.tensor(&name);
            }
        }
    });
}

fn converted(form: Target, target: &str) -> TempDir {
    let from = directory();
    let to = tempfile::tempdir().unwrap();
    let options = ConvertOptions { form: Some(form), shard_bytes: 10, ..ConvertOptions::default() };
    convert::convert(from.path(), &to.path().join(target), &options, &mut |_, _| {}).unwrap();
    to
}

pub(crate) fn safetensors_seeds() -> Vec<Vec<u8>> {
    vec![fs::read(converted(Target::Safetensors, "m.safetensors").path().join("m.safetensors")).unwrap()]
}

pub(crate) fn safetensors(bytes: &[u8]) {
    in_place(|dir| {
        let path = dir.join("m.safetensors");
        fs::write(&path, bytes).unwrap();
        let _ = convert::verify(&path, true, &mut |_, _| {});
    });
}

pub(crate) fn index_seeds() -> Vec<Vec<u8>> {
    let shards = converted(Target::Shards, "m");
    vec![fs::read(shards.path().join("m/model.safetensors.index.json")).unwrap()]
}

pub(crate) fn index(bytes: &[u8]) {
    in_place(|dir| {
        let path = dir.join("model.safetensors.index.json");
        fs::write(&path, bytes).unwrap();
        let _ = convert::verify(&path, true, &mut |_, _| {});
    });
}

pub(crate) fn npy_seeds() -> Vec<Vec<u8>> {
    let header =
        |element, shape: &[u64]| npy::Header::write(element, shape, npy::Header::roomy_offset(element, &shape[1..]));
    let mut one = header(npy::NpyElement::F32, &[2, 3]).unwrap();
    one.extend([1; 24]);
    vec![one, header(npy::NpyElement::I64, &[0]).unwrap()]
}

pub(crate) fn npy(bytes: &[u8]) {
    let _ = npy::Header::bytes_of(bytes);
    if let Ok(header) = npy::Header::parse(bytes) {
        let _ = (header.count(), header.data_bytes());
    }
}

pub(crate) fn manifest_seeds() -> Vec<Vec<u8>> {
    vec![file(name::MANIFEST)]
}

pub(crate) fn manifest(bytes: &[u8]) {
    let _ = seal::unseal::<Manifest>(Path::new("m"), bytes);
    // Nor without the digest, which keeps nearly everything out.
    let _ = serde_json::from_slice::<Manifest>(bytes);
}

/// Room for an Arrow batch: less than the host has, which is what users get and more than a reader here may ask for.
pub(crate) fn room(bytes: u64) -> std::io::Result<()> {
    if bytes <= ROOM_BYTES { Ok(()) } else { Err(std::io::ErrorKind::OutOfMemory.into()) }
}

pub(crate) fn arrow_seeds() -> Vec<Vec<u8>> {
    let batch = RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from(vec![1, 2, 3])) as arrow_array::ArrayRef),
        ("x", Arc::new(Float32Array::from(vec![Some(0.5), None, Some(2.0)]))),
        ("name", Arc::new(StringArray::from(vec!["a", "bc", ""]))),
        ("word", Arc::new(["x", "y", "x"].into_iter().collect::<DictionaryArray<Int32Type>>())),
    ])
    .unwrap();
    let packed = |codec| {
        let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        let bytes = writer.into_inner().unwrap();
        for columns in [vec![0, 1, 2, 3], vec![1]] {
            let read = Batches::open(Cursor::new(&bytes), Some(columns.clone()), room).unwrap();
            let read: Vec<RecordBatch> = read.map(Result::unwrap).collect();
            assert_eq!(read, [batch.project(&columns).unwrap()], "a sound stream comes through");
        }
        bytes
    };
    vec![packed(None), packed(Some(CompressionType::LZ4_FRAME))]
}

pub(crate) fn arrow(bytes: &[u8]) {
    for columns in [None, Some(vec![1])] {
        let Ok(reader) = Batches::open(Cursor::new(bytes), columns, room) else { continue };
        let _: Vec<_> = reader.take(8).take_while(Result::is_ok).collect();
    }
}
