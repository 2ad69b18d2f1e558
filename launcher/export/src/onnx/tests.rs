//! What can be said of a written file without a runtime; the conformance check `export_onnx` runs the samples.

use super::*;
use crate::{Batch, sample::samples};
use enn_common::graph::{DType, Dim, Graph, Id, Known, Op};
use std::{collections::BTreeMap, fs, path::Path};

/// The messages, or strings, of one field.
fn each(mut bytes: &[u8], wanted: u64) -> Vec<&[u8]> {
    fn number(bytes: &mut &[u8]) -> u64 {
        let end = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap();
        let (digits, rest) = bytes.split_at(end + 1);
        *bytes = rest;
        digits.iter().rev().fold(0, |sum, byte| sum << 7 | u64::from(byte & 0x7f))
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = number(&mut bytes);
        let length = match key & 7 {
            0 => {
                number(&mut bytes);
                0
            }
            5 => 4,
            _ => number(&mut bytes) as usize,
        };
        let (field, rest) = bytes.split_at(length);
        bytes = rest;
        if key == wanted << 3 | 2 {
            found.push(field);
        }
    }
    found
}

fn texts(bytes: &[u8], wanted: u64) -> Vec<&str> {
    each(bytes, wanted).into_iter().map(|text| std::str::from_utf8(text).unwrap()).collect()
}

fn written(graph: &Graph, path: &Path, file_bytes_max: u64) -> Result<Vec<PathBuf>, ExportError> {
    let about = BTreeMap::from([("enn.run".to_owned(), "weather".to_owned())]);
    write_within(&Model { name: "m", graph, batch: Batch::default(), about: &about }, path, file_bytes_max)
}

/// The bytes of a graph's file.
fn bytes_of(graph: &Graph) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    assert_eq!(written(graph, &path, FILE_BYTES_MAX).unwrap(), [path.as_path()]);
    fs::read(path).unwrap()
}

fn matrix(graph: &mut Graph, name: &str, [rows, columns]: [u64; 2]) -> Id {
    let bytes: Vec<u8> = (0..rows * columns).flat_map(|value| (value as f32).to_le_bytes()).collect();
    graph.known(name, DType::F32, &[rows, columns], Known::Parameter, bytes).unwrap()
}

/// x (B, 2, 3) and y (B, 3) through the linears of a weight.
fn linears(of_rows: bool) -> (Graph, Id) {
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(2), Dim::Fixed(3)]);
    let y = g.input("y", DType::F32, vec![Dim::BATCH, Dim::Fixed(3)]);
    let w = matrix(&mut g, "head.weight", [5, 3]);
    for (x, name) in [(x, "first"), (x, "second"), (y, "third")] {
        if x != y && of_rows {
            continue;
        }
        let out = g.node(Op::Linear, &[x, w], "fuser.head").unwrap();
        g.output(out, name);
    }
    (g, w)
}

#[test]
fn equal_graphs_give_equal_bytes_and_names_are_unique() {
    for sample in samples() {
        let bytes = bytes_of(&sample.graph);
        assert_eq!(bytes, bytes_of(&sample.graph), "{}", sample.name);
        let graph = each(&bytes, 7)[0];
        let nodes: Vec<&str> = each(graph, 1).iter().flat_map(|node| texts(node, 3)).collect();
        let made = each(graph, 1).into_iter().flat_map(|node| texts(node, 2));
        let known = each(graph, 5).into_iter().flat_map(|tensor| texts(tensor, 8));
        let given = each(graph, 11).into_iter().flat_map(|port| texts(port, 1));
        let values: Vec<&str> = made.chain(known).chain(given).collect();
        for names in [nodes, values] {
            let mut unique = names.clone();
            unique.sort_unstable();
            unique.dedup();
            assert_eq!(unique.len(), names.len(), "{}: {names:?}", sample.name);
        }
    }
}

