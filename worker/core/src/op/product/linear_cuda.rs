//! Large linear layers of 16-bit numbers on a CUDA device whose sizes are no multiples of 8, such as SwiGLU's: cuBLAS takes kernels of an
//! older device for these, at a third of the speed. Here rows begin at multiples of 16 bytes, in views of wider memory, and a product is
//! the one of the sizes' multiples of 8 and those of what is left over, which are small.

use super::store::{product_into, put};
use crate::backend::{Outs, aligned_rows};
use crate::error::OpErrorKind;
use crate::op::attr::GradDest;
use crate::op::on_device::present;
use crate::op::row::{Fit, Kernel, Launch, Launched};
use crate::op::{Linear, LinearBackward};
use smallvec::smallvec;
use tch::{Kind, Tensor};

/// Number of which sizes should be multiples.
const WHOLE: i64 = 8;
/// Multiplications of a product at least: below, what is left over costs what the rest gains.
const PRODUCTS_MIN: i64 = 1 << 32;
/// Rows at least: a weight that is copied is read once for each call, however few rows it multiplies.
const ROWS_MIN: i64 = 256;

pub(super) const FORWARD: Kernel<Linear> = Kernel::new("cublas.aligned", |_, l| fits(l.at(0), l.at(1)), launch);
pub(super) const BACKWARD: Kernel<LinearBackward> =
    Kernel::new("cublas.aligned", |_, l| fits(l.at(1), l.at(2)).and_then(|()| storage_fits(l)), launch_backward);

fn fits(x: &Tensor, w: &Tensor) -> Fit {
    if !matches!(x.kind(), Kind::Half | Kind::BFloat16) {
        return Err("not of 16-bit numbers");
    }
    let (outputs, inputs) = w.size2().map_err(|_| "a weight of other than two axes")?;
    if [inputs, outputs].iter().all(|size| size % WHOLE == 0) {
        return Err("gains nothing where sizes are multiples of 8");
    }
    let numbers = x.numel() as i64;
    if numbers.saturating_mul(outputs) < PRODUCTS_MIN || numbers < inputs.saturating_mul(ROWS_MIN) {
        return Err("gains nothing with fewer than 2^32 multiplications or 256 rows");
    }
    present(x)
}

fn storage_fits(l: &Launch<'_>) -> Fit {
    match l.ins[3..].iter().all(|storage| storage.kind() == Kind::Float) {
        true => Ok(()),
        false => Err("takes f32 storage of gradients"),
    }
}

fn launch(op: &Linear, l: &Launch<'_>) -> Launched {
    let x = l.at(0);
    let w = l.at(1);
    let mut shape = x.size();
    if let Some(last) = shape.last_mut() {
        *last = w.size()[0];
    }
    let made = product(&aligned_rows::matrix(x)?, &aligned_rows::matrix(w)?.f_tr()?, op.bias.then(|| l.at(2)))?;
    Ok(smallvec![made.f_view(shape.as_slice())?])
}

