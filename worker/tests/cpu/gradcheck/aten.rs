//! Operators of the dispatcher that the table has no row for.

use crate::gradcheck::operands::distance;
use crate::gradcheck::ours::{no_params, weights};
use enn_worker::autograd::{Cx, Executor, Mode, Request};
use enn_worker::backend::torch::safe::{ARGS, AnyOp, Argument};
use enn_worker::error::OpError;
use enn_worker::functional as f;
use enn_worker::kernel::FirstFit;
use enn_worker::op::aten::{AtenArg, AtenCall};
use enn_worker::op::row::Operation;
use enn_worker::op::sample::{Sample, SampleRng};
use enn_worker::op::{self, Op};
use enn_worker::params::ParamBuilder;
use std::collections::BTreeSet;
use tch::{Device, Kind, Tensor};

#[test]
fn any_operator_runs_and_its_shape_comes_from_libtorch() {
    let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
    let cx = Cx::eval(&params);
    let x = Tensor::arange(12, (Kind::Float, Device::Cpu)).view([3, 4]);
    let input = cx.input(x.shallow_clone());
    let args = vec![AtenArg::Operand, AtenArg::Int(1), AtenArg::None];
    let made = f::aten(&cx, "aten::cumsum", "", args, &[&input]).unwrap();
    assert_eq!(made[0].shape(), [3, 4]);
    assert!(made[0].raw().equal(&x.cumsum(1, Kind::Float)));
    let args = vec![AtenArg::Operand, AtenArg::Int(2), AtenArg::Int(1), AtenArg::Bool(true), AtenArg::Bool(true)];
    let made = f::aten(&cx, "aten::topk", "", args, &[&input]).unwrap();
    assert_eq!((made[0].shape(), made[1].kind()), ([3, 2].as_slice(), Kind::Int64));
    let args = vec![AtenArg::Operands(2), AtenArg::Int(0)];
    let made = f::aten(&cx, "aten::cat", "", args, &[&input, &input]).unwrap();
    assert_eq!(made[0].shape(), [6, 4]);
}

#[test]
fn the_schema_tells_what_is_written() {
    let args = || vec![AtenArg::Operand, AtenArg::Operand, AtenArg::Int(1)];
    let add = AtenCall::new("aten::add_", "Tensor", args()).unwrap();
    assert!(add.writes(0) && !add.writes(1));
    let add = AtenCall::new("aten::add", "Tensor", args()).unwrap();
    assert!(!add.writes(0) && !add.writes(1));
}

#[test]
fn mistakes_are_told_in_a_sentence() {
    let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
    let cx = Cx::train(&params, 0, 0);
    let x = cx.input(Tensor::ones([2], (Kind::Float, Device::Cpu)));
    let wanted = cx.variable(Tensor::ones([2], (Kind::Float, Device::Cpu)));
    let fail = |name: &str, args: Vec<AtenArg>, wants: bool| {
        f::aten(&cx, name, "", args, &[if wants { &wanted } else { &x }]).unwrap_err().to_string()
    };
    assert!(fail("aten::no_such_thing", vec![], false).contains("no_such_thing"));
    assert!(fail("aten::cumsum", vec![AtenArg::Operand], false).contains("1 arguments, expected 3"));
    let args = || vec![AtenArg::Operand, AtenArg::Int(7), AtenArg::None];
    assert!(fail("aten::cumsum", args(), false).contains("Dimension out of range"));
    let refused = fail("aten::relu_", vec![AtenArg::Operand], true);
    assert!(refused.contains("aten::relu_ has no gradient here: it writes in place\nhint: detach()"), "{refused}");
    let refused = fail("aten::dropout", vec![AtenArg::Operand, AtenArg::Real(0.5.into()), AtenArg::Bool(true)], true);
    assert!(refused.contains("aten::dropout has no gradient here: it draws random numbers"), "{refused}");
    let sort = fail("aten::gelu", vec![AtenArg::Operand, AtenArg::Int(1)], false);
    assert!(
        sort.contains(
            "aten at top: aten::gelu was given an integer for its argument \"approximate\", expected a string"
        ),
        "{sort}"
    );
    let overload = fail("aten::add", vec![AtenArg::Operand], false);
    assert!(
        overload.contains("\nhint: the overloads of aten::add are ") && overload.contains("\"Tensor\""),
        "{overload}"
    );
    let none = f::aten(&cx, "aten::eye", "", none_after(vec![AtenArg::Int(3)]), &[]).unwrap_err().to_string();
    assert!(none.contains("expected at least one\nhint: ") && none.contains("Cx::constant"), "{none}");
}

