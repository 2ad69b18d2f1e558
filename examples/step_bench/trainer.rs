//! One optimizer step as in training: the session's precision, loss scale and kernel manager; gradients are reduced
//! over the ranks, where there are several, while backward still runs.

use crate::subject::Subject;
use enn_common::{config::train::Precision as Wanted, kernels::OpKernels};
use enn_worker::{
    autograd::{Mode, Program},
    error::OpError,
    functional as f,
    kernel::{KernelEvent, Settings},
    op::collective::{Collectives, Unasked},
    optim::{AdamWSettings, Ema},
    params::ParamBuilder,
    session::{
        steps::{Setup, Steps},
        torchrun::Member,
    },
    tch::{Kind, Tensor},
};
use serde_json::{Value, json};
use std::{cell::Cell, collections::BTreeMap, error::Error, time::Duration};

const RATE: f64 = 1e-4;
/// Longest wait for one all-reduce.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Settings of a measurement.
pub(crate) struct Work<'a> {
    /// The model's entry in the file of sizes.
    pub(crate) size: &'a Value,
    /// Samples of this rank.
    pub(crate) batch: i64,
    /// Execution mode of steps.
    pub(crate) mode: Mode,
    /// Requested precision.
    pub(crate) precision: Wanted,
    /// Orders of kernels.
    pub(crate) orders: BTreeMap<String, Vec<String>>,
    /// Largest bucket of gradients in MiB; `None`: the default.
    pub(crate) bucket_mib: Option<f64>,
}

/// The state that a step changes.
pub(crate) struct Trainer {
    subject: Subject,
    steps: Steps,
    average: Option<Ema>,
    rate: Tensor,
    wanted: Mode,
    reduces: bool,
    last: Option<(Tensor, Mode)>,
    /// Floating-point operations of forward and backward, and recorded operations, of the first step.
    cost: Cell<Option<(u64, usize)>>,
}

impl Trainer {
    /// Initializes weights that are equal on every rank. Fails for a precision that this device or build lacks.
    pub(crate) fn new(work: &Work<'_>, place: &Member) -> Result<Self, Box<dyn Error>> {
        let mut pb = ParamBuilder::new();
        if let Some(mib) = work.bucket_mib {
            pb.limit_buckets(mib);
        }
        let subject = Subject::new(work.size, work.batch, place.device, &mut pb)?;
        let setup = Setup {
            seed: 1,
            optimizer: AdamWSettings { betas: (0.9, 0.95), weight_decay: 0.1, clip: 1.0 },
            precision: work.precision,
            demand: subject.demand(),
            kernels: Settings { order: work.orders.clone(), deterministic: false },
            extras: Vec::new(),
            limit: work.mode,
            profile: None,
        };
        let steps = Steps::new(pb, place, setup)?;
        let choice = steps.precision.choice();
        if json!(choice.format.name()) != json!(work.precision) {
            return Err(format!("{} instead: {}", choice.format.name(), choice.reason).into());
        }
        Ok(Self {
            average: if subject.averages() { Some(Ema::new(&steps.weights, 0.98)?) } else { None },
            subject,
            steps,
            rate: Tensor::from(RATE).to_device(place.device),
            wanted: work.mode,
            reduces: true,
            last: None,
            cost: Cell::new(None),
        })
    }

    /// Disables the reduction of gradients from now on.
    pub(crate) fn stop_reducing(&mut self) {
        self.reduces = false;
        self.steps.executor.reset();
    }

