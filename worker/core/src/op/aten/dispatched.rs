//! Any operator of libtorch's dispatcher, for what the table has no row for.
//!
//! Shapes come from libtorch itself, which runs the operator on tensors without memory; those of convolutions and group norms from here,
//! for it has none for them. What it writes in place comes from its schema. Gradients come from libtorch's own rules: the reverse is one
//! operation that calls the operator once more and walks back through it. It has no lowering: what has one and is nearest to an operator
//! is known for the usual ones.
//!
//! An operator without operands is refused: what it makes is known before the step (`Cx::constant`). Generators, sparse layouts,
//! complex numbers and names of axes have no argument here; a schema that must have one cannot be called.

use super::{AtenArg, AtenCall};
use crate::backend::torch::safe::AnyOp;
use crate::op::prelude::*;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Aten(pub Box<AtenCall>);

/// The reverse. Operands: the gradients that are given, then the operands of the call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AtenBackward(pub Box<AtenReverse>);

impl Operation for Aten {
    const ROW: OpRow<Self> = OpRow::<Self>::forward("aten", shape, |op, l| op.0.call(l.ins), vjp, samples)
        .saves(u16::MAX, 0)
        .differentiable(|_| usize::MAX)
        .writes(|op, i| op.0.writes(i))
        .flops(|op, ins, outs| cost(&op.0, ins, outs))
        .export(Export::no(
            "an operator of libtorch's dispatcher, of which only libtorch knows what it computes",
            "functions of enn_worker::functional, which all leave but the losses",
        ));
}

impl Operation for AtenBackward {
    const ROW: OpRow<Self> =
        OpRow::<Self>::backward("aten_backward", shape_backward, launch_backward).flops(flops_backward);
}

/// The reverse of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AtenReverse {
    call: AtenCall,
    /// Whether each of its results has a gradient: these are the first operands.
    given: SmallVec<[bool; 2]>,
    /// Whether each of its operands, which follow, gets one.
    wanted: SmallVec<[bool; 4]>,
}

impl AtenReverse {
    /// Name of the operator whose reverse it is.
    pub fn name(&self) -> &str {
        self.call.name()
    }
}

fn shape(op: &Aten, ins: &[&Meta]) -> Inferred {
    let call = &op.0;
    let Some(device) = ins.first().map(|meta| meta.device) else {
        let expected = "at least one\nhint: what needs no operand is known before the step, a Cx::constant";
        return Err(OpErrorKind::Attribute { name: "number of operands", found: 0.0, expected });
    };
    let known = if call.name() == "aten::group_norm" { Some(ins[0].shape.clone()) } else { call.convolved(ins) };
    if let Some(shape) = known {
        return Ok(smallvec![Meta { shape, ..ins[0].clone() }]);
    }
    let hollow = ins.iter().map(|meta| AnyOp::hollow(&meta.shape, meta.kind)).collect::<Result<Vec<_>, _>>()?;
    let made = call.call(&hollow.iter().collect::<Vec<_>>())?;
    // What is written in place comes back as a result of the schema.
    Ok(made.iter().map(|raw| Meta { shape: raw.size().into(), kind: raw.kind(), device }).collect::<Metas>())
}

fn vjp(op: &Aten, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let given = v.gouts.iter().map(Option::is_some).collect();
    let wanted = (0..v.arity()).map(|i| v.needs(i)).collect();
    let mut ins: SmallVec<[&Tensor; 8]> = v.gouts.iter().flatten().collect();
    for i in 0..v.arity() {
        ins.push(v.input(i as u8)?);
    }
    let reverse = AtenReverse { call: (*op.0).clone(), given, wanted };
    let mut made = v.call_all(AtenBackward(Box::new(reverse)), &ins)?.into_iter();
    Ok((0..v.arity()).map(|i| if v.needs(i) { made.next() } else { None }).collect())
}

