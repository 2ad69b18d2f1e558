//! Arrays filled with zeros.

use super::fits::{arrays_fit, dense};
use super::not_exported;
use crate::backend::cuda::adamw as cuda;
use crate::backend::torch::safe::zero;
use crate::op::prelude::*;

attributes! {
    /// Operands: any number of arrays, written.
    Zero => ZERO;
}

const ZERO: OpRow<Zero> = OpRow::backward("zero", nothing, launch)
    .writes(|_, _| true)
    .kernels(&[
        Kernel::new("cuda.zero", |_, l| arrays_fit(l.ins), |_, l| Ok(cuda::zero(l.ins).map(|()| SmallVec::new())?))
            .exact(),
        // Without reading.
        Kernel::new("cpu.zero", |_, l| dense(l.ins), |_, l| Ok(zero(l.ins).map(|()| SmallVec::new())?)).exact(),
    ])
    .free()
    .traffic(Traffic::Overwritten)
    .export(not_exported());

fn launch(_: &Zero, l: &Launch<'_>) -> Launched {
    for array in l.ins {
        let _ = array.shallow_clone().f_zero_()?;
    }
    Ok(SmallVec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_everywhere_in_the_arrays_and_nowhere_else() {
        let around = Raw::ones([70_003], (Kind::Float, Device::Cpu));
        let short = Raw::ones([3], (Kind::Float, Device::Cpu));
        let within = around.narrow(0, 1, 70_001);
        let l = Launch { ins: &[&within, &short] };
        (Zero::ROW.kernels[1].fits)(&Zero, &l).unwrap();
        tch::no_grad(|| (Zero::ROW.kernels[1].launch)(&Zero, &l)).unwrap();
        assert_eq!((around.sum(Kind::Double).double_value(&[]), short.sum(Kind::Double).double_value(&[])), (2.0, 0.0));
        assert_eq!((around.double_value(&[0]), around.double_value(&[70_002])), (1.0, 1.0));
    }
}