/// The arguments, and a kind, a layout, a device and whether memory is pinned, left out.
fn none_after(mut args: Vec<AtenArg>) -> Vec<AtenArg> {
    args.extend([AtenArg::None, AtenArg::None, AtenArg::None, AtenArg::None]);
    args
}

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// What an operator makes, whose shapes and kinds are as inferred.
fn made(name: &str, overload: &str, args: Vec<AtenArg>, ins: &[&Tensor]) -> Vec<Tensor> {
    let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
    let cx = Cx::eval(&params);
    let ins: Vec<_> = ins.iter().map(|raw| cx.input(raw.shallow_clone())).collect();
    let outs = f::aten(&cx, name, overload, args, &ins.iter().collect::<Vec<_>>()).unwrap();
    for out in &outs {
        assert_eq!((out.raw().size().as_slice(), out.raw().kind()), (out.shape(), out.kind()), "{name}");
    }
    outs.iter().map(|out| out.raw().copy()).collect()
}

/// The gradient that libtorch's autograd finds at `x` for the gradient `g` of the result.
fn pulled(x: &Tensor, g: &Tensor, compute: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    let leaf = x.detach().set_requires_grad(true);
    let total = (compute(&leaf) * g).sum(None);
    Tensor::run_backward(&[total], &[&leaf], false, false).remove(0)
}

/// What libtorch's autograd and our tape find at the first `wanted` operands for Σ resultᵢ · weightᵢ of the results that are numbers.
fn gradients_are_libtorchs(
    (name, overload, args): (&str, &str, Vec<AtenArg>),
    ins: &[Tensor],
    wanted: usize,
    theirs: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) {
    let (params, grads) = no_params();
    let cx = Cx::train(&params, 0, 0);
    let enter = |(i, raw): (usize, &Tensor)| match i < wanted {
        true => cx.variable(raw.shallow_clone()),
        false => cx.input(raw.shallow_clone()),
    };
    let entered: Vec<_> = ins.iter().enumerate().map(enter).collect();
    let refs: Vec<_> = entered.iter().collect();
    let outs = f::aten(&cx, name, overload, args, &refs).unwrap();
    let numbers: Vec<_> = outs.iter().filter(|out| out.kind() == Kind::Double).collect();
    assert!(outs.iter().all(|out| out.requires_grad() == (out.kind() == Kind::Double)), "{name}");
    let weights = weights(&numbers.iter().map(|out| out.raw().copy()).collect::<Vec<_>>());
    let parts = numbers
        .iter()
        .zip(&weights)
        .map(|(out, weight)| f::sum_all(&cx, &f::mul(&cx, out, &cx.constant(weight.copy())).unwrap()).unwrap());
    let total = parts.reduce(|sum, part| f::add(&cx, &sum, &part).unwrap()).unwrap();
    let found = cx.backward_to(&total, &grads, &mut |_, _| Ok(()), &refs).unwrap();

    // No gradient is recorded while it is there.
    drop(cx);
    let leaves: Vec<Tensor> =
        ins.iter().enumerate().map(|(i, raw)| raw.detach().set_requires_grad(i < wanted)).collect();
    let parts: Vec<Tensor> = theirs(&leaves).iter().zip(&weights).map(|(out, w)| (out * w).sum(None)).collect();
    let expected = Tensor::run_backward(&[Tensor::stack(&parts, 0).sum(None)], &leaves[..wanted], false, false);
    assert!(found[wanted..].iter().all(Option::is_none), "{name}");
    for (i, (found, expected)) in found[..wanted].iter().zip(&expected).enumerate() {
        assert!(distance(found.as_ref().unwrap(), expected) < 1e-12, "gradient {i} of {name}");
    }
}

#[test]
fn the_samples_are_all_there() {
    let samples = (op::Aten::ROW.samples)(&mut SampleRng::new(1));
    let name = |sample: &Sample| {
        if let Op::Aten(op::Aten(call)) = &sample.op { call.name().to_owned() } else { String::new() }
    };
    let names: Vec<String> = samples.iter().map(name).collect();
    assert_eq!(names, ["aten::cumsum", "aten::cumsum", "aten::cumsum", "aten::convolution", "aten::hstack"]);
}

