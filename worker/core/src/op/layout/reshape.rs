//! Another shape with the elements in their order.

use crate::op::prelude::*;

attributes! {
    Reshape {
        /// Sizes, of which one may be −1.
        shape: Axes,
    } => RESHAPE;
}

const RESHAPE: OpRow<Reshape> = OpRow::<Reshape>::forward(
    "reshape",
    |op, ins| one(ins[0].with_shape(resolve(&ins[0].shape, &op.shape)?)),
    |op, l| Ok(smallvec![l.at(0).f_reshape(op.shape.as_slice())?]),
    |_, v| Ok(grad(v.call(Reshape { shape: v.shape(0) }, &[v.g()?])?)),
    samples,
)
.view()
.free()
.lowers(|_, l| {
    let out = l.outs[0].clone();
    only(l.reshape(l.at(0), &out)?)
});

/// The target of a reshape with −1 worked out.
fn resolve(from: &[i64], to: &[i64]) -> Result<Shape, OpErrorKind> {
    let refuse = || mismatch(from, to, "the same number of elements, with at most one -1");
    let total: i64 = from.iter().product();
    let known: i64 = to.iter().filter(|s| **s != -1).product();
    let open = to.iter().filter(|s| **s == -1).count();
    if to.iter().any(|s| *s < -1) || open > 1 {
        return Err(refuse());
    }
    match open {
        0 if known == total => Ok(to.into()),
        1 if known != 0 && total % known == 0 => {
            Ok(to.iter().map(|s| if *s == -1 { total / known } else { *s }).collect())
        }
        _ => Err(refuse()),
    }
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(Reshape { shape: smallvec![b, -1] }, [normal(&[a, b, 3])]),
        sample(Reshape { shape: smallvec![a * b] }, [normal(&[a, b]).transposed()]),
        sample(Reshape { shape: smallvec![0, b, a] }, [normal(&[a, 0, b])]),
    ]
}