    /// Makes optimizer step `number`.
    pub(crate) fn step(&mut self, place: &Member, number: u64) -> Result<(), OpError> {
        let mut inputs = self.subject.batch();
        inputs.push(self.rate.shallow_clone());
        let Self { subject, steps, average, cost, .. } = self;
        let collectives: &dyn Collectives = if self.reduces { place } else { &Unasked(1) };
        let batch = inputs[0].size()[0].unsigned_abs();
        let ran = steps.step(collectives, number, inputs, |cx, parts, inputs| {
            let Some((rate, data)) = inputs.split_last() else { unreachable!("the rate is the last input") };
            cx.set_rows(u64::from(place.rank()) * batch, batch);
            let (loss, count) = subject.loss(cx, data)?;
            let wide = f::cast(cx, &f::detach(cx, &loss)?, Kind::Double)?;
            let flat = |t| f::reshape(cx, t, &[1]);
            let sums = f::cat(cx, &[&flat(&wide)?, &flat(&count)?], 0)?;
            cx.all_reduce_value(&sums)?;
            parts.backward(cx, &loss, true)?;
            if cost.get().is_none() {
                cost.set(Some(cx.with_program(|program: &Program| (program.flops(), program.recs().len()))));
            }
            let norm = parts.complete(cx)?;
            let number = |i| f::reshape(cx, &f::narrow(cx, &sums, 0, i, 1)?, &[]);
            let sum = number(0)?;
            let count = number(1)?;
            parts.optimize(cx, &norm, &count, rate, average.as_ref())?;
            Ok::<_, OpError>(vec![f::div(cx, &sum, &count)?])
        })?;
        self.last = ran.outputs.into_iter().next().map(|loss| (loss, ran.mode));
        Ok(())
    }

    /// Runs only the all-reduces of a step.
    pub(crate) fn all_reduce(&self, place: &Member) -> Result<(), Box<dyn Error>> {
        // Backward completes the last bucket first.
        let begun = self.steps.grads.buckets().rev().map(|(_, flat)| place.group.all_reduce_sum(flat));
        let works: Vec<_> = begun.collect::<Result<_, _>>()?;
        Ok(works.iter().try_for_each(|work| work.order(WAIT_MAX))?)
    }

    /// Returns the bytes that a step all-reduces.
    pub(crate) fn gradient_bytes(&self) -> usize {
        self.steps.grads.buckets().map(|(_, flat)| flat.numel() * flat.kind().elt_size_in_bytes()).sum()
    }

    /// Returns the number of learned scalars.
    pub(crate) fn parameters(&self) -> i64 {
        self.steps.params.numel()
    }

    /// Checks that the last step was executed in the requested mode.
    pub(crate) fn expect_mode(&self) -> Result<(), String> {
        let mode = self.last.as_ref().map(|(_, mode)| *mode);
        if mode == Some(self.wanted) {
            return Ok(());
        }
        let why = self.steps.executor.fallback_reason().unwrap_or("too few steps before, or not on a GPU");
        Err(format!("the last step ran as {mode:?}, not as {}: {why}", self.wanted.name()))
    }

    /// Returns the last step's mean loss, the cost of a step, the kernels of operations that have several, and their faults.
    pub(crate) fn found(&self) -> Result<Value, Box<dyn Error>> {
        let (loss, _) = self.last.as_ref().ok_or("no step was made")?;
        let (flops, operations) = self.cost.get().unwrap_or_default();
        let several = self.steps.kernels.take_calls().into_iter().filter(|op| op.order.len() > 1);
        let kernels: BTreeMap<String, Value> = several.map(|op| (op.op.clone(), kernels(&op))).collect();
        let news = self.steps.kernels.take_events();
        let faults: Vec<String> =
            news.iter().filter(|n| matches!(n, KernelEvent::Faulted(_))).map(|n| format!("{n:?}")).collect();
        Ok(json!({
            "loss": loss.f_double_value(&[])?, "flops": flops, "operations": operations, "kernels": kernels,
            "faults": faults,
        }))
    }
}

/// Lists calls by kernel, and the kernels that were passed over.
fn kernels(op: &OpKernels) -> Value {
    let ran: BTreeMap<&String, u64> = op.ran.iter().map(|(kernel, calls)| (kernel, calls.calls)).collect();
    json!({ "ran": ran, "passed_over": op.passed_over.keys().collect::<Vec<_>>() })
}
