//! Steps that were refused because a gradient was not finite: noticed without waiting for the device, and explained by running
//! them once more.
//!
//! A refused step changed no weight. On the CPU it is seen at once, and the replay is that step exactly; a device is asked when
//! it is waited for anyway, and the replay uses the weights of then.
//!
//! **Invariant:** a replay takes part in no collective and changes nothing but the gradient storage, which the next step clears.

use super::{
    SessionError,
    learner::Learner,
    step::{Place, loss},
};
use crate::{
    autograd::{BucketId, Cx, Role},
    data::Batch,
    error::HookError,
    kernel::{Bisect, Blame, Finding},
};
use std::collections::VecDeque;
use tch::{Device, Tensor};

/// Steps remembered until the device is asked.
const STEPS_MAX: usize = 8;
/// Replays of one session: data that are never finite must not cost every step twice.
const REPLAYS_MAX: u32 = 8;

/// A step that was done.
struct Done {
    step: u64,
    batch: Batch,
    /// 1 when it landed, else 0; on the device.
    taken: Tensor,
}

/// The last steps, and how many were replayed.
#[derive(Default)]
pub struct Refusals {
    last: VecDeque<Done>,
    replays: u32,
}

impl Refusals {
    /// Remembers a step.
    pub fn note(&mut self, step: u64, batch: &Batch, taken: &Tensor) {
        if self.replays >= REPLAYS_MAX {
            return;
        }
        if self.last.len() >= STEPS_MAX {
            self.last.pop_front();
        }
        let share = |tensor: &Tensor| tensor.shallow_clone();
        let (x, x_mask) = (share(&batch.x), share(&batch.x_mask));
        let batch = Batch { x, x_mask, y: share(&batch.y), y_mask: share(&batch.y_mask), real: batch.real };
        self.last.push_back(Done { step, batch, taken: share(taken) });
    }

    /// Reads the flags of the steps remembered, and explains the first that was refused. Waits for the device.
    ///
    /// # Errors
    /// [`SessionError::Poisoned`] when a weight is not finite: only a checkpoint helps. What libtorch says.
    pub fn explain(&mut self, learner: &mut Learner, place: &Place<'_>) -> Result<Option<String>, SessionError> {
        let last = std::mem::take(&mut self.last);
        let flags: Vec<Tensor> = last.iter().map(|done| done.taken.shallow_clone()).collect();
        if flags.is_empty() {
            return Ok(None);
        }
        let flags = Vec::<f64>::try_from(Tensor::f_stack(&flags, 0)?.f_view(-1)?.f_to_device(Device::Cpu)?)?;
        let Some((done, _)) = last.iter().zip(flags).find(|(_, taken)| *taken == 0.0) else { return Ok(None) };
        self.replays += 1;
        let found = replay(learner, place, &done.batch, done.step)?;
        found.map(|found| found.told(learner, done.step)).transpose()
    }
}

/// A finding with its place in the model.
struct Found {
    finding: Finding,
    place: String,
    /// What the bad operand is for.
    role: Option<Role>,
}

/// Runs a step's share of this rank once more, operation by operation beside the plain references.
fn replay(learner: &mut Learner, place: &Place<'_>, batch: &Batch, step: u64) -> Result<Option<Found>, SessionError> {
    for micro in 0..place.accumulation {
        learner.grads.zero()?;
        let bisect = Bisect::new(&place.kernels.manager);
        let (_, parts) = learner.split();
        let mut cx = Cx::train(parts.params, place.seed, step);
        cx.set_launcher(&bisect);
        let inputs = [&batch.x, &batch.x_mask, &batch.y, &batch.y_mask].map(|raw| cx.input(raw.shallow_clone()));
        let loss = loss(&cx, inputs.each_ref(), (&parts, place), micro)?;
        cx.backward(&loss.sum, parts.grads, &mut |_: BucketId, _: &Tensor| -> Result<(), HookError> { Ok(()) })?;
        if let Some(finding) = bisect.finding() {
            return Ok(Some(placed(&cx, finding)));
        }
    }
    Ok(None)
}

fn placed(cx: &Cx<'_>, finding: Finding) -> Found {
    cx.with_program(|program| {
        let rec = program.recs().get(finding.record);
        let place = rec.map_or_else(String::new, |rec| program.place(rec.scope));
        let role = match (&finding.blame, rec) {
            (Blame::Operand { operand, .. }, Some(rec)) => rec.ins.get(*operand).map(|val| program.val(*val).role),
            _ => None,
        };
        Found { finding, place, role }
    })
}

impl Found {
    /// The sentence for the user.
    fn told(self, learner: &Learner, step: u64) -> Result<String, SessionError> {
        let Self { finding, place, role } = self;
        let op = finding.op;
        let cause = match (finding.blame, role) {
            (Blame::Kernel(fault), _) => format!("kernel {} {}", fault.kernel, fault.fault),
            (Blame::Operand { .. }, Some(Role::Param(id))) => {
                let weight = learner.params.name(id).to_owned();
                return Err(SessionError::Poisoned { weight, op, place, step });
            }
            (Blame::Operand { rows, rows_total, .. }, Some(Role::Input)) => {
                let first = rows.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                format!("{rows_total} rows of this worker's batch are not finite, the first ones {first} (data)")
            }
            (Blame::Operand { operand, .. }, _) => format!("operand {operand} is not finite"),
            (Blame::Result, _) => {
                "its result is not finite though its operands are: numbers have grown too large (a row \
                                   far out of range? else a smaller train.lr helps)"
                    .to_owned()
            }
        };
        Ok(format!("step {step} was refused because its gradient was not finite: {op} at {place}: {cause}"))
    }
}
