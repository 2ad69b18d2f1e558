//! Operators of the dispatcher that the table has no row for.

use enn_worker::autograd::{Cx, Executor, Mode, Request};
use enn_worker::error::OpError;
use enn_worker::functional as f;
use enn_worker::kernel::FirstFit;
use enn_worker::op::aten::{AtenArg, AtenCall};
use enn_worker::params::ParamBuilder;
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
    assert!(fail("aten::cumsum", args(), true).contains("no gradient rule"));
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
