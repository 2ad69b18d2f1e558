//! A small step under observation: the trace parses, its slices nest, and the table agrees with the program.

use super::*;
use crate::autograd::{Cx, Tensor};
use crate::functional;
use crate::params::{ParamBuilder, Params};
use enn_common::profile::Roofline;
use serde_json::Value;
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
    let (mut operations, mut flops) = (0, 0);
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
    assert!(product.seconds > 0.0 && table.ceiling.flops_per_s > 0.0 && table.ceiling.bytes_per_s > 0.0);
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
