//! Tensors of one number: zeros and ones.

use crate::op::prelude::*;

attributes! {
    Zeros { shape: Axes, kind: Kind, device: Device } => ZEROS;
    Ones { shape: Axes, kind: Kind, device: Device } => ONES;
}

const ZEROS: OpRow<Zeros> = OpRow::<Zeros>::backward(
    "zeros",
    |op, _| one(Meta { shape: op.shape.clone(), kind: op.kind, device: op.device }),
    |op, _| Ok(smallvec![Raw::f_zeros(op.shape.as_slice(), (op.kind, op.device))?]),
)
.samples(|d| shapes(d).map(|shape| sample(Zeros { shape, kind: Kind::Float, device: Device::Cpu }, [])).collect())
.free()
.lowers(|_, l| lower(l, 0.0));

const ONES: OpRow<Ones> = OpRow::<Ones>::backward(
    "ones",
    |op, _| one(Meta { shape: op.shape.clone(), kind: op.kind, device: op.device }),
    |op, _| Ok(smallvec![Raw::f_ones(op.shape.as_slice(), (op.kind, op.device))?]),
)
.samples(|d| shapes(d).map(|shape| sample(Ones { shape, kind: Kind::Float, device: Device::Cpu }, [])).collect())
.free()
.lowers(|_, l| lower(l, 1.0));

fn shapes(d: &mut SampleRng) -> impl Iterator<Item = Axes> + use<> {
    let (a, b) = d.sizes();
    let shapes: [Axes; 3] = [smallvec![a, b], smallvec![], smallvec![a, 0]];
    shapes.into_iter()
}

fn lower(l: &mut Lower<'_>, number: f64) -> Lowered {
    let number = l.number(number);
    let shape = l.outs[0].clone();
    only(l.expand(number, &shape)?)
}
