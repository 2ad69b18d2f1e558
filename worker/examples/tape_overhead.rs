//! Measures the cost of recording: thousands of operations on a small tensor, through libtorch's bindings alone,
//! through the tape, and through the tape with a manager of kernels that knows the operands' signature, as in every
//! worker. Prints microseconds per operation as JSON, one number per round. `tests/bench/tape_overhead.py` evaluates
//! them.
//!
//! The clock is this thread's processor time, to which other processes on the machine do not contribute.

use enn_worker::{
    autograd::{Cx, Executor, Mode, Request},
    error::OpError,
    functional as f,
    kernel::{Extra, FirstFit, Launcher, Manager, NoIntents, Settings},
    op::row::{Kernel, Tolerance},
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

/// Number of operations per pass.
const CALLS: usize = 4000;
/// Number of passes per round, of which the fastest counts.
const PASSES: usize = 5;
const ROUNDS: usize = 7;
/// A kernel that does the same as the plain one: only the dispatch is measured.
static SECOND: Kernel = Kernel {
    id: "bench.tanh",
    fits: |_, _| Ok(()),
    launch: |op, l| (op.row().launch)(op, l),
    tolerance: Tolerance::Exact,
    deterministic: true,
};

fn main() -> Result<(), Box<dyn Error>> {
    tch::set_num_threads(1);
    let params = ParamBuilder::new().build(0, Device::Cpu)?;
    let grads = GradBuckets::new(&params)?;
    let x = Tensor::ones([4, 4], (Kind::Float, Device::Cpu));
    let second = Extra { op: "tanh", kernel: &SECOND };
    let manager = Manager::new(Settings::default(), vec![second], Box::new(NoIntents))?;
    let mut executor = Executor::new(Mode::Plan);
    let mut rounds = [const { Vec::new() }; 5];
    for _ in 0..ROUNDS {
        let mut best = [f64::MAX; 5];
        for _ in 0..PASSES {
            let bare = through_tch(&x)?;
            let (taped, both) = through_the_tape(&params, &grads, &x, &FirstFit)?;
            let (managed, _) = through_the_tape(&params, &grads, &x, &manager)?;
            let planned = again(&mut executor, &params, &x)?;
            for (best, found) in best.iter_mut().zip([bare, taped, both, managed, planned]) {
                *best = best.min(found.as_secs_f64() * 1e6 / CALLS as f64);
            }
        }
        rounds.iter_mut().zip(best).for_each(|(all, best)| all.push(best));
    }
    let [bare, taped, both, managed, planned] = rounds;
    let found = json!({
        "operations": CALLS, "tch_us": bare, "taped_us": taped, "taped_with_backward_us": both, "managed_us": managed,
        "planned_us": planned,
    });
    Ok(writeln!(stdout().lock(), "{found}")?)
}

/// Returns the processor time of this thread.
fn now() -> Result<Duration, nix::Error> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// Runs the operations and keeps their results, as a tape must.
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

/// Measures forward, and forward with backward.
fn through_the_tape(
    params: &Params,
    grads: &GradBuckets,
    x: &Tensor,
    launcher: &dyn Launcher,
) -> Result<(Duration, Duration), Box<dyn Error>> {
    let start = now()?;
    let mut cx = Cx::train(params, 0, 0);
    cx.set_launcher(launcher);
    let mut y = cx.variable(x.shallow_clone());
    for _ in 0..CALLS {
        y = f::tanh(&cx, &y)?;
    }
    let forward = now()? - start;
    let loss = f::sum_all(&cx, &y)?;
    cx.backward(&loss, grads, &mut |_, _| Ok(()))?;
    Ok((forward, now()? - start))
}

/// Measures a step after the executor has begun to replay its recording.
fn again(executor: &mut Executor, params: &Params, x: &Tensor) -> Result<Duration, Box<dyn Error>> {
    loop {
        let inputs = vec![x.shallow_clone()];
        let leaves = params;
        let launcher = &FirstFit;
        let request =
            Request { leaves, seed: 0, step: 0, launcher, collectives: None, inputs, watch: None, observer: None };
        let start = now()?;
        let ran = executor.step(request, |cx, inputs| {
            let mut y = inputs[0].clone();
            for _ in 0..CALLS {
                y = f::tanh(cx, &y)?;
            }
            Ok::<_, OpError>(vec![y])
        })?;
        if ran.mode == Mode::Plan {
            return Ok(now()? - start);
        }
    }
}