/// The gradients that are given, and the operands of the call.
fn parted<'a, T>(reverse: &AtenReverse, ins: &'a [T]) -> (&'a [T], &'a [T]) {
    ins.split_at(reverse.given.iter().filter(|given| **given).count())
}

fn shape_backward(op: &AtenBackward, ins: &[&Meta]) -> Inferred {
    let reverse = &op.0;
    let (_, operands) = parted(reverse, ins);
    let wanted = operands.iter().zip(&reverse.wanted).filter(|(_, wanted)| **wanted);
    Ok(wanted.map(|(meta, _)| (*meta).clone()).collect())
}

fn launch_backward(op: &AtenBackward, l: &Launch<'_>) -> Launched {
    let reverse = &op.0;
    let (gradients, operands) = parted(reverse, l.ins);
    let mut next = gradients.iter().copied();
    let given: SmallVec<[Option<&Raw>; 2]> =
        reverse.given.iter().map(|given| if *given { next.next() } else { None }).collect();
    let AtenReverse { call, wanted, .. } = &**reverse;
    Ok(call.with_args(operands, |args| call.operator.gradients(args, &given, wanted))??)
}

/// The call once more, and as much for a gradient of what it multiplies, for each of two.
fn flops_backward(op: &AtenBackward, ins: &[&Meta], _: &[Meta]) -> u64 {
    let reverse = &op.0;
    let (gradients, operands) = parted(reverse, ins);
    let made: Metas = gradients.iter().map(|meta| (*meta).clone()).collect();
    3 * cost(&reverse.call, operands, &made)
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    use AtenArg::{Bool, Int, Ints, None, Operand, Operands};
    let (a, b) = d.sizes();
    let made = |name: &str, overload: &str, args: Vec<AtenArg>, ins: Vec<crate::op::sample::Operand>| {
        let call = AtenCall::new(name, overload, args);
        call.ok().map(|call| sample(Aten(Box::new(call)), ins))
    };
    let cumsum = || vec![Operand, Int(-1), None];
    let convolution = vec![
        Operand,
        Operand,
        Operand,
        Ints(vec![2]),
        Ints(vec![1]),
        Ints(vec![1]),
        Bool(false),
        Ints(vec![0]),
        Int(1),
    ];
    let all = [
        made("aten::cumsum", "", cumsum(), vec![normal(&[a, b])]),
        made("aten::cumsum", "", cumsum(), vec![normal(&[b, a, 3]).transposed()]),
        made("aten::cumsum", "", cumsum(), vec![normal(&[0, b])]),
        made("aten::convolution", "", convolution, vec![normal(&[2, 3, b]), normal(&[a, 3, 3]), normal(&[a])]),
        made("aten::hstack", "", vec![Operands(2)], vec![normal(&[a, b]), normal(&[a, 2])]),
    ];
    all.into_iter().flatten().collect()
}

/// A product's multiplications and additions, told from its operands; of other operators one per element of the first result.
fn cost(call: &AtenCall, ins: &[&Meta], outs: &[Meta]) -> u64 {
    let name = call.name().strip_prefix("aten::").and_then(|name| name.split('.').next()).unwrap_or_default();
    let made = outs.first().map_or(0, count);
    let last = |i: usize| ins.get(i).and_then(|meta| meta.shape.last()).copied();
    let (numbers, each) = match name.strip_suffix('_').unwrap_or(name) {
        "mm" | "bmm" | "matmul" | "linear" | "mv" | "dot" => (made, last(0)),
        "addmm" | "baddbmm" | "addmv" => (made, last(1)),
        "conv1d" | "conv2d" | "conv3d" | "convolution" => {
            // A transposed one spreads each of its numbers instead of gathering each of its results.
            let spreads = matches!(call.args.get(6), Some(AtenArg::Bool(true)));
            let window = ins.get(1).map(|weight| weight.shape.iter().skip(1).product());
            (if spreads { ins.first().map_or(0, |meta| count(meta)) } else { made }, window)
        }
        _ => return made,
    };
    2 * numbers * each.unwrap_or(0).max(0).cast_unsigned()
}
