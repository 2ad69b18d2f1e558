//! A sample through our own door: values, gradients, and what was launched on the way.

use crate::gradcheck::operands::{SEED, STEP, differentiable};
use enn_worker::autograd::{Cx, Tensor as Traced, call};
use enn_worker::backend::Outs;
use enn_worker::error::OpErrorKind;
use enn_worker::functional as f;
use enn_worker::kernel::Launcher;
use enn_worker::op::Op;
use enn_worker::op::row::Launch;
use enn_worker::op::sample::{Operand, Sample};
use enn_worker::op::value::Meta;
use enn_worker::params::{GradBuckets, ParamBuilder, Params};
use std::cell::RefCell;
use tch::{Device, Kind, Tensor};

/// One launch.
pub(crate) struct Seen {
    pub(crate) op: Op,
    pub(crate) ins: Vec<Meta>,
    pub(crate) outs: Vec<Meta>,
}

/// Runs what another launcher would, and fails where the row's shape rule says other sizes or kinds than what was made.
pub(crate) struct Checked<'a> {
    inner: &'a dyn Launcher,
    seen: RefCell<Vec<Seen>>,
}

impl<'a> Checked<'a> {
    pub(crate) fn new(inner: &'a dyn Launcher) -> Self {
        Self { inner, seen: RefCell::default() }
    }

    /// What was launched so far.
    pub(crate) fn into_seen(self) -> Vec<Seen> {
        self.seen.into_inner()
    }
}

impl Launcher for Checked<'_> {
    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind> {
        let ins: Vec<Meta> = l.ins.iter().map(|raw| Meta::of(raw)).collect();
        let expected = (op.row().shape)(op, &ins.iter().collect::<Vec<_>>())?;
        let (made, kernel) = self.inner.launch(op, l)?;
        let outs: Vec<Meta> = made.iter().map(Meta::of).collect();
        assert_eq!(outs, expected.to_vec(), "made by {kernel}, and what the shape rule says, of {op:?} on {ins:?}");
        self.seen.borrow_mut().push(Seen { op: op.clone(), ins, outs });
        Ok((made, kernel))
    }
}

/// Values of the results that a gradient may flow into, and gradients of Σ resultᵢ · weightᵢ.
pub(crate) struct Run {
    pub(crate) values: Vec<Tensor>,
    pub(crate) grads: Vec<Option<Tensor>>,
}

pub(crate) fn no_params() -> (Params, GradBuckets) {
    let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
    let grads = GradBuckets::new(&params).unwrap();
    (params, grads)
}

pub(crate) fn weights(values: &[Tensor]) -> Vec<Tensor> {
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

/// Whether an operand asks for a gradient. Targets of losses take none.
pub(crate) fn asks(sample: &Sample, operand: &Operand) -> bool {
    let is_target = sample.op.name().starts_with("masked_") && std::ptr::eq(operand, &sample.ins[1]);
    differentiable(operand) && !is_target
}

pub(crate) fn ours(sample: &Sample, ins: &[Tensor], launcher: &dyn Launcher) -> Run {
    let (params, grads) = no_params();
    let mut cx = Cx::train(&params, SEED, STEP);
    cx.set_launcher(launcher);
    let enter = |(o, t): (&Operand, &Tensor)| {
        if asks(sample, o) { cx.variable(t.shallow_clone()) } else { cx.input(t.shallow_clone()) }
    };
    let traced: Vec<Traced> = sample.ins.iter().zip(ins).map(enter).collect();
    let refs: Vec<&Traced> = traced.iter().collect();
    let outs = call(&cx, sample.op.clone(), &refs).unwrap_or_else(|error| panic!("{sample:?}: {error}"));
    let values: Vec<Tensor> = outs.iter().take(sample.op.differentiable_outs()).map(|o| o.raw().copy()).collect();
    let mut total: Option<Traced> = None;
    for (out, weight) in outs.iter().filter(|out| out.requires_grad()).zip(weights(&values)) {
        let weighted = f::mul(&cx, out, &cx.constant(weight)).unwrap();
        let part = f::sum_all(&cx, &weighted).unwrap();
        total = Some(match total {
            None => part,
            Some(sum) => f::add(&cx, &sum, &part).unwrap(),
        });
    }
    let grads = match total {
        None => ins.iter().map(|_| None).collect(),
        Some(total) => cx
            .backward_to(&total, &grads, &mut |_, _| Ok(()), &refs)
            .unwrap_or_else(|error| panic!("{sample:?}: {error}")),
    };
    Run { values, grads }
}
