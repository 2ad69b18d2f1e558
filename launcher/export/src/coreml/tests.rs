//! Packages of all samples, and damaged ones.

use super::{check, package::write};
use crate::{Batch, ExportError, Model, sample::samples};
use enn_common::graph::{Binary, Compare, DType, Dim, Graph, Known, Op};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

fn about() -> BTreeMap<String, String> {
    BTreeMap::from([("enn.run".to_owned(), "weather-1".to_owned())])
}

fn written(graph: &Graph, dir: &Path) -> Result<(), ExportError> {
    write(&Model { name: "sample", graph, batch: Batch::default(), about: &about() }, dir)
}

fn batched(shape: &[u64]) -> Vec<Dim> {
    [Dim::BATCH].into_iter().chain(shape.iter().map(|size| Dim::Fixed(*size))).collect()
}

/// Every file below a package with its bytes.
fn content(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                left.push(entry);
            } else {
                found.insert(entry.strip_prefix(dir).unwrap().to_owned(), fs::read(&entry).unwrap());
            }
        }
    }
    found
}

#[test]
fn every_sample_becomes_a_package_that_holds_together() {
    let dir = tempfile::tempdir().unwrap();
    for sample in samples() {
        let path = dir.path().join("sample.mlpackage");
        written(&sample.graph, &path).unwrap_or_else(|error| panic!("{}: {error}", sample.name));
        let checked = check(&path).unwrap_or_else(|error| panic!("{}: {error}", sample.name));
        let names = |ids: &[enn_common::graph::Id]| -> Vec<String> {
            ids.iter().map(|id| sample.graph.value(*id).name.clone()).collect()
        };
        assert_eq!(
            (&checked.inputs, &checked.outputs),
            (&names(sample.graph.inputs()), &names(sample.graph.outputs()))
        );
        assert_eq!(checked.about, about());
        assert!(checked.operations >= sample.graph.nodes().len(), "{}", sample.name);
        let first = content(&path);
        written(&sample.graph, &path).unwrap();
        assert!(content(&path) == first, "{}: the same bytes again", sample.name);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn element_types_without_a_port_or_a_file_of_weights_find_their_way() {
    let mut g = Graph::new();
    let x = g.input("x", DType::F16, batched(&[12]));
    let mask = g.input("mask", DType::Bool, batched(&[12]));
    let at = g.input("at", DType::I64, vec![Dim::Fixed(3)]);
    let half: Vec<u8> = [0x3c00_u16; 12].iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let weight = g.known("1.weight", DType::F16, &[12], Known::Parameter, half).unwrap();
    let brain: Vec<u8> = [0x3f80_u16; 12].iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let brain = g.known("brain", DType::Bf16, &[12], Known::Parameter, brain).unwrap();
    let sum = g.node(Op::Binary(Binary::Add), &[x, weight], "m").unwrap();
    let log = g.node(Op::Unary(enn_common::graph::Unary::Log), &[sum], "m").unwrap();
    let wide = g.node(Op::Cast { to: DType::Bf16 }, &[log], "m").unwrap();
    let wide = g.node(Op::Binary(Binary::Mul), &[wide, brain], "m").unwrap();
    let wide = g.node(Op::Cast { to: DType::F32 }, &[wide], "m").unwrap();
    let some = g.node(Op::Gather { axis: 1 }, &[wide, at], "m").unwrap();
    let zero = g.number(0.0);
    let above = g.node(Op::Compare(Compare::Greater), &[wide, zero], "m").unwrap();
    let not = g.node(Op::Not, &[above], "m").unwrap();
    let chosen = g.node(Op::Where, &[mask, above, not], "m").unwrap();
    g.output(some, "some");
    g.output(chosen, "chosen");
    g.output(brain, "weights");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.mlpackage");
    written(&g, &path).unwrap();
    let checked = check(&path).unwrap();
    assert_eq!(checked.outputs, ["some", "chosen", "weights"]);
    assert_eq!(checked.weights, 2);
    // The second blob is the bf16 tensor, as ones in f32.
    let weights = fs::read(path.join("Data/com.apple.CoreML/weights/weight.bin")).unwrap();
    assert_eq!(weights[weights.len() - 48..], 1.0_f32.to_le_bytes().repeat(12));
}

#[test]
fn what_core_ml_does_not_have_is_told_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.mlpackage");
    let refused = |build: &dyn Fn(&mut Graph), expected: &str| {
        let mut g = Graph::new();
        build(&mut g);
        let error = written(&g, &path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    };
    refused(
        &|g| {
            let x = g.input("x", DType::F32, batched(&[4]));
            let y = g.node(Op::Reshape { shape: batched(&[1, 1, 2, 1, 2]) }, &[x], "fuser.fold").unwrap();
            g.output(y, "y");
        },
        "coreml: no way to write reshape of f32 [batch, 1, 1, 2, 1, 2] at fuser.fold: values have at most five axes\nhint: a shape in which neighbouring axes are joined; or onnx",
    );
    refused(
        &|g| {
            let x = g.input("x", DType::I64, batched(&[1]));
            let big = g.integers(&[1], &[1 << 40]).unwrap();
            let y = g.node(Op::Binary(Binary::Add), &[x, big], "m").unwrap();
            g.output(y, "y");
        },
        "add of i64 [1] at m: integers have 32 bits\nhint: smaller numbers, or onnx",
    );
    refused(
        &|g| {
            let x = g.input("x.1", DType::F32, batched(&[4]));
            let y = g.node(Op::Softmax, &[x], "m").unwrap();
            g.output(y, "y");
        },
        "the port x.1",
    );
    refused(
        &|g| {
            let x = g.input("x", DType::F32, vec![Dim::Fixed(1), Dim::Fixed(2)]);
            let y = g.node(Op::Expand { shape: batched(&[2]) }, &[x], "m.expand").unwrap();
            g.output(y, "y");
        },
        "expand at m.expand: no input has the batch",
    );
}

#[test]
fn a_directory_that_is_no_package_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("mine"), "x").unwrap();
    let sample = &samples()[0];
    let error = written(&sample.graph, dir.path()).unwrap_err().to_string();
    assert!(error.contains("is no package"), "{error}");
    assert!(dir.path().join("mine").exists());
}

#[test]
fn a_damaged_package_is_refused_and_never_ends_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let model = samples().pop().unwrap();
    let path = dir.path().join("m.mlpackage");
    written(&model.graph, &path).unwrap();
    check(&path).unwrap();
    let mut refused = 0;
    for (name, bytes) in content(&path) {
        let file = path.join(&name);
        let is_weights = name.ends_with("weight.bin");
        for at in (0..bytes.len()).step_by(if is_weights { 64 } else { 7 }) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            fs::write(&file, &damaged).unwrap();
            refused += usize::from(check(&path).is_err());
            fs::write(&file, &bytes[..at]).unwrap();
            assert!(check(&path).is_err(), "{} cut at {at}", name.display());
        }
        fs::write(&file, &bytes).unwrap();
    }
    assert!(refused > 100, "{refused}");
    check(&path).unwrap();
}
