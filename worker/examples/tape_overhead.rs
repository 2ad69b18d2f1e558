//! What recording costs: thousands of operations on a small tensor, through libtorch's bindings alone and through the tape.
//! Prints microseconds per operation as JSON, one number per round. `tests/bench/tape_overhead.py` judges them.
//!
//! The clock is this thread's processor time, which other processes on the machine do not add to.

use enn_worker::{
    autograd::Cx,
    functional as f,
    params::{GradBuckets, ParamBuilder, Params},
};
use nix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::{
    error::Error,
    io::{Write, stdout},
    time::Duration,
};
use tch::{Device, Kind, Tensor};

/// Operations of one pass.
const CALLS: usize = 4000;
/// Passes of a round, of which the fastest counts.
const PASSES: usize = 5;
/// Rounds.
const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    tch::set_num_threads(1);
    let params = ParamBuilder::new().build(0, Device::Cpu)?;
    let grads = GradBuckets::new(&params)?;
    let x = Tensor::ones([4, 4], (Kind::Float, Device::Cpu));
    let (mut bare, mut taped, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut best = [f64::MAX; 3];
        for _ in 0..PASSES {
            let (forward, backward) = through_the_tape(&params, &grads, &x)?;
            for (best, found) in best.iter_mut().zip([through_tch(&x)?, forward, backward]) {
                *best = best.min(found.as_secs_f64() * 1e6 / CALLS as f64);
            }
        }
        bare.push(best[0]);
        taped.push(best[1]);
        both.push(best[2]);
    }
    let found = json!({ "operations": CALLS, "tch_us": bare, "taped_us": taped, "taped_with_backward_us": both });
    Ok(writeln!(stdout().lock(), "{found}")?)
}

/// Processor time of this thread.
fn now() -> Result<Duration, nix::Error> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// Keeps what it makes, as a tape must.
fn through_tch(x: &Tensor) -> Result<Duration, Box<dyn Error>> {
    let start = now()?;
    tch::no_grad(|| {
        let mut kept = vec![x.shallow_clone()];
        for i in 0..CALLS {
            kept.push(kept[i].f_tanh()?);
        }
        Ok::<_, tch::TchError>(())
    })?;
    Ok(now()? - start)
}

/// Forward, and forward with backward.
fn through_the_tape(params: &Params, grads: &GradBuckets, x: &Tensor) -> Result<(Duration, Duration), Box<dyn Error>> {
    let start = now()?;
    let cx = Cx::train(params, 0, 0);
    let mut y = cx.variable(x.shallow_clone());
    for _ in 0..CALLS {
        y = f::tanh(&cx, &y)?;
    }
    let forward = now()? - start;
    let loss = f::sum_all(&cx, &y)?;
    cx.backward(&loss, grads, &mut |_, _| Ok(()))?;
    Ok((forward, now()? - start))
}