#[test]
fn nodes_are_called_by_place_and_the_file_says_what_it_is() {
    let bytes = bytes_of(&linears(false).0);
    let graph = each(&bytes, 7)[0];
    let names: Vec<&str> = each(graph, 1).iter().flat_map(|node| texts(node, 3)).collect();
    assert_eq!(names, ["fuser.head.linear_0", "fuser.head.linear_1", "fuser.head.linear_2"]);
    assert_eq!(texts(each(&bytes, 14)[0], 1), ["enn.run"]);
    assert_eq!(texts(each(&bytes, 14)[0], 2), ["weather"]);
    assert_eq!(texts(&bytes, 2), ["enn"]);
}

#[test]
fn a_weight_is_stored_once_whoever_reads_it() {
    let stored = |graph: &Graph| -> Vec<(String, usize)> {
        let bytes = bytes_of(graph);
        let tensors = each(each(&bytes, 7)[0], 5);
        tensors.iter().map(|tensor| (texts(tensor, 8)[0].to_owned(), each(tensor, 9)[0].len())).collect()
    };
    // Three axes need it transposed, and two do not mind.
    assert_eq!(stored(&linears(false).0), [("head.weight.T".to_owned(), 60)]);
    assert_eq!(stored(&linears(true).0), [("head.weight".to_owned(), 60)]);
    // Somebody else needs it as it is.
    let (mut g, w) = linears(false);
    let row = g.integers(&[], &[1]).unwrap();
    let row = g.node(Op::Gather { axis: 0 }, &[w, row], "").unwrap();
    g.output(row, "row");
    let names: Vec<String> = stored(&g).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["head.weight", g.value(g.nodes()[3].ins[1]).name.as_str()]);
}

#[test]
fn a_transposed_weight_has_its_elements_where_they_belong() {
    let bytes = bytes_of(&linears(false).0);
    let raw = each(each(each(&bytes, 7)[0], 5)[0], 9)[0];
    let values: Vec<f32> = raw.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let expected: Vec<f32> = (0..3).flat_map(|i| (0..5).map(move |o| (o * 3 + i) as f32)).collect();
    assert_eq!(values, expected);
}

#[test]
fn beyond_the_limit_tensors_lie_beside_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    fs::write(&path, "an older one").unwrap();
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(17)]);
    let a = matrix(&mut g, "a", [17, 17]);
    let b = matrix(&mut g, "b", [17, 17]);
    let small = g.floats(&[17], &[1.0; 17]).unwrap();
    let y = g.node(Op::Linear, &[x, a, small], "").unwrap();
    let y = g.node(Op::Linear, &[y, b], "").unwrap();
    g.output(y, "y");
    let files = written(&g, &path, 1000).unwrap();
    let data = files[1].clone();
    assert_eq!((files.as_slice(), data_files(&path).unwrap()), (&[path.clone(), data.clone()][..], vec![data.clone()]));
    let name = data.file_name().unwrap().to_str().unwrap();
    let bytes = fs::read(&path).unwrap();
    let tensors = each(each(&bytes, 7)[0], 5);
    let tensors: BTreeMap<&str, &[u8]> = tensors.into_iter().map(|tensor| (texts(tensor, 8)[0], tensor)).collect();
    let place =
        |name: &str| -> Vec<&str> { each(tensors[name], 13).into_iter().flat_map(|entry| texts(entry, 2)).collect() };
    let matrix_bytes = 17 * 17 * 4;
    let second = (matrix_bytes as u64).next_multiple_of(64);
    assert_eq!(place("a"), [name, "0", &matrix_bytes.to_string()]);
    assert_eq!(place("b"), [name, &second.to_string(), &matrix_bytes.to_string()]);
    assert_eq!(each(tensors[g.value(small).name.as_str()], 9)[0].len(), 68);
    assert_eq!(name, format!("m.onnx.{}.data", &blake3::hash(&fs::read(&data).unwrap()).to_hex()[..16]));
    let data = fs::read(data).unwrap();
    assert_eq!(data.len() as u64, second + matrix_bytes as u64);
    assert_eq!(data[..matrix_bytes], *g.value(a).data.as_ref().unwrap().bytes);
    assert_eq!(data[second as usize..], *g.value(b).data.as_ref().unwrap().bytes);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn what_cannot_be_written_leaves_nothing() {
    let refused = |graph: &Graph| {
        let dir = tempfile::tempdir().unwrap();
        let said = written(graph, &dir.path().join("m.onnx"), FILE_BYTES_MAX).unwrap_err().to_string();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        said
    };
    let mut g = Graph::new();
    let one = g.number(1.0);
    let rows = g.node(Op::Expand { shape: vec![Dim::BATCH] }, &[one], "fuser.latents").unwrap();
    g.output(rows, "y");
    let said = refused(&g);
    assert!(
        said.starts_with("onnx: no way to write expand at fuser.latents: no input has the batch\nhint: "),
        "{said}"
    );

    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(0)]);
    let y = g.node(Op::Reshape { shape: vec![Dim::BATCH, Dim::Fixed(0), Dim::ONE] }, &[x], "m").unwrap();
    g.output(y, "y");
    assert!(refused(&g).contains("no elements"));

    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::BATCH]);
    let y = g.node(Op::Softmax, &[x], "m").unwrap();
    g.output(y, "x");
    assert_eq!(refused(&g), "the graph's value x: expected a name of its own");

    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::BATCH]);
    let y = g.node(Op::Softmax, &[x], "m").unwrap();
    g.output(y, "y");
    g.output(y, "y");
    assert_eq!(refused(&g), "the graph's output y: expected one that is answered once");
}

