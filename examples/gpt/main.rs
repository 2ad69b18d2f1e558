//! A worker with a user-defined model: GPT-2's shape, trained on the bytes of a text file, alone or on many ranks.
//!
//! `target/release/gpt --data FILE`, or `enn run --nproc-per-node 2 --no-python target/release/gpt -- --data FILE`.
//! README.md beside this file explains how to adapt it.

mod error;
mod layer;
mod learner;
mod model;
mod sample;
mod settings;
mod text;

use clap::Parser;
use enn_worker::{
    optim::Schedule,
    session::torchrun::{self, Member},
};
use error::GptError;
use learner::{Learner, Step, over_ranks};
use settings::Settings;
use std::{
    io::{Write, stdout},
    process::ExitCode,
    time::Instant,
};
use text::{Share, Text};

/// Steps between two checks of rejected steps: a kernel that causes them is excluded before they are too many.
const LOOK_EVERY: u64 = 16;
/// Fraction of all steps in which the learning rate rises.
const WARM_UP: f64 = 0.05;
/// Final learning rate as a fraction of the peak.
const FLOOR: f64 = 0.1;
/// Bytes of the text's beginning with which the sample begins.
const PROMPT_BYTES: usize = 16;

fn main() -> ExitCode {
    match train(&Settings::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _gone = writeln!(std::io::stderr(), "gpt: {error}");
            ExitCode::FAILURE
        }
    }
}

fn train(settings: &Settings) -> Result<(), GptError> {
    let size = settings.size()?;
    let place = torchrun::join(settings.device()?)?;
    let share = Share {
        rank: place.rank(),
        world: place.world(),
        batch: settings.batch,
        accumulation: settings.accumulation,
        seed: settings.seed,
    };
    let text = Text::open(&settings.data, size.context, share)?;
    let mut learner = Learner::new(size, settings, &place)?;
    let first = match &settings.checkpoints {
        Some(folder) => learner.resume(folder, &place)?,
        None => 0,
    };
    let parameters = learner.steps.params.numel();
    let choice = learner.steps.precision.choice();
    say(&place, format_args!("{parameters} parameters, {} ranks on {:?}", place.world(), place.device))?;
    say(&place, format_args!("{}: {}", choice.format.name(), choice.reason))?;
    say(&place, format_args!("from step {first}; unigram {:.4} nats per byte", text.unigram_nats()))?;
    for entry in learner.steps.left_out() {
        say(&place, format_args!("left out on all ranks: {}", entry.sentence()))?;
    }
    steps(settings, &place, &text, &mut learner, first)?;
    learner.steps.finish_profile();
    if place.leads() && settings.sample > 0 {
        let prompt = &text.bytes()[..PROMPT_BYTES.min(text.bytes().len())];
        let generated = sample::text(&learner.model, &learner.steps.params, prompt, settings.sample, settings.seed)?;
        let prompt = String::from_utf8_lossy(prompt);
        let generated = String::from_utf8_lossy(&generated);
        say(&place, format_args!("sample: {prompt}|{generated}"))?;
    }
    Ok(place.leave()?)
}

fn steps(settings: &Settings, place: &Member, text: &Text, learner: &mut Learner, first: u64) -> Result<(), GptError> {
    let tokens = settings.batch * learner.model.size().context as u64;
    let schedule = Schedule {
        peak: settings.lr,
        floor: settings.lr * FLOOR,
        warmup_steps: (settings.steps as f64 * WARM_UP) as u64,
        total_steps: settings.steps,
    };
    let mut since = Instant::now();
    let mut counted = 0;
    for number in first..settings.steps {
        let rate = schedule.rate(number);
        let step = Step { number, tokens, rate, accumulation: settings.accumulation };
        let sum = learner.step(place, text, &step)?;
        let done = number + 1;
        counted += tokens;
        place.alive(done)?;
        let every = |steps: u64| done % steps.max(1) == 0 || done == settings.steps;
        let log_due = every(settings.log_every);
        let save_due = every(settings.save_every);
        if log_due || save_due || done % LOOK_EVERY == 0 {
            let new = learner.steps.agree_on_kernels(place.group.as_ref(), place.device)?;
            if let Some(reason) = learner.steps.why_refused() {
                say(place, format_args!("{reason}"))?;
            }
            for entry in new {
                say(place, format_args!("left out on all ranks: {}", entry.sentence()))?;
            }
            // The check comes before an older checkpoint is replaced.
            learner.expect_taken(done, save_due)?;
            place.group.intact()?;
        }
        if log_due {
            let loss = over_ranks(place.group.as_ref(), &sum)? / tokens as f64;
            let speed = counted as f64 / since.elapsed().as_secs_f64();
            say(place, format_args!("step {done} loss {loss:.4} lr {rate:.2e} {speed:.0} tokens/s"))?;
            since = Instant::now();
            counted = 0;
        }
        if let Some(folder) = &settings.checkpoints
            && place.leads()
            && save_due
        {
            learner.save(folder, done)?;
        }
    }
    Ok(())
}

/// Prints on rank 0 and flushes: a launcher reads the output through a pipe.
fn say(place: &Member, words: std::fmt::Arguments<'_>) -> Result<(), GptError> {
    if place.leads() {
        let mut out = stdout().lock();
        writeln!(out, "{words}")?;
        out.flush()?;
    }
    Ok(())
}
