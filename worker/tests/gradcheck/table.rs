//! Loops over the table: shapes, values, gradients.

use crate::operands::{SEED, STEP, differentiable, distance, tensor};
use crate::oracle::oracle;
use enn_worker::autograd::{Cx, Tensor as Traced, call};
use enn_worker::functional as f;
use enn_worker::op::aten::{AtenArg, AtenCall, INSTEAD, SAME};
use enn_worker::op::row::Export;
use enn_worker::op::rows;
use enn_worker::op::sample::{Draw, Sample};
use enn_worker::params::{GradBuckets, ParamBuilder, Params};
use tch::{Device, Kind, Tensor};

fn no_params() -> (Params, GradBuckets) {
    let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
    let grads = GradBuckets::new(&params).unwrap();
    (params, grads)
}

/// Values of the differentiable results and gradients of Σ resultᵢ · weightᵢ.
struct Run {
    values: Vec<Tensor>,
    grads: Vec<Option<Tensor>>,
}

fn weights(values: &[Tensor]) -> Vec<Tensor> {
    values
        .iter()
        .map(|v| {
            (Tensor::arange(v.numel() as i64, (Kind::Double, Device::Cpu)) * 0.7 + 1.0)
                .sin()
                .view(v.size().as_slice())
                .to_kind(v.kind())
        })
        .collect()
}

fn ours(sample: &Sample, ins: &[Tensor]) -> Run {
    let (params, grads) = no_params();
    let cx = Cx::train(&params, SEED, STEP);
    let traced: Vec<Traced> = sample
        .ins
        .iter()
        .zip(ins)
        .map(|(o, t)| {
            if differentiable(o) && !is_target(sample, o) {
                cx.variable(t.shallow_clone())
            } else {
                cx.input(t.shallow_clone())
            }
        })
        .collect();
    let refs: Vec<&Traced> = traced.iter().collect();
    let outs = call(&cx, sample.op.clone(), &refs).unwrap();
    for out in &outs {
        assert_eq!(out.raw().size(), out.shape(), "shape rule of {}", sample.op.name());
        assert_eq!(out.raw().kind(), out.kind(), "kind rule of {}", sample.op.name());
    }
    let outs: Vec<Traced> = outs.into_iter().filter(Traced::requires_grad).collect();
    let values: Vec<Tensor> = outs.iter().map(|o| o.raw().copy()).collect();
    let mut total: Option<Traced> = None;
    for (out, weight) in outs.iter().zip(weights(&values)) {
        let weighted = f::mul(&cx, out, &cx.constant(weight)).unwrap();
        let part = f::sum_all(&cx, &weighted).unwrap();
        total = Some(match total {
            None => part,
            Some(sum) => f::add(&cx, &sum, &part).unwrap(),
        });
    }
    let grads = cx.backward_to(&total.unwrap(), &grads, &mut |_, _| Ok(()), &refs).unwrap();
    Run { values, grads }
}

/// Targets and masks of losses take no gradient.
fn is_target(sample: &Sample, operand: &enn_worker::op::sample::Operand) -> bool {
    sample.op.name().starts_with("masked_") && std::ptr::eq(operand, &sample.ins[1])
}

fn theirs(sample: &Sample, ins: &[Tensor]) -> Run {
    let leaves: Vec<Tensor> = sample
        .ins
        .iter()
        .zip(ins)
        .map(|(o, t)| t.detach().set_requires_grad(differentiable(o) && !is_target(sample, o)))
        .collect();
    let values = oracle(&sample.op, &leaves, SEED, STEP);
    let parts: Vec<Tensor> = values.iter().zip(weights(&values)).map(|(v, w)| (v * w).sum(None)).collect();
    let total = Tensor::stack(&parts, 0).sum(None);
    let asked: Vec<&Tensor> = leaves.iter().filter(|t| t.requires_grad()).collect();
    let mut found = Tensor::run_backward(&[total], &asked, false, false).into_iter();
    let grads = leaves.iter().map(|t| if t.requires_grad() { found.next() } else { None }).collect();
    Run { values: values.iter().map(Tensor::detach).collect(), grads }
}

