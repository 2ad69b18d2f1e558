//! A small step under observation: the trace parses, its slices nest, and the table agrees with the program.

use super::timing::{Span, Spans};
use super::*;
use crate::autograd::{Cx, Tensor, call};
use crate::functional;
use crate::op::{
    self, Op,
    collective::Unasked,
    low_precision,
    row::Launch,
    rows,
    sample::{Fill, SampleRng},
};
use crate::params::{ParamBuilder, Params};
use enn_common::profile::{Ceiling, NumberKind, OpCost, Roofline};
use serde_json::Value;
use smallvec::smallvec;
use std::collections::BTreeSet;
use tch::{Kind, Tensor as Raw};

fn nothing() -> Params {
    ParamBuilder::new().build(0, Device::Cpu).unwrap()
}

fn observed(cx: &Cx<'_>) -> Tensor {
    let square = || cx.input(Raw::ones([32, 32], (Kind::Float, Device::Cpu)));
    let _layer = cx.scope("layer");
    let product = functional::matmul(cx, &square(), &square()).unwrap();
    let sum = functional::add(cx, &product, &square()).unwrap();
    cx.optim(|cx| functional::reshape(cx, &sum, &[1024]).unwrap())
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn slices_nest_and_the_table_agrees_with_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("profile");
    let profile = Profile::new(folder.clone(), 0, Device::Cpu);
    let params = nothing();
    let mut operations = 0;
    let mut flops = 0;
    for step in 0..10 {
        let observer = profile.next(step);
        assert_eq!(observer.is_some(), (5..8).contains(&step), "step {step}");
        let mut cx = Cx::train(&params, 0, step);
        if let Some(observer) = observer {
            cx.set_observer(observer);
        }
        observed(&cx);
        if let Some(observer) = observer {
            cx.with_program(|program| {
                observer.step(program);
                operations += program.recs().len();
                flops += program.flops();
            });
        }
    }
    let trace = read(&folder.join("trace-0.json"));
    let slices: Vec<&Value> = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X").collect();
    let of = |category: &str| slices.iter().filter(|slice| slice["cat"] == category).count();
    assert_eq!((of("op"), of("step"), of("phase")), (operations, 3, 6));
    let product = slices.iter().find(|slice| slice["name"] == "matmul").unwrap();
    assert_eq!(product["args"]["place"], "layer");
    assert_eq!(product["args"]["operands"][0], "Float[32, 32]");
    assert!(nested(&slices), "{slices:?}");

    let table: Roofline = serde_json::from_value(read(&folder.join(ROOFLINE_JSON))).unwrap();
    assert_eq!(table.steps, 3);
    assert_eq!(table.ops.iter().map(|op| op.calls).sum::<u64>(), operations as u64);
    assert_eq!(table.ops.iter().map(|op| op.flops).sum::<u64>(), flops);
    let product = table.ops.iter().find(|op| op.op == "matmul").unwrap();
    assert_eq!(product.bytes, 3 * 3 * 32 * 32 * 4);
    assert!(product.seconds > 0.0 && table.ceiling.bytes_per_s > 0.0);
    assert!(table.ceiling.flops_per_s[&NumberKind::F32] > 0.0);
}

/// Whether slices of a track lie within or beside each other.
fn nested(slices: &[&Value]) -> bool {
    let number = |slice: &Value, key: &str| slice[key].as_f64().unwrap();
    let mut open: Vec<f64> = Vec::new();
    let mut spans: Vec<(f64, f64)> =
        slices.iter().map(|slice| (number(slice, "ts"), number(slice, "ts") + number(slice, "dur"))).collect();
    spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    spans.into_iter().all(|(begin, end)| {
        // Nanoseconds as microseconds with a fraction: sums round.
        const ROUNDING: f64 = 1e-3;
        open.retain(|outer| *outer > begin + ROUNDING);
        let inside = open.last().is_none_or(|outer| end <= outer + ROUNDING);
        open.push(end);
        inside
    })
}

#[test]
fn a_run_without_timed_steps_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let profile = Profile::new(dir.path().join("profile"), 0, Device::Cpu);
    assert!(profile.next(0).is_none());
    profile.finish();
    assert!(!dir.path().join("profile").exists());
}

