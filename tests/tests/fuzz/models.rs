//! Readers of models: files of ENN for PyTorch, model cards, compressed items, graphs, exported artifacts and what lies beside them.

use crate::{
    readers::{directory, in_place, without_checksums},
    tables,
};
use enn_checkpoint::convert::{self, contents};
use enn_common::{
    artifact::model_card::{CardTensor, FORMAT, KEY, ModelCard},
    checkpoint::{
        Checkpoint, PathPart, TensorDType, Value,
        metadata::Metadata,
        name,
        state_file::{self, Content, StateEntry},
    },
    config::RunConfig,
    fs::{Disk, FileError},
    graph::{self, DType as Kind, Dim, Graph, Known, Op},
    staged::StagedMeta,
};
use enn_data::stage::Encoder;
use enn_export::{Batch, Model, coreml, pt2};
use enn_launcher::export::Packed;
use std::{collections::BTreeMap, fs, path::Path};

fn key(parts: &[&str]) -> Vec<PathPart> {
    parts.iter().map(|part| PathPart::Key((*part).into())).collect()
}

/// A file as ENN for PyTorch saves it.
pub(crate) fn native_seeds() -> Vec<Vec<u8>> {
    let tensor = |name: &str, shape: &[u64]| StateEntry {
        path: key(&["state_dict", name]),
        content: Content::Tensor(TensorDType::F32.into(), shape.to_vec()),
    };
    let value = |path: &[&str], value: Value| StateEntry { path: key(path), content: Content::Value(value) };
    let entries = [
        value(&["version"], Value::Int(1)),
        value(&["in_dim"], Value::Int(2)),
        value(&["out_shape"], Value::Tuple(vec![Value::Int(1)])),
        value(&["config", "d_model"], Value::Int(4)),
        value(&["config", "heads"], Value::Int(2)),
        value(&["config", "spatial_latents"], Value::Int(2)),
        value(&["config", "temporal_latents"], Value::Int(3)),
        value(&["config", "preset"], Value::Str("spatial".into())),
        tensor("scaler.x_mean", &[2]),
        tensor("scaler.x_std", &[2]),
        tensor("processor.tasks.spatial.tokenizer.weight", &[4, 2]),
        tensor("processor.perceiver.latents", &[5, 4]),
        tensor("processor.head.weight", &[1, 4]),
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("native.pt");
    let bytes = |entry: usize| match &entries[entry].content {
        Content::Tensor(_, shape) => Ok::<_, FileError>(vec![1; 4 * shape.iter().product::<u64>() as usize]),
        Content::Value(_) => Ok(Vec::new()),
    };
    state_file::write(&Disk, &path, &entries, &mut { bytes }).unwrap();
    assert!(contents(&path).unwrap().mapped.is_some(), "one of ENN for PyTorch");
    let sound = fs::read(path).unwrap();
    vec![without_checksums(sound.clone()), sound]
}

/// Looked at, read by every program that takes a saved model, and made the beginning of a training.
pub(crate) fn native(bytes: &[u8]) {
    in_place(|dir| {
        let path = dir.join("native.pt");
        fs::write(&path, bytes).unwrap();
        drop(contents(&path));
        let checkpoints = dir.join("checkpoints");
        _ = fs::remove_dir_all(&checkpoints);
        drop(convert::load_native(&path, &checkpoints, &config(), &meta(), 0.0));
        drop(convert::load_model(&path, &checkpoints, 0.0));
    });
}

fn config() -> RunConfig {
    let raw = enn_common::config::RawConfig::parse(CONFIG, Path::new("/c/config.toml")).unwrap();
    let facts = enn_common::config::Facts { cores: 2, gpus: 0, cuda_worker: false, cwd: "/c".into() };
    enn_common::config::resolve(&raw, &facts).unwrap()
}

const CONFIG: &str = "[data]\nfiles = [\"t.csv\"]\n[data.rows]\nfeatures = [\"a\", \"b\"]\ntargets = [\"y\"]\n";

fn meta() -> StagedMeta {
    tables::meta(&[("a", &[]), ("b", &[])])
}

pub(crate) fn card_seeds() -> Vec<Vec<u8>> {
    let tensor =
        |name: &str, shape: &[u64]| CardTensor { name: name.into(), dtype: "float32".into(), shape: shape.to_vec() };
    let card = ModelCard {
        format: FORMAT.into(),
        version: 1,
        run: "weather-1".into(),
        step: 8,
        epoch: 2,
        metric: Some(0.5),
        metrics: BTreeMap::new(),
        findings: Default::default(),
        config: serde_json::to_value(config()).unwrap(),
        meta: serde_json::to_value(meta()).unwrap(),
        tensors: vec![tensor("w", &[2, 2])],
        state: vec![
            tensor("model.w", &[2, 2]),
            tensor("best.w", &[2, 2]),
            tensor("optim.exp_avg.w", &[2, 2]),
            tensor("progress.order", &[2]),
        ],
        initial: [("progress.order".to_owned(), "0000803f00000040".to_owned())].into(),
        versions: BTreeMap::new(),
    };
    vec![serde_json::to_vec(&card).unwrap()]
}

/// The card of a saved model whose tensors are sound.
pub(crate) fn cards(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2, 2], &[1; 16]).unwrap();
    let about = Some([(KEY.to_owned(), text)].into());
    in_place(|dir| {
        let path = dir.join("m.safetensors");
        let checkpoints = dir.join("checkpoints");
        safetensors::serialize_to_file([("w", view)], about, &path).unwrap();
        _ = fs::remove_dir_all(&checkpoints);
        drop(convert::load_model(&path, &checkpoints, 0.0));
    });
}