fn samples() -> Vec<Sample> {
    let mut draw = Draw::new(11);
    rows().flat_map(|row| (row.samples)(&mut draw)).collect()
}

#[test]
fn every_operation_equals_libtorch_in_value_and_gradient() {
    tch::manual_seed(5);
    for kind in [Kind::Float, Kind::Double] {
        let tolerance = if kind == Kind::Float { 2e-5 } else { 1e-11 };
        for sample in samples() {
            let ins: Vec<Tensor> = sample.ins.iter().map(|o| tensor(o, kind)).collect();
            if sample.op.name() == "retention" && ins[0].size()[1] == 0 {
                continue; // The definition has no last position; covered by its own test.
            }
            let (ours, theirs) = (ours(&sample, &ins), theirs(&sample, &ins));
            assert_eq!(ours.values.len(), theirs.values.len(), "{sample:?}");
            for (a, b) in ours.values.iter().zip(&theirs.values) {
                assert!(distance(a, b) < tolerance, "value of {sample:?} {kind:?}: off by {}", distance(a, b));
            }
            for (i, (a, b)) in ours.grads.iter().zip(&theirs.grads).enumerate() {
                match (a, b) {
                    (Some(a), Some(b)) if b.defined() => {
                        assert!(
                            distance(a, b) < tolerance,
                            "gradient {i} of {sample:?} {kind:?}: off by {}",
                            distance(a, b)
                        );
                    }
                    (None, None) => {}
                    (None, Some(b)) if !b.defined() => {}
                    (a, b) => panic!("gradient {i} of {sample:?}: ours {}, theirs {}", a.is_some(), b.is_some()),
                }
            }
        }
    }
}

/// Σ resultᵢ · weightᵢ in f64, through our own forward pass.
fn objective(sample: &Sample, ins: &[Tensor]) -> f64 {
    let run = ours(sample, ins);
    run.values.iter().zip(weights(&run.values)).map(|(v, w)| (v * w).sum(Kind::Double).double_value(&[])).sum()
}

#[test]
fn every_gradient_equals_finite_differences_in_f64() {
    tch::manual_seed(6);
    const STEP_SIZE: f64 = 1e-5;
    const DIRECTIONS: usize = 3;
    for sample in samples() {
        let ins: Vec<Tensor> = sample.ins.iter().map(|o| tensor(o, Kind::Double)).collect();
        let run = ours(&sample, &ins);
        for (i, gradient) in run.grads.iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            if gradient.numel() == 0 {
                continue;
            }
            for _ in 0..DIRECTIONS {
                let direction = ins[i].randn_like();
                let at = |sign: f64| {
                    let mut moved: Vec<Tensor> = ins.iter().map(Tensor::shallow_clone).collect();
                    moved[i] = &ins[i] + &direction * (sign * STEP_SIZE);
                    objective(&sample, &moved)
                };
                let difference = (at(1.0) - at(-1.0)) / (2.0 * STEP_SIZE);
                let expected = (gradient * &direction).sum(Kind::Double).double_value(&[]);
                let off = (difference - expected).abs() / (1.0 + expected.abs());
                assert!(off < 1e-6, "gradient {i} of {sample:?}: {expected} but differences say {difference}");
            }
        }
    }
}

#[test]
fn every_row_is_whole() {
    let mut names: Vec<&str> = rows().map(|row| row.name).collect();
    let mut draw = Draw::new(3);
    for row in rows() {
        let samples = (row.samples)(&mut draw);
        assert_eq!(
            row.vjp.is_some() && !["cast", "fp8_linear"].contains(&row.name),
            !samples.is_empty(),
            "{}: differentiable rows have samples",
            row.name
        );
        for sample in &samples {
            assert!(std::ptr::eq(sample.op.row(), row), "{} is the row of its samples", row.name);
        }
        if let Export::No(no) = row.export {
            assert!(no.why.len() > 5, "{} says why it has no way out", row.name);
            hint_is_true(no.instead);
        }
    }
    names.sort_unstable();
    let before = names.len();
    names.dedup();
    assert_eq!(names.len(), before, "names are unique");
}