/// Times of a program's records: one a microsecond, each of which takes half of it.
fn spans(program: &Program) -> Vec<Spans> {
    let host = |at: usize| Span { begin: 1000 * at as u64, end: 1000 * at as u64 + 500 };
    (0..program.recs().len()).map(|at| Spans { host: host(at), device: None }).collect()
}

/// What these operations cost.
fn costs(compute: impl FnOnce(&Cx<'_>)) -> Vec<OpCost> {
    let params = nothing();
    let cx = Cx::train(&params, 0, 0);
    compute(&cx);
    let mut costs = OpCosts::default();
    cx.with_program(|program| costs.add(program, &spans(program)));
    costs.table(Device::Cpu, Ceiling { flops_per_s: [].into(), bytes_per_s: 1.0 }).ops
}

fn run(cx: &Cx<'_>, op: impl Into<Op>, ins: &[&Tensor]) -> Vec<Tensor> {
    call(cx, op, ins).unwrap().into_iter().collect()
}

#[test]
fn what_moves_memory_counts_its_bytes_and_views_count_none() {
    let costs = costs(|cx| {
        let floats = |shape: &[i64]| cx.input(Raw::ones(shape, (Kind::Float, Device::Cpu)));
        let table = floats(&[100, 4]);
        let ids = cx.input(Raw::zeros([3], (Kind::Int64, Device::Cpu)));
        run(cx, op::Embedding, &[&table, &ids]);
        run(cx, op::IndexSelect { axis: 0 }, &[&table, &ids]);
        run(cx, op::Cast { to: Kind::BFloat16 }, &[&table]);
        run(cx, op::Cat { axis: 0 }, &[&table, &floats(&[1, 4])]);
        run(cx, op::Flip { axis: 1 }, &[&table]);
        run(cx, op::Dilate { segment: 2, dilation: 1 }, &[&floats(&[1, 4, 1, 2])]);
        run(cx, op::Zeros { shape: smallvec![5], kind: Kind::Float, device: Device::Cpu }, &[]);
        run(cx, op::GradAdd, &[&floats(&[7]), &floats(&[7])]);
        run(cx, op::Restore, &[&floats(&[6]), &floats(&[6])]);
        run(cx, op::Zero, &[&floats(&[8])]);
        run(cx, op::Permute { axes: smallvec![1, 0] }, &[&table]);
        run(cx, op::Narrow { axis: 0, start: 1, len: 2 }, &[&table]);
        run(cx, op::Split { axis: 0, sizes: smallvec![60, 40] }, &[&table]);
        run(cx, op::Detach, &[&table]);
    });
    let expected = [
        // Rows read and written, and their numbers: the table is larger.
        ("embedding", 2 * 48 + 24),
        ("index_select", 2 * 48 + 24),
        ("cast", 1600 + 800),
        ("cat", 1600 + 16 + 1616),
        ("flip", 2 * 1600),
        ("dilate", 2 * 32),
        ("zeros", 20),
        ("grad_add", 3 * 28),
        // Written, not read.
        ("place", 2 * 24),
        ("zero", 32),
        ("permute", 0),
        ("narrow", 0),
        ("split", 0),
        ("detach", 0),
    ];
    for (name, bytes) in expected {
        let cost = costs.iter().find(|cost| cost.op == name).unwrap();
        assert_eq!(cost.bytes, bytes, "{name}");
    }
    assert_eq!(costs.len(), expected.len());
}

#[test]
fn views_are_what_libtorch_answers_without_a_copy() {
    let place = |tensor: &Raw| tensor.data_ptr() as usize;
    let fill = |fill: Fill, shape: &[i64]| match fill {
        Fill::Ids(_) | Fill::Key => Raw::zeros(shape, (Kind::Int64, Device::Cpu)),
        Fill::Bool => Raw::ones(shape, (Kind::Bool, Device::Cpu)),
        Fill::Normal | Fill::Between(..) => Raw::ones(shape, (Kind::Float, Device::Cpu)),
    };
    let mut draw = SampleRng::new(5);
    for sample in rows().flat_map(|row| (row.samples)(&mut draw)) {
        let empty = sample.ins.iter().any(|operand| operand.shape.contains(&0));
        if empty || matches!(sample.op, Op::Reshape(_)) {
            continue;
        }
        let ins: Vec<Raw> = sample.ins.iter().map(|operand| fill(operand.fill, &operand.shape)).collect();
        let operands: Vec<&Raw> = ins.iter().collect();
        let made = tch::no_grad(|| (sample.op.row().launch)(&sample.op, &Launch { ins: &operands })).unwrap();
        let Some(made) = made.iter().find(|made| made.numel() > 0) else { continue };
        let inside = |whole: &Raw| {
            let bytes = whole.numel() * whole.kind().elt_size_in_bytes();
            (place(whole)..place(whole) + bytes).contains(&place(made))
        };
        assert_eq!(sample.op.row().is_view, ins.iter().any(inside), "{:?}", sample.op);
    }
}

#[test]
fn costs_are_kept_apart_by_the_kind_of_the_operands() {
    let costs = costs(|cx| {
        let square = |kind| cx.input(Raw::ones([16, 16], (Kind::Float, Device::Cpu)).to_kind(kind));
        for kind in [Kind::Float, Kind::BFloat16, Kind::Double] {
            run(cx, op::MatMul { ta: false, tb: false }, &[&square(kind), &square(kind)]);
        }
        let made = run(cx, op::Quantize { to: low_precision::FORWARD }, &[&square(Kind::Float)]);
        let op = Op::ScaledMm(op::ScaledMm { out: Kind::Float, bias: false, fast: false });
        run(cx, op, &[&made[0], &made[0], &made[2], &made[2]]);
    });
    let kinds = |name: &str| -> BTreeSet<NumberKind> {
        costs.iter().filter(|cost| cost.op == name).map(|cost| cost.kind).collect()
    };
    assert_eq!(kinds("matmul"), BTreeSet::from([NumberKind::F32, NumberKind::Bf16, NumberKind::F64]));
    assert_eq!(kinds("quantize"), BTreeSet::from([NumberKind::F32]));
    assert_eq!(kinds("scaled_mm"), BTreeSet::from([NumberKind::Fp8]));
}

#[test]
fn a_cpu_is_measured_in_f32_whatever_was_computed_with() {
    let kinds = BTreeSet::from([NumberKind::F32, NumberKind::Bf16, NumberKind::Fp8]);
    let ceiling = ceiling::measure(Device::Cpu, &kinds).unwrap();
    assert_eq!(ceiling.flops_per_s.keys().collect::<Vec<_>>(), [&NumberKind::F32]);
    assert_eq!(ceiling.products(NumberKind::Bf16).unwrap().0, NumberKind::F32);
}

#[test]
fn every_collective_is_in_flight_until_something_waits_for_it() {
    let params = nothing();
    let mut cx = Cx::train(&params, 0, 0);
    cx.set_collectives(&Unasked(2));
    let array = cx.input(Raw::ones([2], (Kind::Float, Device::Cpu)));
    let begun = |op: Op| run(&cx, op, &[&array]);
    begun(op::ReduceScatter.into());
    begun(op::AllReduceShares.into());
    run(&cx, op::Order, &[]);
    begun(op::AllReduceCopies.into());
    begun(op::AllGather.into());
    run(&cx, op::Order, &[]);
    begun(op::AllReduce.into());
    run(&cx, op::AllReduceWait, &[]);
    let mut trace = Trace::new(0);
    cx.with_program(|program| trace.add(0, program, &spans(program)));
    let trace = trace.json();
    let slices: Vec<&Value> =
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["cat"] == "collective").collect();
    let found: Vec<(&str, f64, f64)> = slices
        .iter()
        .map(|s| (s["name"].as_str().unwrap(), s["ts"].as_f64().unwrap(), s["dur"].as_f64().unwrap()))
        .collect();
    let expected = [
        ("reduce_scatter", 0.0, 2.5),
        ("all_reduce_shares", 1.0, 1.5),
        ("all_gather", 4.0, 1.5),
        // An order leaves sums over copies to the wait.
        ("all_reduce_copies", 3.0, 4.5),
        ("all_reduce", 6.0, 1.5),
    ];
    assert_eq!(found, expected);
    assert!(nested(&slices), "{slices:?}");
}