/// a b + bias in rows of the same kind.
fn product(a: &Tensor, b: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, OpErrorKind> {
    let shape = [a.size()[0], b.size()[1]];
    let kind = a.kind();
    // What is summed up between pieces may be beyond f16 where the whole sum is not.
    let in_pieces = a.size()[1] % WHOLE != 0;
    let sums = if kind == Kind::Half && in_pieces { Kind::Float } else { kind };
    let mut made = aligned_rows::empty(&shape, sums, a.device())?;
    if let Some(bias) = bias {
        made.f_copy_(&bias.f_expand_as(&made)?)?;
    }
    write(&made, a, b, bias.is_some())?;
    if sums == kind {
        return Ok(made);
    }
    let mut rounded = aligned_rows::empty(&shape, kind, a.device())?;
    rounded.f_copy_(&made)?;
    Ok(rounded)
}

/// Writes a b to `to`, or adds it: the product of multiples of 8, and those of what is left over of axes along which numbers lie side
/// by side. The other axes may have any size.
fn write(to: &Tensor, a: &Tensor, b: &Tensor, add: bool) -> Result<(), OpErrorKind> {
    let (rows, inner) = a.size2()?;
    let columns = b.size()[1];
    let turned = a.stride()[0] == 1;
    let whole = |size: i64, any: bool| if any { size } else { size / WHOLE * WHOLE };
    let r = whole(rows, !turned);
    let i = whole(inner, turned);
    let c = whole(columns, false);
    if r < rows {
        let rest = rows - r;
        product_into(&to.f_narrow(0, r, rest)?, &a.f_narrow(0, r, rest)?, b, add)?;
        return write(&to.f_narrow(0, 0, r)?, &a.f_narrow(0, 0, r)?, b, add);
    }
    if c < columns {
        let rest = columns - c;
        product_into(&to.f_narrow(1, c, rest)?, a, &b.f_narrow(1, c, rest)?, add)?;
        return write(&to.f_narrow(1, 0, c)?, a, &b.f_narrow(1, 0, c)?, add);
    }
    if i < inner {
        // First, while the sum is small: so is what its rounding to 16 bits loses.
        let rest = inner - i;
        product_into(to, &a.f_narrow(1, i, rest)?, &b.f_narrow(0, i, rest)?, add)?;
        return product_into(to, &a.f_narrow(1, 0, i)?, &b.f_narrow(0, 0, i)?, true);
    }
    product_into(to, a, b, add)
}

fn launch_backward(op: &LinearBackward, l: &Launch<'_>) -> Launched {
    let LinearBackward { dx, dw, db } = *op;
    let g = aligned_rows::matrix(l.at(0))?;
    let w = l.at(2);
    let mut outs = Outs::new();
    if dx {
        outs.push(product(&g, &aligned_rows::matrix(w)?, None)?.f_view(l.at(1).size().as_slice())?);
    }
    let mut storages = l.ins[3..].iter();
    let mut storage = |to: GradDest| if to.is_storage() { storages.next() } else { None };
    // Before anything is written: a kernel that fails half way is not undone later than at its first use.
    let bias = if db == GradDest::Skip { None } else { Some(g.f_sum_dim_intlist(0, false, Kind::Float)?) };
    if dw != GradDest::Skip {
        let turned = g.f_tr()?;
        let x = aligned_rows::matrix(l.at(1))?;
        match storage(dw) {
            // Pieces are not added to what is there: one that fails after another would leave a part, to which all is added then.
            Some(storage) if dw == GradDest::Write && aligned_rows::is_aligned(w.size()[1], Kind::Float) => {
                write(storage, &turned, &x, false)?
            }
            storage => {
                let sum = aligned_rows::empty(&w.size(), Kind::Float, w.device())?;
                write(&sum, &turned, &x, false)?;
                keep(&sum, dw, storage, w.kind(), &mut outs)?;
            }
        }
    }
    if let Some(bias) = bias {
        keep(&bias, db, storage(db), w.kind(), &mut outs)?;
    }
    Ok(outs)
}

/// Puts the gradient of a weight or bias where it belongs.
fn keep(sum: &Tensor, to: GradDest, storage: Option<&&Tensor>, kind: Kind, outs: &mut Outs) -> Result<(), OpErrorKind> {
    match storage {
        Some(storage) => put(storage, to, sum)?,
        None => outs.push(sum.f_to_kind(kind)?.f_contiguous()?),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::row::Operation;
    use tch::Device;

    /// Runs the operations on the CPU, which has no use for them.
    #[test]
    fn lined_products_are_those_of_the_plain_reference() {
        let low = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
        for (inputs, outputs) in [(7, 5), (8, 3), (6, 16)] {
            let x = low(&[2, 9, inputs]);
            let w = low(&[outputs, inputs]);
            let b = low(&[outputs]);
            for bias in [false, true] {
                let op = Linear { bias };
                let all = [&x, &w, &b];
                let l = Launch { ins: &all[..if bias { 3 } else { 2 }] };
                let (found, expected) =
                    tch::no_grad(|| (launch(&op, &l).unwrap(), (Linear::ROW.launch)(&op, &l).unwrap()));
                assert_eq!(found[0].size(), expected[0].size());
                let off = (&found[0] - &expected[0]).abs().max().double_value(&[]);
                assert!(off < 0.1, "{inputs} to {outputs}: off by {off}");
                assert!((FORWARD.fits)(&op, &l).is_err(), "too small, and not on a device");
            }
        }
    }
}