/// The items of a checkpoint, a tensor and a value.
fn items(dir: &Path) -> [Vec<u8>; 2] {
    let metadata = Metadata::parse(&fs::read(dir.join(name::METADATA)).unwrap()).unwrap();
    let shard = fs::read(dir.join("__0_0.distcp")).unwrap();
    let places = [&metadata.tensors["a.weight"].chunks[0].place, &metadata.values["v"]];
    places.map(|place| shard[place.offset as usize..][..place.length as usize].to_vec())
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

pub(crate) fn compressed_seeds() -> Vec<Vec<u8>> {
    let seeds: Vec<Vec<u8>> = items(directory().path()).iter().flat_map(|item| [item.clone(), packed(item)]).collect();
    in_place(|dir| {
        assert!(unpacked(dir, &seeds[1]).tensor("a.weight").is_ok(), "a sound tensor");
        assert!(unpacked(dir, &seeds[3]).value("v").is_ok(), "a sound value");
    });
    seeds
}

/// A checkpoint whose items are these bytes, which DCP would have compressed.
fn unpacked(dir: &Path, bytes: &[u8]) -> Checkpoint {
    let sound = dir.join("sound");
    if !sound.exists() {
        fs::copy(directory().path().join(name::METADATA), &sound).unwrap();
    }
    let mut metadata = Metadata::parse(&fs::read(sound).unwrap()).unwrap();
    let places = metadata.tensors.values_mut().flat_map(|tensor| &mut tensor.chunks).map(|chunk| &mut chunk.place);
    for place in places.chain(metadata.values.values_mut()) {
        place.offset = 0;
        place.length = bytes.len() as u64;
        place.transforms = vec!["stream.zstd/1".into()];
    }
    fs::write(dir.join(name::METADATA), metadata.to_bytes("x")).unwrap();
    fs::write(dir.join("__0_0.distcp"), bytes).unwrap();
    Checkpoint::open_dcp(dir).unwrap()
}

/// As they are, and packed, so that what is behind the unpacking is reached too.
pub(crate) fn compressed_items(bytes: &[u8]) {
    in_place(|dir| {
        for bytes in [bytes, &packed(bytes)] {
            let open = unpacked(dir, bytes);
            drop((open.tensor("a.weight"), open.value("v"), open.item("v")));
            drop(open.inspect(&mut |_| {}));
        }
    });
}

fn graph() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", Kind::F32, vec![Dim::BATCH, Dim::Fixed(2)]);
    // So many that Core ML keeps them in a file.
    let bytes: Vec<u8> = (0..16).flat_map(|at| (at as f32).to_le_bytes()).collect();
    let w = g.known("head.weight", Kind::F32, &[8, 2], Known::Parameter, bytes).unwrap();
    let y = g.node(Op::Linear, &[x, w], "head").unwrap();
    let wide = g.node(Op::Reshape { shape: vec![Dim::BATCH, Dim::Fixed(8), Dim::Fixed(1)] }, &[y], "a").unwrap();
    let more = g.node(Op::Expand { shape: vec![Dim::BATCH, Dim::Fixed(8), Dim::Fixed(3)] }, &[wide], "a").unwrap();
    let turned = g.node(Op::Permute { axes: vec![0, 2, 1] }, &[more], "a").unwrap();
    let part = g.node(Op::Slice { axis: 1, start: 1, len: 2 }, &[turned], "a").unwrap();
    let both = g.node(Op::Concat { axis: 1 }, &[part, turned], "a").unwrap();
    let sum = g.node(Op::Reduce { fold: graph::Fold::Sum, axes: vec![1], keep: false }, &[both], "a").unwrap();
    g.output(sum, "y");
    g
}

pub(crate) fn graph_seeds() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    graph::file::write(&graph(), dir.path()).unwrap();
    ["graph.json", "graph.safetensors"].map(|file| fs::read(dir.path().join(file)).unwrap()).to_vec()
}

