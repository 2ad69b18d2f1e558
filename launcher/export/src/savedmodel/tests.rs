use super::*;
use crate::{
    Batch,
    proto::{Field, fields},
    sample::{edges, samples},
};
use enn_common::graph::{DType, Dim, Known, Op};
use signature::ServingSignature;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
};

fn model<'a>(graph: &'a Graph, about: &'a BTreeMap<String, String>) -> Model<'a> {
    Model { name: "weather", graph, batch: Batch::default(), about }
}

fn listed(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_sample_is_written_the_same_twice_with_its_ports() {
    let about = BTreeMap::new();
    for sample in samples().iter().chain(&edges()) {
        let graph = &sample.graph;
        let whole = bytes(&model(graph, &about)).unwrap();
        assert_eq!(bytes(&model(graph, &about)).unwrap(), whole, "{}", sample.name);
        let signature = ServingSignature::parse(&whole).unwrap();
        for (ids, ports) in [(graph.inputs(), signature.inputs), (graph.outputs(), signature.outputs)] {
            let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
            assert_eq!(names, ids.iter().map(|id| graph.value(*id).name.as_str()).collect::<Vec<_>>());
            for (id, port) in ids.iter().zip(&ports) {
                assert_eq!(u64::from(port.kind), numbers(graph.value(*id).dtype).tensorflow, "{}", sample.name);
            }
        }
    }
}

/// Names and inputs of all nodes.
fn nodes_of(file: &[u8]) -> Vec<(String, Vec<String>)> {
    let inside = |of, field| -> Vec<&[u8]> {
        let all = fields(of).unwrap().into_iter();
        all.filter_map(|(number, value)| match value {
            Field::Bytes(bytes) if number == field => Some(bytes),
            _ => None,
        })
        .collect()
    };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let graph = inside(inside(file, 2)[0], 2)[0];
    let node = |node| (text(inside(node, 1)[0]), inside(node, 3).into_iter().map(text).collect());
    inside(graph, 1).into_iter().map(node).collect()
}

#[test]
fn nodes_have_names_of_their_own_and_come_before_their_use() {
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(2)]);
    let w = g.known("week 1/ä.weight", DType::F32, &[2, 2], Known::Parameter, vec![0; 16]).unwrap();
    let again = g.known("x", DType::F32, &[2, 2], Known::Parameter, vec![0; 16]).unwrap();
    let y = g.node(Op::Linear, &[x, w], "a.b").unwrap();
    let y = g.node(Op::Linear, &[y, again], "a.b").unwrap();
    g.output(y, "y");
    let nodes = nodes_of(&bytes(&model(&g, &BTreeMap::new())).unwrap());
    let mut there = BTreeSet::new();
    for (name, ins) in &nodes {
        assert!(ins.iter().all(|input| there.contains(input)), "{name} needs {ins:?} of {there:?}");
        assert!(there.insert(name.clone()), "{name} stands twice");
    }
    for name in ["x", "week_1/_.weight", "x_1", "a/b/MatMul", "a/b/MatMul_1", "output/y"] {
        assert!(there.contains(name), "{name} in {there:?}");
    }
}

#[test]
fn the_directory_is_replaced_whole_and_leaves_nothing_behind() {
    let about = BTreeMap::from([("enn.run".to_owned(), "weather-1".to_owned())]);
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("model");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("old"), "old").unwrap();
    let sample = &samples()[0];
    write(&model(&sample.graph, &about), &dir).unwrap();
    assert_eq!(listed(&dir), ["assets.extra", "saved_model.pb"].map(str::to_owned).into());
    let told: BTreeMap<String, String> =
        serde_json::from_slice(&fs::read(dir.join("assets.extra/enn.json")).unwrap()).unwrap();
    assert_eq!(told, about);
    assert_eq!(listed(parent.path()), ["model".to_owned()].into());
    // A place where no directory can be.
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    let error = write(&model(&sample.graph, &about), &file.join("model")).unwrap_err().to_string();
    assert!(error.contains("file"), "{error}");
    assert_eq!(listed(parent.path()), ["file", "model"].map(str::to_owned).into());
}

#[test]
fn weights_beyond_two_gigabytes_are_refused_before_anything_is_written() {
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(4096)]);
    // One piece of memory, known by many names.
    let piece: Arc<[u8]> = vec![0; 4096 * 4096 * 4].into();
    let mut y = x;
    for layer in 0..33 {
        let w = g.known(&format!("{layer}"), DType::F32, &[4096, 4096], Known::Parameter, piece.clone()).unwrap();
        y = g.node(Op::Linear, &[y, w], "deep").unwrap();
    }
    g.output(y, "y");
    let parent = tempfile::tempdir().unwrap();
    let error = write(&model(&g, &BTreeMap::new()), &parent.path().join("model")).unwrap_err().to_string();
    assert!(
        error.starts_with("tensorflow: no way to write weights at weather: the graph has 2214592512 bytes"),
        "{error}"
    );
    assert!(error.contains("hint: export to onnx"), "{error}");
    assert!(listed(parent.path()).is_empty());
}

#[test]
fn a_damaged_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    assert!(ServingSignature::read(dir.path()).unwrap_err().to_string().contains(GRAPH));
    let whole = bytes(&model(&samples()[0].graph, &BTreeMap::new())).unwrap();
    for kept in [1, whole.len() / 2, whole.len() - 1] {
        fs::write(dir.path().join(GRAPH), &whole[..kept]).unwrap();
        let error = ServingSignature::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains(GRAPH) && error.contains(SIGNATURE), "{error}");
    }
}
