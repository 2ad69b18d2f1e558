use super::*;
use crate::{
    Batch,
    sample::{edges, samples},
};
use builtin as op;
use enn_common::graph::{Binary, Dim, Known, Op};
use std::{collections::BTreeMap, fs, sync::Arc};

fn model<'a>(graph: &'a Graph, about: &'a BTreeMap<String, String>) -> Model<'a> {
    Model { name: "weather", graph, batch: Batch::default(), about }
}

/// Tables of a flatbuffer, read.
struct Flat<'a>(&'a [u8]);

impl Flat<'_> {
    fn number(&self, at: usize) -> usize {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap()) as usize
    }

    /// Where a field of a table stands.
    fn field(&self, table: usize, number: usize) -> Option<usize> {
        let slots = table.wrapping_add_signed(-(self.number(table) as i32 as isize));
        let short = |at: usize| usize::from(u16::from_le_bytes([self.0[at], self.0[at + 1]]));
        let at = slots + 4 + 2 * number;
        (at < slots + short(slots)).then(|| short(at)).filter(|place| *place > 0).map(|place| table + place)
    }

    /// What a field that points points to.
    fn follow(&self, table: usize, number: usize) -> Option<usize> {
        self.field(table, number).map(|at| at + self.number(at))
    }

    fn tables(&self, table: usize, number: usize) -> Vec<usize> {
        let list = self.follow(table, number).unwrap();
        (1..=self.number(list)).map(|i| list + 4 * i).map(|at| at + self.number(at)).collect()
    }

    fn bytes(&self, table: usize, number: usize) -> &[u8] {
        let list = self.follow(table, number).unwrap();
        &self.0[list + 4..][..self.number(list)]
    }
}

#[test]
fn every_sample_is_written_the_same_twice_and_its_bytes_are_aligned() {
    let about = BTreeMap::from([("enn.run".to_owned(), "weather-1".to_owned())]);
    for sample in samples().iter().chain(&edges()).filter(|sample| !sample.name.ends_with("7 axes")) {
        let file = bytes(&model(&sample.graph, &about)).unwrap_or_else(|error| panic!("{}: {error}", sample.name));
        assert_eq!(bytes(&model(&sample.graph, &about)).unwrap(), file, "{}", sample.name);
        assert_eq!(&file[4..8], b"TFL3");
        let flat = Flat(&file);
        let root = flat.number(0);
        let buffers = flat.tables(root, 4);
        for data in buffers.iter().filter_map(|buffer| flat.follow(*buffer, 0)) {
            assert_eq!((data + 4) % 16, 0, "{}", sample.name);
        }
        let metadata = flat.tables(root, 6)[0];
        assert_eq!(flat.bytes(metadata, 0), ABOUT.as_bytes());
        let told = buffers[flat.number(flat.field(metadata, 1).unwrap())];
        assert_eq!(serde_json::from_slice::<BTreeMap<String, String>>(flat.bytes(told, 0)).unwrap(), about);
    }
}

#[test]
fn no_shape_depends_on_what_is_computed() {
    for sample in samples().iter().chain(&edges()).filter(|sample| !sample.name.ends_with("7 axes")) {
        let mut emitter = LiteRtEmitter::new(&sample.graph);
        sample.graph.nodes().iter().for_each(|node| emitter.node(node).unwrap());
        for operator in &emitter.draft.operators {
            let by_value = [op::RESHAPE, op::STRIDED_SLICE, op::TRANSPOSE, op::SUM, op::MEAN, op::REDUCE_MAX];
            if by_value.contains(&operator.op) {
                let known = |at: &i32| emitter.draft.tensors[*at as usize].data.is_some();
                assert!(operator.ins[1..].iter().all(known), "{}: {operator:?}", sample.name);
            }
        }
    }
}

#[test]
fn integers_are_narrowed_and_told_of() {
    let ids = edges().into_iter().find(|sample| sample.name.contains("ids")).unwrap();
    assert_eq!(changed(&ids.graph), [("ids", "i64", "i32")]);
    assert!(changed(&samples()[0].graph).is_empty());
    let mut g = Graph::new();
    let x = g.input("ids", DType::I64, vec![Dim::BATCH]);
    let large = g.known("offset", DType::I64, &[], Known::Buffer, (1_i64 << 40).to_le_bytes()).unwrap();
    let y = g.node(Op::Binary(Binary::Add), &[x, large], "m").unwrap();
    g.output(y, "y");
    let error = bytes(&model(&g, &BTreeMap::new())).unwrap_err().to_string();
    let said =
        "litert: no way to write add at m: its operand offset holds 1099511627776, which does not fit into 32 bits";
    assert!(error.starts_with(said), "{error}");
}

#[test]
fn half_precision_is_stored_so_and_computed_in_single() {
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(2)]);
    for (to, bytes) in [
        (DType::F16, [half::f16::from_f32(1.5), half::f16::from_f32(-2.0)].map(half::f16::to_le_bytes)),
        (DType::Bf16, [half::bf16::from_f32(1.5), half::bf16::from_f32(-2.0)].map(half::bf16::to_le_bytes)),
    ] {
        let known = g.known(to.name(), to, &[2], Known::Buffer, bytes.concat()).unwrap();
        let half = g.node(Op::Cast { to }, &[x], "m").unwrap();
        let sum = g.node(Op::Binary(Binary::Add), &[half, known], "m").unwrap();
        g.output(sum, &format!("{} sum", to.name()));
    }
    assert_eq!(changed(&g), [("f16 sum", "f16", "f32"), ("bf16 sum", "bf16", "f32")]);
    let mut emitter = LiteRtEmitter::new(&g);
    g.nodes().iter().for_each(|node| emitter.node(node).unwrap());
    let single: Vec<u8> = [1.5_f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let half: Vec<u8> = [1.5, -2.0].map(half::f16::from_f32).iter().flat_map(|v| v.to_le_bytes()).collect();
    // There is no bf16.
    for (name, kind, bytes) in [("f16", flat::TensorKind::Float16, &half), ("bf16", flat::TensorKind::Float32, &single)]
    {
        let tensor = emitter.draft.tensors.iter().find(|tensor| tensor.name == name).unwrap();
        assert_eq!((tensor.kind, tensor.data.as_deref()), (kind, Some(&bytes[..])));
    }
    // From single to half is no operation then.
    let ops: Vec<_> = emitter.draft.operators.iter().map(|operator| (operator.op, operator.version)).collect();
    assert_eq!(ops, [(op::DEQUANTIZE, 3), (op::ADD, 1), (op::ADD, 1)]);
}

#[test]
fn what_is_refused_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.tflite");
    let about = BTreeMap::new();
    let deep = edges().into_iter().find(|sample| sample.name == "fold of 7 axes").unwrap();
    let error = write(&model(&deep.graph, &about), &path).unwrap_err().to_string();
    assert!(
        error.starts_with("litert: no way to write sum at m: it works on 7 axes, and LiteRT's kernels take 6\nhint: one reduction after the other"),
        "{error}"
    );
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(4096)]);
    // One piece of memory, known by many names.
    let piece: Arc<[u8]> = vec![0; 4096 * 4096 * 4].into();
    let mut y = x;
    for layer in 0..32 {
        let w = g.known(&format!("{layer}"), DType::F32, &[4096, 4096], Known::Parameter, piece.clone()).unwrap();
        y = g.node(Op::Linear, &[y, w], "deep").unwrap();
    }
    g.output(y, "y");
    let error = write(&model(&g, &about), &path).unwrap_err().to_string();
    assert!(
        error.starts_with("litert: no way to write weights at weather") && error.contains("hint: export to onnx"),
        "{error}"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