/// In the place of each of the two files in turn; what is read goes through every writer that needs no tool.
pub(crate) fn graphs(bytes: &[u8]) {
    in_place(|dir| {
        graph::file::write(&graph(), dir).unwrap();
        for file in ["graph.json", "graph.safetensors"] {
            let before = fs::read(dir.join(file)).unwrap();
            fs::write(dir.join(file), bytes).unwrap();
            if let Ok(read) = graph::file::read(dir) {
                let _ = graph::file::digest(&read);
                let about = BTreeMap::new();
                let model = Model { name: "m", graph: &read, batch: Batch::default(), about: &about };
                let _ = enn_export::onnx::write(&model, &dir.join("m.onnx"));
                let _ = pt2::write(&model, &dir.join("m.pt2"));
            }
            fs::write(dir.join(file), before).unwrap();
        }
    });
}

/// The files of a package.
const PARTS: [&str; 3] =
    ["Manifest.json", "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin"];

fn packages(dir: &Path) {
    let graph = graph();
    let about = BTreeMap::from([("enn.run".to_owned(), "weather-1".to_owned())]);
    let model = Model { name: "m", graph: &graph, batch: Batch::default(), about: &about };
    pt2::write(&model, &dir.join("m.pt2")).unwrap();
    coreml::write(&model, &dir.join("m.mlpackage")).unwrap();
}

pub(crate) fn artifact_seeds() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    packages(dir.path());
    pt2::check::check(&dir.path().join("m.pt2")).unwrap();
    coreml::check(&dir.path().join("m.mlpackage")).unwrap();
    let sound = fs::read(dir.path().join("m.pt2")).unwrap();
    let parts = PARTS.map(|part| fs::read(dir.path().join("m.mlpackage").join(part)).unwrap());
    [without_checksums(sound.clone()), sound].into_iter().chain(parts).collect()
}

/// What checks an artifact that was made elsewhere, the files of a package in turn.
pub(crate) fn artifacts(bytes: &[u8]) {
    in_place(|dir| {
        if !dir.join("m.pt2").exists() {
            packages(dir);
        }
        fs::write(dir.join("other.pt2"), bytes).unwrap();
        drop(pt2::check::check(&dir.join("other.pt2")));
        for part in PARTS.map(|part| dir.join("m.mlpackage").join(part)) {
            let before = fs::read(&part).unwrap();
            fs::write(&part, bytes).unwrap();
            drop(coreml::check(&dir.join("m.mlpackage")));
            fs::write(&part, before).unwrap();
        }
    });
}

pub(crate) fn sidecar_seeds() -> Vec<Vec<u8>> {
    let port = |name: &str, width: u64| serde_json::json!({"name": name, "dtype": "f32", "shape": ["batch", width]});
    let said = serde_json::json!({
        "version": 3, "format": "onnx", "artifact": "m.onnx", "bytes": 3, "blake3": "ab",
        "files": [{"path": "m.onnx", "bytes": 3, "sha256":
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}],
        "model": {"run": "weather-1", "step": 3, "checkpoint": "ab"},
        "inputs": [port("x", 2)], "outputs": [port("y", 1)],
        "columns": [{"name": "a", "may_be_missing": true}, {"name": "b", "may_be_missing": false}],
        "labels": [["y"]], "units": "°F", "levels": [], "model_levels": [0.1, 0.9],
        "batch": {"min": 1, "opt": 64, "max": 4096}, "precision": "fp32", "versions": {}, "graph": "ab",
        "verified": {"level": "runtime", "runtime": "x", "batches": [1], "rows": 9, "from": "test", "largest": 0.1,
            "mean": 0.1, "tolerance": 1.0, "seconds": 0.5},
        "config": {}, "scaler": [[[0.0, 1.0]], [[0.0, 1.0]]],
        "data": serde_json::to_value(&config().data).unwrap(), "staged": serde_json::to_value(meta()).unwrap(),
    });
    let seed = serde_json::to_vec(&said).unwrap();
    in_place(|dir| assert!(opened(dir, &seed).is_some()));
    vec![seed]
}

fn opened(dir: &Path, said: &[u8]) -> Option<Packed> {
    let path = dir.join("m.onnx");
    fs::write(&path, "abc").unwrap();
    fs::write(dir.join("m.onnx.json"), said).unwrap();
    Packed::open(&path).ok()
}

/// What is said beside an artifact, and what it says of rows.
pub(crate) fn sidecars(bytes: &[u8]) {
    in_place(|dir| {
        if let Some(packed) = opened(dir, bytes) {
            drop((packed.ports(), packed.levels(false)));
            drop(Encoder::new(&packed.data, &packed.sidecar.staged));
        }
    });
}
