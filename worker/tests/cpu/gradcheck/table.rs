//! Loops over the table: shapes, values, gradients.

use crate::draws::normal;
use crate::gradcheck::calls::must_be_defined;
use crate::gradcheck::operands::{SEED, STEP, distance, tensor};
use crate::gradcheck::oracle::oracle;
use crate::gradcheck::ours::{Checked, Run, asks, no_params, ours, weights};
use enn_worker::autograd::Cx;
use enn_worker::functional as f;
use enn_worker::kernel::{FirstFit, Launcher, Reference};
use enn_worker::op::aten::{AtenArg, AtenCall, INSTEAD, SAME};
use enn_worker::op::row::Export;
use enn_worker::op::rows;
use enn_worker::op::sample::{Sample, SampleRng};
use tch::{Device, Kind, Tensor};

/// Rows whose samples have no operand that could be empty or not contiguous, and why.
const WITHOUT_OPERANDS: [(&str, &str); 2] = [("zeros", "made of its attributes"), ("ones", "made of its attributes")];

/// Values and gradients by the oracle's definition. An operation without one is defined a second time by its lowering, which `export` checks,
/// and its gradients are compared with finite differences.
fn theirs(sample: &Sample, ins: &[Tensor]) -> Option<Run> {
    let flows = sample.op.row().vjp.is_some();
    let leaves: Vec<Tensor> =
        sample.ins.iter().zip(ins).map(|(o, t)| t.detach().set_requires_grad(flows && asks(sample, o))).collect();
    let Some(values) = oracle(&sample.op, &leaves, SEED, STEP) else {
        let row = sample.op.row();
        assert!(!must_be_defined(&sample.op), "{} has no definition in the oracle", row.name);
        assert!(matches!(row.export, Export::As(_)), "{} has neither an oracle nor a lowering", row.name);
        return None;
    };
    let asked: Vec<&Tensor> = leaves.iter().filter(|t| t.requires_grad()).collect();
    let mut found = Vec::new().into_iter();
    if !asked.is_empty() {
        let parts: Vec<Tensor> = values.iter().zip(weights(&values)).map(|(v, w)| (v * w).sum(None)).collect();
        let total = Tensor::stack(&parts, 0).sum(None);
        found = Tensor::run_backward(&[total], &asked, false, false).into_iter();
    }
    let grads = leaves.iter().map(|t| if t.requires_grad() { found.next() } else { None }).collect();
    Some(Run { values: values.iter().map(Tensor::detach).collect(), grads })
}

fn samples() -> Vec<Sample> {
    let mut draw = SampleRng::new(11);
    rows().flat_map(|row| (row.samples)(&mut draw)).collect()
}

/// Fails where values or gradients differ.
fn compare(sample: &Sample, kind: Kind, ours: &Run, theirs: &Run) {
    // Code for AddressSanitizer rounds elsewhere.
    let single = if option_env!("ENN_ASAN").is_some() { 5e-5 } else { 2e-5 };
    let tolerance = if kind == Kind::Float { single } else { 1e-11 };
    assert_eq!(ours.values.len(), theirs.values.len(), "{sample:?}");
    for (a, b) in ours.values.iter().zip(&theirs.values) {
        assert_eq!(a.kind(), b.kind(), "{sample:?}");
        assert!(distance(a, b) < tolerance, "value of {sample:?} {kind:?}: off by {}", distance(a, b));
    }
    for (i, (a, b)) in ours.grads.iter().zip(&theirs.grads).enumerate() {
        match (a, b) {
            (Some(a), Some(b)) if b.defined() => {
                assert!(distance(a, b) < tolerance, "gradient {i} of {sample:?} {kind:?}: off by {}", distance(a, b));
            }
            (None, None) => {}
            (None, Some(b)) if !b.defined() => {}
            (a, b) => panic!("gradient {i} of {sample:?}: ours {}, theirs {}", a.is_some(), b.is_some()),
        }
    }
}