#[test]
fn gradients_come_from_libtorchs_own_rules() {
    tch::manual_seed(17);
    let normal = |shape: &[i64]| Tensor::randn(shape, (Kind::Double, Device::Cpu));
    let ints = |list: &[i64]| AtenArg::Ints(list.to_vec());
    let image = normal(&[2, 4, 7, 6]);
    let window = normal(&[6, 2, 3, 3]);
    let bias = normal(&[6]);
    let args = vec![one(), one(), one(), ints(&[2, 1]), ints(&[1]), ints(&[1, 2]), AtenArg::Int(2)];
    gradients_are_libtorchs(("aten::conv2d", "", args), &[image.copy(), window, bias], 3, |x| {
        vec![x[0].conv2d(&x[1], Some(&x[2]), [2, 1], [1, 1], [1, 2], 2)]
    });
    let args = vec![one(), AtenArg::Int(2), one(), one(), AtenArg::Real(1e-5.into()), AtenArg::Bool(false)];
    gradients_are_libtorchs(("aten::group_norm", "", args), &[image.copy(), normal(&[4]), normal(&[4])], 3, |x| {
        vec![x[0].group_norm(2, Some(&x[1]), Some(&x[2]), 1e-5, false)]
    });
    let args = vec![one(), AtenArg::Int(2), AtenArg::Int(1), AtenArg::Bool(true), AtenArg::Bool(true)];
    gradients_are_libtorchs(("aten::topk", "", args), &[normal(&[3, 5])], 1, |x| vec![x[0].topk(2, 1, true, true).0]);
    let args = vec![one(), AtenArg::Int(3), AtenArg::Int(-1)];
    gradients_are_libtorchs(("aten::chunk", "", args), &[normal(&[2, 9])], 1, |x| x[0].chunk(3, -1));
    let args = vec![one(), one(), ints(&[-1]), ints(&[0])];
    gradients_are_libtorchs(("aten::tensordot", "", args), &[normal(&[2, 3]), normal(&[3, 4])], 1, |x| {
        vec![x[0].matmul(&x[1])]
    });
    let at = Tensor::from_slice(&[2i64, 0, 2]);
    let args = vec![one(), AtenArg::OperandsWhere(vec![false, true])];
    gradients_are_libtorchs(("aten::index", "Tensor", args), &[normal(&[2, 3]), at.copy()], 1, |x| {
        vec![x[0].index_select(1, &at)]
    });
}

fn text(text: &str) -> AtenArg {
    AtenArg::Text(text.to_owned())
}

fn reals(list: &[f64]) -> AtenArg {
    AtenArg::Reals(list.iter().map(|x| (*x).into()).collect())
}

fn one() -> AtenArg {
    AtenArg::Operand
}

#[test]
fn strings_reach_the_operator() {
    tch::manual_seed(12);
    let x = Tensor::randn([3, 5], FLOAT);
    let g = Tensor::randn([3, 5], FLOAT);
    for how in ["none", "tanh"] {
        let found = made("aten::gelu", "", vec![one(), text(how)], &[&x]).remove(0);
        assert!(found.equal(&x.gelu(how)), "{how}");
        let found = made("aten::gelu_backward", "", vec![one(), one(), text(how)], &[&g, &x]).remove(0);
        assert!(distance(&found, &pulled(&x, &g, |x| x.gelu(how))) < 1e-6, "{how}");
    }
    let at = Tensor::randint(5, [3, 4], (Kind::Int64, Device::Cpu));
    let source = Tensor::randn([3, 4], FLOAT);
    for how in ["sum", "prod", "mean", "amax", "amin"] {
        let args = vec![one(), AtenArg::Int(1), one(), one(), text(how), AtenArg::Bool(true)];
        let found = made("aten::scatter_reduce", "two", args, &[&x, &at, &source]).remove(0);
        assert!(found.equal(&x.internal_scatter_reduce(1, &at, &source, how, true)), "{how}");
    }
    for how in ["floor", "trunc"] {
        let found = made("aten::div", "Tensor_mode", vec![one(), one(), text(how)], &[&x, &g]).remove(0);
        assert!(found.equal(&x.g_div_tensor_mode(&g, how)), "{how}");
    }
    let found = made("aten::div", "Tensor_mode", vec![one(), one(), AtenArg::None], &[&x, &g]).remove(0);
    assert!(found.equal(&(&x / &g)));
}

#[test]
fn lists_of_tensors_may_have_gaps() {
    tch::manual_seed(13);
    let x = Tensor::randn([3, 5, 2], FLOAT);
    let at = Tensor::from_slice(&[4i64, 0, 4]);
    let there = || AtenArg::OperandsWhere(vec![false, true]);
    let places = [None, Some(&at)];
    let found = made("aten::index", "Tensor", vec![one(), there()], &[&x, &at]).remove(0);
    assert!(found.equal(&x.index(&places)));
    let values = Tensor::randn([3, 3, 2], FLOAT);
    let args = vec![one(), there(), one(), AtenArg::Bool(true)];
    let found = made("aten::index_put", "", args, &[&x, &at, &values]).remove(0);
    assert!(found.equal(&x.index_put(&places, &values, true)));
    // What libtorch's own derivative of index does.
    let zeros = x.zeros_like();
    let args = vec![one(), there(), one(), AtenArg::Bool(true)];
    let found = made("aten::index_put", "", args, &[&zeros, &at, &values]).remove(0);
    assert!(distance(&found, &pulled(&x, &values, |x| x.index(&places))) < 1e-6);
}

