//! Archives read back: all samples, damaged ones, and the corners that no sample has.

use super::{check::check, write};
use crate::{
    Batch, ExportError, Model,
    sample::{edges, samples},
};
use enn_common::{
    checkpoint::zip,
    graph::{DType, Dim, Graph, Known, Op, Unary},
};
use serde_json::Value;
use std::{collections::BTreeMap, path::Path, sync::Arc};

fn put(graph: &Graph, batch: Batch, path: &Path) -> Result<Vec<u8>, ExportError> {
    let about = BTreeMap::from([("enn.json".to_owned(), "{\"format\":1}".to_owned())]);
    write(&Model { name: "the model", graph, batch, about: &about }, path)?;
    Ok(std::fs::read(path).unwrap())
}

fn part<'a>(file: &'a [u8], name: &str) -> &'a [u8] {
    let full = format!("the_model/{name}");
    let record = zip::records(file).unwrap().into_iter().find(|record| record.name == full).unwrap();
    &file[record.at]
}

fn json(file: &[u8], name: &str) -> Value {
    serde_json::from_slice(part(file, name)).unwrap()
}

/// Two weights of one memory, one of every element type, an empty one and a number.
fn corners() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(2)]);
    let shared: Arc<[u8]> = [1.0_f32, 2.0, 3.0, f32::NEG_INFINITY].iter().flat_map(|v| v.to_le_bytes()).collect();
    let a = g.known("a.weight", DType::F32, &[2, 2], Known::Parameter, shared.clone()).unwrap();
    let b = g.known("b.weight", DType::F32, &[2, 2], Known::Parameter, shared).unwrap();
    for (name, dtype, bytes) in [("narrow", DType::F16, 2), ("brain", DType::Bf16, 2), ("whole", DType::I64, 8)] {
        g.known(name, dtype, &[1], Known::Buffer, vec![0; bytes]).unwrap();
    }
    g.known("truth", DType::Bool, &[3], Known::Constant, vec![1, 0, 1]).unwrap();
    g.known("empty", DType::F32, &[0, 4], Known::Constant, Vec::new()).unwrap();
    let number = g.number(f32::INFINITY);
    let y = g.node(Op::Linear, &[x, a], "a").unwrap();
    let y = g.node(Op::Linear, &[y, b], "b").unwrap();
    let y = g.node(Op::Binary(enn_common::graph::Binary::Min), &[y, number], "m").unwrap();
    g.output(y, "y");
    g
}

#[test]
fn every_sample_passes_and_comes_out_equal_twice() {
    let dir = tempfile::tempdir().unwrap();
    for sample in samples().into_iter().chain(edges()) {
        let path = dir.path().join("m.pt2");
        let first = put(&sample.graph, Batch::default(), &path).unwrap();
        check(&path).unwrap_or_else(|error| panic!("{}: {error}", sample.name));
        assert_eq!(put(&sample.graph, Batch::default(), &path).unwrap(), first, "{}", sample.name);
        let program = json(&first, "models/model.json");
        assert_eq!(program["range_constraints"]["s0"]["max_val"], 4096);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside the file");
}

#[test]
fn shared_weights_share_a_storage_and_every_type_has_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt2");
    let file = put(&corners(), Batch::default(), &path).unwrap();
    check(&path).unwrap();
    let weights = json(&file, "data/weights/model_weights_config.json");
    let row = |name: &str| &weights["config"][name];
    assert_eq!(row("a.weight")["path_name"], row("b.weight")["path_name"]);
    assert_eq!((&row("a.weight")["is_param"], &row("whole")["is_param"]), (&true.into(), &false.into()));
    let kinds =
        ["a.weight", "narrow", "brain", "whole"].map(|name| row(name)["tensor_meta"]["dtype"].as_u64().unwrap());
    assert_eq!(kinds, [7, 6, 13, 5]);
    let constants = json(&file, "data/constants/model_constants_config.json");
    assert_eq!(constants["config"]["truth"]["tensor_meta"]["dtype"], 12);
    assert_eq!(constants["config"].as_object().unwrap().len(), 3);
    let records = zip::records(&file).unwrap();
    for record in records.iter().filter(|record| record.name.contains("/weight_") || record.name.contains("/tensor_")) {
        assert_eq!(record.at.start % 64, 0, "{}", record.name);
    }
    assert_eq!(part(&file, "extra/enn.json"), b"{\"format\":1}");
}

