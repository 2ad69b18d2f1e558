//! Selection by a mask, and its reverse, which keeps numbers where the mask says so.

use crate::op::prelude::*;
use enn_common::graph::Op as Plain;

attributes! {
    /// Operands: condition, a where it is true, b elsewhere.
    Where => WHERE;
    /// Operands: condition, x. The result is x where the condition equals `when`, else 0.
    Keep { when: bool } => KEEP;
}

const WHERE: OpRow<Where> =
    OpRow::forward("where", shape, |_, l| Ok(smallvec![l.at(1).f_where_self(l.at(0), l.at(2))?]), vjp, samples)
        .saves(1, 0)
        .class(Class::Widest)
        .lowers(|_, l| only(l.emit(Plain::Where, l.ins)?));

const KEEP: OpRow<Keep> = OpRow::backward("keep", shape_keep, launch_keep).samples(samples_keep).lowers(lower_keep);

fn shape(_: &Where, ins: &[&Meta]) -> Inferred {
    boolean(0, ins[0])?;
    same_kind(&ins[1..])?;
    let both = broadcast(&ins[1].shape, &ins[2].shape)?;
    one(ins[1].with_shape(broadcast(&ins[0].shape, &both)?))
}

fn vjp(_: &Where, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let condition = v.input(0)?;
    let mut grads: Grads = smallvec![None, None, None];
    for (i, when) in [(1, true), (2, false)] {
        if v.needs(i) {
            let kept = v.call(Keep { when }, &[condition, g])?;
            grads[i] = v.fit(i, kept)?;
        }
    }
    Ok(grads)
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(Where, [bools(&[a, b]), normal(&[a, b]), normal(&[a, b])]),
        sample(Where, [bools(&[b]), normal(&[a, 1]), normal(&[1, b])]),
        sample(Where, [bools(&[a, 1, b]), normal(&[3, b]).transposed(), normal(&[])]),
        sample(Where, [bools(&[a, 0]), normal(&[1, 1]), normal(&[a, 0])]),
        sample(Where, [bools(&[b, a]).transposed(), normal(&[0, b, a]), normal(&[b, 1]).strided()]),
    ]
}

fn shape_keep(_: &Keep, ins: &[&Meta]) -> Inferred {
    boolean(0, ins[0])?;
    if broadcast(&ins[0].shape, &ins[1].shape)? != ins[1].shape {
        return Err(mismatch(&ins[0].shape, &ins[1].shape, "truth values that broadcast to the numbers"));
    }
    one(ins[1].clone())
}

fn launch_keep(op: &Keep, l: &Launch<'_>) -> Launched {
    let condition = l.at(0);
    let g = l.at(1);
    Ok(smallvec![if op.when { g.f_where_scalarother(condition, 0.0)? } else { g.f_masked_fill(condition, 0.0)? }])
}

fn samples_keep(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(Keep { when: true }, [bools(&[a, b]), normal(&[a, b])]),
        sample(Keep { when: false }, [bools(&[b]), normal(&[3, a, b]).transposed()]),
        sample(Keep { when: true }, [bools(&[a, 1]).strided(), normal(&[a, b]).strided()]),
        sample(Keep { when: false }, [bools(&[]), normal(&[0, b])]),
    ]
}

fn lower_keep(op: &Keep, l: &mut Lower<'_>) -> Lowered {
    let test = l.at(0);
    let x = l.at(1);
    let zero = l.number(0.0);
    let ins = if op.when { [test, x, zero] } else { [test, zero, x] };
    only(l.emit(Plain::Where, &ins)?)
}