#[test]
fn lists_of_floats_reach_the_operator() {
    tch::manual_seed(14);
    let x = Tensor::randn([1, 2, 3, 4], FLOAT);
    let scales = [2.0, 1.5];
    let args = || vec![one(), AtenArg::None, AtenArg::Bool(false), reals(&scales)];
    let bilinear = |x: &Tensor| x.upsample_bilinear2d_vec(None::<i64>, false, scales);
    let found = made("aten::upsample_bilinear2d", "vec", args(), &[&x]).remove(0);
    assert!(found.equal(&bilinear(&x)) && found.size() == [1, 2, 6, 6]);
    let args = vec![one(), AtenArg::None, reals(&scales)];
    let found = made("aten::upsample_nearest2d", "vec", args, &[&x]).remove(0);
    assert!(found.equal(&x.upsample_nearest2d_vec(None::<i64>, scales)));
    let g = Tensor::randn([1, 2, 6, 6], FLOAT);
    let sizes = [AtenArg::Ints(vec![6, 6]), AtenArg::Ints(vec![1, 2, 3, 4]), AtenArg::Bool(false)];
    let scales = scales.map(|scale| AtenArg::Real(scale.into()));
    let args = [one()].into_iter().chain(sizes).chain(scales).collect();
    let found = made("aten::upsample_bilinear2d_backward", "", args, &[&g]).remove(0);
    assert!(distance(&found, &pulled(&x, &g, bilinear)) < 1e-6);
    // A list of numbers of any kind.
    let args = vec![AtenArg::Operands(2), reals(&[2.0, -1.0])];
    let found = made("aten::_foreach_mul", "ScalarList", args, &[&x, &g]);
    assert!(found[0].equal(&(&x * 2.0)) && found[1].equal(&(&g * -1.0)));
}

#[test]
fn kinds_devices_and_memory_formats_reach_the_operator() {
    let x = Tensor::arange(8, FLOAT).view([1, 2, 2, 2]);
    for kind in [AtenArg::Kind(Kind::Double), AtenArg::Int(7)] {
        let found = made("aten::cumsum", "", vec![one(), AtenArg::Int(1), kind], &[&x]).remove(0);
        assert!(found.equal(&x.cumsum(1, Kind::Double)) && found.kind() == Kind::Double);
    }
    let no = || AtenArg::Bool(false);
    let kind = AtenArg::Kind(Kind::BFloat16);
    let args = vec![one(), AtenArg::Device, kind, no(), no(), AtenArg::None];
    let found = made("aten::to", "device", args, &[&x]).remove(0);
    assert_eq!((found.kind(), found.device()), (Kind::BFloat16, x.device()));
    // Channels last.
    let found = made("aten::clone", "", vec![one(), AtenArg::Int(2)], &[&x]).remove(0);
    assert!(found.equal(&x));
    let args = none_after(vec![one(), AtenArg::Ints(vec![3, 2]), AtenArg::Real(0.5.into())]);
    assert!(made("aten::new_full", "", args, &[&x]).remove(0).equal(&Tensor::full([3, 2], 0.5, FLOAT)));
}

/// Every kind that an operator may be asked for, by libtorch's own number.
#[test]
fn kinds_have_libtorchs_numbers() {
    use Kind::{BFloat16, Bool, Double, Float, Float8e4m3fn, Float8e5m2, Half, Int, Int8, Int16, Int64, Uint8};
    let x = Tensor::ones([2], FLOAT);
    for kind in [Uint8, Int8, Int16, Int, Int64, Half, Float, Double, Bool, BFloat16, Float8e5m2, Float8e4m3fn] {
        let no = || AtenArg::Bool(false);
        let args = vec![one(), AtenArg::Kind(kind), no(), no(), AtenArg::None];
        assert_eq!(made("aten::to", "dtype", args, &[&x])[0].kind(), kind);
    }
}