#[test]
fn the_bytes_are_those_that_other_releases_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let file = put(&corners(), Batch::default(), &dir.path().join("m.pt2")).unwrap();
    // The same file is loaded by tests/conformance/export_pt2.py.
    assert_eq!(file, include_bytes!("golden/corners.pt2"), "a change of the format: does every reader still read it?");
}

#[test]
fn a_batch_that_does_not_vary_is_a_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt2");
    let flat = samples().into_iter().find(|sample| sample.name == "reshape that merges the batch").unwrap();
    let file = put(&flat.graph, Batch { min: 8, opt: 8, max: 8 }, &path).unwrap();
    check(&path).unwrap();
    let text = String::from_utf8(part(&file, "models/model.json").to_vec()).unwrap();
    assert!(!text.contains("Symbol") && !text.contains("sym_size") && text.contains("[24,4]"), "{text}");
    let open = put(&flat.graph, Batch::default(), &path).unwrap();
    let text = String::from_utf8(part(&open, "models/model.json").to_vec()).unwrap();
    assert!(text.contains(r#"{"arg":{"as_int":3},"kind":1,"name":"b"}"#) && text.contains("_operator.mul"), "{text}");
}

#[test]
fn outputs_that_nothing_computes_are_copies() {
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(2)]);
    let y = g.node(Op::Unary(Unary::Exp), &[x], "m").unwrap();
    g.output(y, "y");
    g.output(y, "y");
    g.output(x, "x");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt2");
    let file = put(&g, Batch::default(), &path).unwrap();
    check(&path).unwrap();
    let program = json(&file, "models/model.json");
    let outputs = &program["graph_module"]["graph"]["outputs"];
    let names: Vec<&str> = (0..3).map(|at| outputs[at]["as_tensor"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["y", "y_1", "x_1"]);
}

#[test]
fn without_a_batch_nothing_is_written() {
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::Fixed(2)]);
    g.output(x, "y");
    let dir = tempfile::tempdir().unwrap();
    let error = put(&g, Batch::default(), &dir.path().join("m.pt2")).unwrap_err().to_string();
    assert!(error.starts_with("pt2: no way to write a batch at the inputs: none of them has it"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// The file with other text of the same length in place of the first `from`, its checksums made good.
fn changed(file: &[u8], name: &str, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut out = Vec::new();
    let mut archive = zip::Builder::new(0);
    for record in zip::records(file).unwrap() {
        let mut bytes = file[record.at.clone()].to_vec();
        if record.name.ends_with(name) {
            let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).expect(from);
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
        out.extend(archive.small(&record.name, &bytes));
    }
    out.extend(archive.finish());
    out
}

#[test]
fn what_contradicts_itself_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt2");
    let file = put(&corners(), Batch::default(), &path).unwrap();
    let program = "models/model.json";
    let weights = "model_weights_config.json";
    let cases = [
        (program, r#""name":"p_a_weight""#, r#""name":"p_z_weight""#, "is not described"),
        (program, r#"{"name":"linear"}},"kind""#, r#"{"name":"linxxx"}},"kind""#, "which is not there"),
        (program, r#""linear_1"}}],"target""#, r#""linear_9"}}],"target""#, "is not described"),
        (program, "torch.ops.aten.linear", "torch.ops.evil.linear", "expected operators of aten"),
        (program, r#""as_tensor""#, r#""as_tentor""#, "unknown variant"),
        (program, r#""major":8"#, r#""major":9"#, "its schema is 9, expected 8"),
        (program, r#""parameter_name":"a.weight""#, r#""parameter_name":"z.weight""#, "z.weight is in no table"),
        (weights, r#""use_pickle":false"#, r#""use_pickle":true "#, "is pickled"),
        (weights, r#""path_name":"weight_0""#, r#""path_name":"weight_7""#, "no record data/weights/weight_7"),
        (weights, r#"{"as_int":2}"#, r#"{"as_int":9}"#, "bytes, data/weights/weight_0 has 16"),
    ];
    for (name, from, to, said) in cases {
        std::fs::write(&path, changed(&file, name, from, to)).unwrap();
        let error = check(&path).expect_err(from).to_string();
        assert!(error.starts_with("enn refused") && error.contains(said), "{from}: {error}");
    }
    let mut damaged = file.clone();
    let at = zip::records(&file).unwrap().iter().find(|r| r.name.ends_with("weight_0")).unwrap().at.start;
    damaged[at] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    assert!(check(&path).unwrap_err().to_string().contains("weight_0 is damaged"));
    for length in [0, 10, file.len() / 2, file.len() - 1] {
        std::fs::write(&path, &file[..length]).unwrap();
        assert!(check(&path).is_err(), "{length} bytes");
    }
}
