//! One optimizer step: forward and backward over the micro-batches, gradients added over the ranks while backward still
//! runs, update, average. Nothing is read back from the device.

use super::{
    SessionError, agree::agree, boot::COLLECTIVE_WAIT_MAX, clock::Stopwatch, kernels::Kernels, learner::Learner,
    report::Reporter,
};
use crate::{
    autograd::{BucketId, Cx, Program},
    comm::{ProcessGroup, Work},
    data::Batch,
    error::HookError,
};
use enn_common::{event::StepTimes, wire::control::Phase};
use tch::{Device, Kind, Tensor};

/// Numbers that every step reduces beside the gradients: loss sum, valid cells, stop wishes, ranks that heard of a quarantine
/// that is not in force.
const CONTROL: i64 = 4;

/// Where a step runs.
pub struct Place<'a> {
    /// The other ranks.
    pub group: &'a dyn ProcessGroup,
    /// Whoever listens.
    pub reporter: &'a dyn Reporter,
    /// Chooses kernels.
    pub kernels: Kernels<'a>,
    /// Device.
    pub device: Device,
    /// Seed of dropout.
    pub seed: u64,
    /// Micro-batches per step.
    pub accumulation: u64,
    /// Where this rank's share begins in the global batch.
    pub first_row: u64,
}

/// What a step gives, on the device.
pub struct Stepped {
    /// Loss sum, valid cells, stop wishes, ranks that wait for a kernel epoch; over all ranks.
    pub control: Tensor,
    /// Norm of the mean gradient before clipping.
    pub grad_norm: Tensor,
    /// 1 when the step landed, 0 when it was refused.
    pub taken: Tensor,
    /// Learning rate used.
    pub lr: f64,
    /// Hash of the recorded forward pass, on request.
    pub program: Option<String>,
    /// Where the time went, milliseconds; without waiting for data.
    pub times: StepTimes,
}

/// Does optimizer step number `step` (from 0) with this rank's share of the global batch. `first` compares the recorded
/// programs of all ranks before the first gradient is added.
///
/// # Errors
/// Those of the model, of libtorch and of the collectives.
pub fn step(
    learner: &mut Learner,
    place: &Place<'_>,
    batch: &Batch,
    step: u64,
    first: bool,
) -> Result<Stepped, SessionError> {
    let mut watch = Stopwatch::start();
    let mut times = StepTimes::default();
    let mut program = None;
    let mut works: Vec<Work> = Vec::new();
    let control = Tensor::f_zeros([CONTROL], (Kind::Double, place.device))?;
    if place.reporter.stop_requested() {
        let _ = control.f_narrow(0, 2, 1)?.f_fill_(1.0)?;
    }
    if place.kernels.listen(step) {
        let _ = control.f_narrow(0, 3, 1)?.f_fill_(1.0)?;
    }
    place.reporter.mark(Phase::Compute, step);
    learner.grads.zero()?;
    let slots = batch.x.size()[0] / place.accumulation.cast_signed();
    for micro in 0..place.accumulation {
        let part = batch.narrow(micro.cast_signed() * slots, slots)?;
        let last = micro + 1 == place.accumulation;
        let mut cx = Cx::train(&learner.params, place.seed, step);
        cx.set_launcher(&place.kernels.manager);
        // Dropout follows the rows of the global batch, so that it is the same in every world.
        cx.set_rows(place.first_row + micro * slots.cast_unsigned(), slots.cast_unsigned());
        let output = learner.model.forward(&cx, &part.x, &part.x_mask)?;
        let targets = learner.model.targets(&part.y, &part.y_mask)?;
        let loss = learner.objective.forward(&cx, &output, &targets)?;
        let _ = control.f_narrow(0, 0, 1)?.f_add_(&loss.sum.raw().f_detach()?.f_to_kind(Kind::Double)?)?;
        let _ = control.f_narrow(0, 1, 1)?.f_add_(&loss.count)?;
        times.forward += watch.lap_ms();
        if first && micro == 0 {
            let hash = cx.program_hash();
            // Which kernel ran may differ in the very step in which a rank finds one wrong.
            agree(place.group, place.device, "recorded program", cx.with_program(Program::structure_hash).as_bytes())?;
            program = Some(hash);
        }
        if last {
            works.push(place.group.all_reduce_sum(&control)?);
        }
        let mut reduce = |_: BucketId, gradient: &Tensor| -> Result<(), HookError> {
            if last {
                works.push(place.group.all_reduce_sum(gradient)?);
            }
            Ok(())
        };
        cx.backward(&loss.sum, &learner.grads, &mut reduce)?;
        times.backward += watch.lap_ms();
    }
    place.reporter.mark(Phase::Collective, step);
    for work in &works {
        work.order(COLLECTIVE_WAIT_MAX)?;
    }
    times.comm = watch.lap_ms();
    place.reporter.mark(Phase::Compute, step);
    let lr = learner.schedule.rate(step);
    let count = control.f_narrow(0, 1, 1)?.f_view([0i64; 0])?;
    let stats = learner.optimizer.step(&mut learner.grads, &count, lr)?;
    if let Some(ema) = &mut learner.ema {
        ema.update(&learner.weights)?;
    }
    times.optimizer = watch.lap_ms();
    times.total = times.forward + times.backward + times.comm + times.optimizer;
    Ok(Stepped { control, grad_norm: stats.grad_norm, taken: stats.taken, lr, program, times })
}