#[test]
fn what_an_argument_says_is_part_of_the_program() {
    let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
    let x = Tensor::ones([1, 1, 2, 2], FLOAT);
    let hash = |name: &str, overload: &str, args: Vec<AtenArg>| {
        let cx = Cx::eval(&params);
        f::aten(&cx, name, overload, args, &[&cx.input(x.shallow_clone())]).unwrap();
        cx.program_hash()
    };
    let gelu = |how| hash("aten::gelu", "", vec![one(), text(how)]);
    assert!(gelu("tanh") == gelu("tanh") && gelu("tanh") != gelu("none"));
    let scaled = |by| hash("aten::_foreach_mul", "ScalarList", vec![AtenArg::Operands(1), reals(&[by])]);
    assert_ne!(scaled(1.0), scaled(2.0));
    let kind = |kind| hash("aten::cumsum", "", vec![one(), AtenArg::Int(0), AtenArg::Kind(kind)]);
    assert_ne!(kind(Kind::Float), kind(Kind::Double));
    let call = |there: [bool; 2]| {
        AtenCall::new("aten::index", "Tensor", vec![one(), AtenArg::OperandsWhere(there.to_vec())]).unwrap()
    };
    assert_ne!(call([true, false]), call([false, true]));
    assert_eq!((call([true, true]), call([false, true]).operands()), (call([true, true]), 2));
}

/// What a schema asks for that a call from here cannot give, and why; without `aten::`, with the overload.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "lists of names of axes, which no tensor here has",
        &[
            "align_to",
            "align_to.ellipsis_idx",
            "flatten.DimnameList",
            "logsumexp.names",
            "mean.names_dim",
            "norm.names_ScalarOpt_dim",
            "norm.names_ScalarOpt_dim_dtype",
            "refine_names",
            "std.correction_names",
            "std.names_dim",
            "std_mean.correction_names",
            "std_mean.names_dim",
            "sum.dim_DimnameList",
            "unflatten.Dimname",
            "var.correction_names",
            "var.names_dim",
            "var_mean.correction_names",
            "var_mean.names_dim",
        ],
    ),
    ("a storage, which belongs to a tensor here", &["set.source_Storage", "set.source_Storage_storage_offset"]),
    (
        "packed weights of quantised layers, which are objects of libtorch",
        &["quantized_gru.data", "quantized_gru.input", "quantized_lstm.data", "quantized_lstm.input"],
    ),
    ("a layout that must be given, and is a sparse one", &["_validate_sparse_compressed_tensor_args"]),
];

/// Whether an operand may be given for the argument.
fn is_operand(argument: &Argument) -> bool {
    let tags = ["a tensor", "a list of tensors", "a list of tensors with gaps"];
    tags.iter().any(|words| argument.takes >> ARGS.iter().position(|known| known == words).unwrap() & 1 == 1)
}

#[test]
fn every_functional_operator_of_libtorch_with_an_operand_can_be_called_or_has_a_reason_why_not() {
    let mut refused = Vec::new();
    let mut here = BTreeSet::new();
    let mut called = 0;
    for (name, overload) in AnyOp::all().unwrap() {
        let Some(plain) = name.strip_prefix("aten::") else { continue };
        let full = if overload.is_empty() { plain.to_owned() } else { format!("{plain}.{overload}") };
        here.insert(full.clone());
        let operator = AnyOp::find(&name, &overload).unwrap();
        let arguments = operator.arguments();
        if arguments.iter().any(|argument| argument.writes) || !arguments.iter().any(is_operand) {
            continue;
        }
        match arguments.iter().any(|argument| argument.takes == 0) {
            true => refused.push(full),
            false => called += 1,
        }
    }
    refused.sort_unstable();
    let mut known: Vec<&str> = REFUSED.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    // Libtorch 2.13 has no names of axes any more.
    known.retain(|name| here.contains(*name));
    known.sort_unstable();
    assert_eq!(refused, known);
    assert!(called > 1000, "{called} operators");
}

#[test]
fn it_is_recorded_and_replayed() {
    let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
    let mut executor = Executor::new(Mode::Plan);
    for step in 0..4u8 {
        let x = Tensor::from_slice(&[f32::from(step), 1.0]);
        let request = Request {
            leaves: &params,
            seed: 0,
            step: step.into(),
            launcher: &FirstFit,
            collectives: None,
            inputs: vec![x],
            watch: None,
            observer: None,
        };
        let ran = executor.step(request, |cx, inputs| {
            let args = vec![AtenArg::Operand, AtenArg::Int(0), AtenArg::None];
            Ok::<_, OpError>(f::aten(cx, "aten::cumsum", "", args, &[&inputs[0]])?.into_vec())
        });
        let ran = ran.unwrap();
        assert_eq!(ran.mode, if step < 2 { Mode::Tape } else { Mode::Plan });
        assert_eq!(Vec::<f32>::try_from(&ran.outputs[0]).unwrap(), [f32::from(step), 1.0 + f32::from(step)]);
    }
}