#[test]
fn what_is_read_in_slices_is_a_product_of_its_own_for_each() {
    let cut = |also: bool, shapes: &[u64]| {
        let mut g = Graph::new();
        let shape = std::iter::once(Dim::BATCH).chain(shapes.iter().map(|size| Dim::Fixed(*size))).collect();
        let x = g.input("x", DType::F32, shape);
        let w = matrix(&mut g, "w", [5, 3]);
        let b = g.floats(&[5], &[0.0, 1.0, 2.0, 3.0, 4.0]).unwrap();
        let product = g.node(Op::Linear, &[x, w, b], "m").unwrap();
        for (start, len) in [(3, 2), (0, 3)] {
            let slice = g.node(Op::Slice { axis: shapes.len(), start, len }, &[product], "m").unwrap();
            g.output(slice, &format!("from_{start}"));
        }
        if also {
            g.output(product, "whole");
        }
        let bytes = bytes_of(&g);
        let graph = each(&bytes, 7)[0];
        let ops: Vec<String> = each(graph, 1).iter().map(|node| texts(node, 4)[0].to_owned()).collect();
        let tensors: Vec<(String, Vec<f32>)> = each(graph, 5)
            .into_iter()
            .map(|tensor| {
                let values = each(tensor, 9)[0].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                (texts(tensor, 8)[0].to_owned(), values)
            })
            .collect();
        (ops, tensors)
    };
    let (ops, tensors) = cut(false, &[2, 3]);
    assert_eq!(ops, ["MatMul", "Add", "MatMul", "Add"]);
    let find = |tensors: &[(String, Vec<f32>)], name: &str| {
        tensors.iter().find(|(found, _)| found == name).unwrap_or_else(|| panic!("{name}: {tensors:?}")).1.clone()
    };
    assert_eq!(find(&tensors, "w.T[3:5]"), [9.0, 12.0, 10.0, 13.0, 11.0, 14.0]);
    assert_eq!(find(&tensors, "w.T[0:3]"), [0.0, 3.0, 6.0, 1.0, 4.0, 7.0, 2.0, 5.0, 8.0]);
    assert_eq!(tensors.len(), 4, "and two of the bias");
    let (ops, tensors) = cut(false, &[3]);
    assert_eq!(ops, ["Gemm", "Gemm"]);
    assert_eq!(find(&tensors, "w[3:5]"), [9.0, 10.0, 11.0, 12.0, 13.0, 14.0]);
    assert_eq!(cut(true, &[3]).0, ["Gemm", "Slice", "Slice"], "the whole is answered, too");
}