#[test]
fn every_operation_equals_libtorch_in_value_and_gradient() {
    for kind in [Kind::Float, Kind::Double] {
        for sample in samples() {
            let ins: Vec<Tensor> = sample.ins.iter().map(|o| tensor(o, kind)).collect();
            let Some(theirs) = theirs(&sample, &ins) else { continue };
            for launcher in [&FirstFit as &dyn Launcher, &Reference] {
                compare(&sample, kind, &ours(&sample, &ins, &Checked::new(launcher)), &theirs);
            }
        }
    }
}

/// In 16 bits as they come, without autocast, which would make f32 of many.
#[test]
fn every_shape_rule_says_what_is_made_in_low_precision() {
    for kind in [Kind::BFloat16, Kind::Half] {
        for sample in samples() {
            let ins: Vec<Tensor> = sample.ins.iter().map(|o| tensor(o, kind)).collect();
            for launcher in [&FirstFit as &dyn Launcher, &Reference] {
                ours(&sample, &ins, &Checked::new(launcher));
            }
        }
    }
}

#[test]
fn every_row_has_samples_that_are_empty_and_that_are_not_contiguous() {
    let mut draw = SampleRng::new(11);
    for row in rows() {
        let samples = (row.samples)(&mut draw);
        let ins: Vec<Tensor> = samples.iter().flat_map(|s| &s.ins).map(|o| tensor(o, Kind::Float)).collect();
        let exempt = WITHOUT_OPERANDS.iter().any(|(name, _)| *name == row.name);
        assert!(!exempt || ins.is_empty(), "{} has operands", row.name);
        if samples.is_empty() || exempt {
            continue;
        }
        assert!(ins.iter().any(|t| t.numel() == 0), "{} has an empty sample", row.name);
        assert!(ins.iter().any(|t| t.numel() > 0 && !t.is_contiguous()), "{} has a sample that is strided", row.name);
    }
}

/// Σ resultᵢ · weightᵢ in f64, through our own forward pass.
fn objective(sample: &Sample, ins: &[Tensor]) -> f64 {
    let run = ours(sample, ins, &Checked::new(&FirstFit));
    run.values.iter().zip(weights(&run.values)).map(|(v, w)| (v * w).sum(Kind::Double).double_value(&[])).sum()
}

#[test]
fn every_gradient_equals_finite_differences_in_f64() {
    const STEP_SIZE: f64 = 1e-5;
    const DIRECTIONS: usize = 3;
    for sample in samples() {
        let ins: Vec<Tensor> = sample.ins.iter().map(|o| tensor(o, Kind::Double)).collect();
        let run = ours(&sample, &ins, &Checked::new(&FirstFit));
        for (i, gradient) in run.grads.iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            if gradient.numel() == 0 {
                continue;
            }
            for _ in 0..DIRECTIONS {
                let direction = normal(&ins[i].size());
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
    let mut draw = SampleRng::new(3);
    for row in rows() {
        let samples = (row.samples)(&mut draw);
        let is_forward = row.vjp.is_some() || matches!(row.export, Export::As(_));
        // Operands of an 8-bit layer are what another operation makes: it is among the calls of `calls.rs`.
        let has_samples = is_forward && row.name != "fp8_linear";
        assert_eq!(has_samples, !samples.is_empty(), "{}: rows of the forward pass have samples", row.name);
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
    let functions = include_str!("../../../core/src/functional.rs");
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
        SAME.split_whitespace().chain(INSTEAD.iter().flat_map(|(names, _)| names.split_whitespace())).collect();
    SAME.split_whitespace().for_each(|name| hint_is_true(&format!("functional::{name}")));
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
        f::zero_where_not(&cx, &x(&[2]), &cx.input(ids.ge(0.0).expand([3, 2], false))).unwrap_err(),
        f::zero_where_not(&cx, &x(&[2]), &x(&[2])).unwrap_err(),
        f::add(&cx, &x(&[2]), &cx.input(Tensor::zeros([2], (Kind::Double, Device::Cpu)))).unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("at fuser.block.3:"), "{error}");
    }
}