/// Fails unless a hint names only functions that are there.
fn hint_is_true(hint: &str) {
    let functions = include_str!("../../src/functional.rs");
    assert!(hint.len() > 5, "{hint:?} says something");
    for named in hint.split("functional::").skip(1) {
        let name = named.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let is_there = functions.contains(&format!("pub fn {name}(")) || functions.contains(&format!("    {name} => "));
        assert!(is_there, "{hint}: there is no functional::{name}");
    }
}

#[test]
fn what_is_nearest_to_an_operator_of_libtorch_is_there() {
    let mut names: Vec<&str> =
        SAME.into_iter().chain(INSTEAD.iter().flat_map(|(names, _)| names.iter().copied())).collect();
    SAME.iter().for_each(|name| hint_is_true(&format!("functional::{name}")));
    INSTEAD.iter().for_each(|(_, hint)| hint_is_true(hint));
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "each operator once");
    let of = |name: &str, overload: &str, args: Vec<AtenArg>| AtenCall::new(name, overload, args).unwrap();
    let sum = of("aten::cumsum", "", vec![AtenArg::Operand, AtenArg::Int(1), AtenArg::None]);
    assert_eq!(
        (sum.name(), sum.instead().unwrap().as_str()),
        ("aten::cumsum", "functional::matmul with a triangle of ones")
    );
    let relu = of("aten::relu_", "", vec![AtenArg::Operand]);
    assert_eq!(relu.instead().unwrap(), "functional::relu");
    assert_eq!(of("aten::lgamma", "", vec![AtenArg::Operand]).instead(), None);
}

#[test]
fn shape_rules_refuse_what_does_not_fit_and_say_where() {
    let (params, _) = no_params();
    let cx = Cx::eval(&params);
    let x = |shape: &[i64]| cx.input(Tensor::zeros(shape, (Kind::Float, Device::Cpu)));
    let ids = Tensor::zeros([2], (Kind::Float, Device::Cpu));
    let _block = cx.scope("fuser");
    let _inner = cx.scope("block.3");
    let errors = [
        f::linear(&cx, &x(&[2, 3]), &x(&[4, 5]), None).unwrap_err(),
        f::add(&cx, &x(&[2, 3]), &x(&[4])).unwrap_err(),
        f::matmul(&cx, &x(&[2, 3]), &x(&[2, 3])).unwrap_err(),
        f::reshape(&cx, &x(&[2, 3]), &[4, -1]).unwrap_err(),
        f::narrow(&cx, &x(&[2, 3]), 1, 2, 2).unwrap_err(),
        f::cat(&cx, &[&x(&[2, 3]), &x(&[3, 3])], 1).unwrap_err(),
        f::cat(&cx, &[], 1).unwrap_err(),
        f::embedding(&cx, &x(&[2, 3]), &cx.input(ids.shallow_clone())).unwrap_err(),
        f::softmax(&cx, &x(&[2, 3]), 2).unwrap_err(),
        f::squeeze(&cx, &x(&[2, 3]), 0).unwrap_err(),
        f::clamp(&cx, &x(&[2]), 1.0, 0.0).unwrap_err(),
        f::masked_mse(&cx, &x(&[2, 3]), &x(&[3]), &cx.input(ids.ge(0.0))).unwrap_err(),
        f::add(&cx, &x(&[2]), &cx.input(Tensor::zeros([2], (Kind::Double, Device::Cpu)))).unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("at fuser.block.3:"), "{error}");
    }
}
