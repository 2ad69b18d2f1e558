//! A refused step of a loop of one's own, once more, beside the plain references: who made it not finite.
//!
//! A refused step changed no weight. On the CPU it is seen at once, and the replay is that step exactly. A device is asked when the
//! ranks agree on kernels; what is replayed then are the inputs of its last step, with the weights of then.
//!
//! **Invariant:** a replay ends before anything in which other ranks take part, and changes nothing but gradients, which the next
//! step clears.

use super::{
    StepParts, Steps,
    replay::{Given, Replay},
};
use crate::session::nonfinite_cause::NonfiniteCause;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    kernel::Bisect,
    op::collective::Unasked,
};
use enn_model::optim::OptimError;
use std::collections::BTreeSet;
use tch::Tensor as Raw;

/// Replays in a row that found no kernel: data that are never finite must not cost every step twice.
const REPLAYS_MAX: u32 = 8;

impl Steps {
    /// Whether a step was refused since the last look, and a replay is worth its time. Waits for the device.
    pub(super) fn is_refused(&mut self) -> Result<bool, OptimError> {
        let skipped = self.optimizer.skipped()?;
        let refused = skipped > std::mem::replace(&mut self.replay_state.seen, skipped);
        if !refused {
            self.replay_state.fruitless = 0;
        }
        Ok(refused && self.replay_state.fruitless < REPLAYS_MAX)
    }

    /// Makes a refused step once more, and keeps what it finds. A kernel that is at fault is in quarantine on this rank then.
    pub(super) fn explain<E: From<OpError>>(
        &mut self,
        given: &Given,
        code: &mut impl FnMut(&Cx<'_>, &StepParts<'_>, &[Tensor]) -> Result<Vec<Tensor>, E>,
    ) {
        let found = self.replay(given, code);
        self.replay_state.fruitless = match &found {
            Some(found) if found.is_of_a_kernel() => 0,
            _ => self.replay_state.fruitless + 1,
        };
        let Some(found) = found else { return };
        // Nothing runs in another precision because of it: ranks would have to agree.
        let found = NonfiniteCause { low: None, ..found };
        let cause =
            found.sentence(&self.params, given.number, &BTreeSet::new()).unwrap_or_else(|error| error.sentence());
        tracing::warn!("{cause}");
        self.replay_state.cause = Some(cause);
    }

    fn replay<E: From<OpError>>(
        &self,
        given: &Given,
        code: &mut impl FnMut(&Cx<'_>, &StepParts<'_>, &[Tensor]) -> Result<Vec<Tensor>, E>,
    ) -> Option<NonfiniteCause> {
        let Self { params, weights, kernels, grads, optimizer, precision, uncompared, .. } = self;
        let bisect = Bisect::new(kernels);
        let replay = Replay::default();
        let collectives = &Unasked(1);
        let parts = StepParts { weights, grads, optimizer, precision, collectives, uncompared, replay: Some(&replay) };
        let mut cx = Cx::train(params, self.seed, given.number);
        cx.set_launcher(&bisect);
        cx.set_collectives(collectives);
        let mut run = || -> Result<Vec<Tensor>, E> {
            precision.enter(&cx)?;
            cx.clear_gradients();
            let inputs: Vec<Tensor> = given.inputs.iter().map(|raw| cx.input(raw.shallow_clone())).collect();
            code(&cx, &parts, &inputs)
        };
        let _ends_in_an_error = run();
        if !replay.ended.get() {
            tracing::warn!(step = given.number, "a refused step could not be made once more");
            return None;
        }
        let ends = replay.ends.take();
        let found = NonfiniteCause::of(&cx, &bisect, &ends)?;
        // Where the loss is finite, a gradient may have been too large for the loss scale only, which was halved.
        let backward = ends.iter().any(|end| end.backward.contains(&found.finding.record));
        let scaled = precision.has_scale() && backward && !found.is_of_a_kernel();
        (!scaled).then_some(found)
    }
}
