//! Whole trainings in low precision: what they take, that they learn as f32 does, and that replays change nothing.

use crate::session::data::{commit_last, config, spoil, stage};
use crate::session::{alone, floats, gloo, resumed_as_whole, tensors, two_ranks};
use enn_common::{
    checkpoint::Checkpoint,
    config::{
        RunConfig,
        train::{Execution, Precision as Wanted},
    },
    staged::Staged,
    wire::message::FromWorker,
};
use enn_worker::{
    block::SubModels,
    comm::Solo,
    data::Batch,
    model::ModelSpec,
    session::{
        Recorder,
        kernels::{KernelTask, Kernels},
        learner::Learner,
        precision::{Demand, Precision},
        round::step::{StepContext, step},
    },
};
use std::{collections::BTreeMap, path::Path};
use tch::{Device, Kind, Tensor};

const EPOCHS: u64 = 34;

fn wanting(precision: Wanted) -> RunConfig {
    let mut config = config(EPOCHS);
    config.train.precision = precision;
    config
}

/// What was taken and why, and the mean loss of each epoch.
fn losses(messages: &[FromWorker]) -> (String, String, Vec<f64>) {
    let chosen = messages.iter().find_map(|message| match message {
        FromWorker::PrecisionChosen { format, reason } => Some((format.clone(), reason.clone())),
        _ => None,
    });
    let (format, reason) = chosen.unwrap();
    let epochs = messages.iter().filter_map(|message| match message {
        FromWorker::EpochEnded(report) => Some(report.train_loss),
        _ => None,
    });
    (format, reason, epochs.collect())
}

#[test]
fn every_precision_of_the_cpu_learns_alike_and_says_what_it_took() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let run = |wanted: Wanted, name: &str| {
        let config = wanting(wanted);
        let place = dir.path().join(name);
        let (outcome, messages) = alone(&config, &place, &staged, None, &Recorder::default()).unwrap();
        let checkpoint = Checkpoint::open(&commit_last(&messages, &config, &staged)).unwrap();
        for name in checkpoint.tensor_names().filter(|name| name.starts_with("model.")) {
            let dtype = format!("{:?}", checkpoint.tensor(name).unwrap().dtype).to_lowercase();
            assert!(!dtype.contains("16"), "{name} is {dtype}: checkpoints hold the f32 masters only");
        }
        (outcome, losses(&messages))
    };
    let (full, (format, reason, expected)) = run(Wanted::Auto, "auto");
    assert_eq!((format.as_str(), reason.as_str()), ("fp32", "the best for the CPU"));
    let (_, (format, reason, _)) = run(Wanted::Fp8, "fp8");
    assert_eq!(format, "bf16");
    assert!(reason.contains("fp8 needs a GPU of compute capability 8.9, found the CPU"), "{reason}");
    for wanted in [Wanted::Bf16, Wanted::Fp16] {
        let (outcome, (format, reason, found)) = run(wanted, &format!("{wanted:?}"));
        assert_eq!(reason, "train.precision asks for it");
        for (epoch, (a, b)) in found.iter().zip(&expected).enumerate() {
            assert!((a - b).abs() < 0.15 * b + 0.02, "{format}, epoch {epoch}: {a} against {b}");
        }
        let a = outcome.split["val"].rmse;
        let b = full.split["val"].rmse;
        assert!((a - b).abs() < 0.15 * b, "{format}: validation error {a} against {b}");
    }
}

#[test]
fn every_mixer_learns_alike_in_16_bits() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let run = |wanted: Wanted| {
        let mut config = RunConfig { model: crate::session::composed(), ..wanting(wanted) };
        config.train.epochs = 12;
        let place = dir.path().join(format!("{wanted:?}"));
        let (_, messages) = alone(&config, &place, &staged, None, &Recorder::default()).unwrap();
        losses(&messages).2
    };
    let expected = run(Wanted::Fp32);
    assert!(expected[11] < 0.5 * expected[0], "{expected:?}");
    for wanted in [Wanted::Bf16, Wanted::Fp16] {
        for (epoch, (a, b)) in run(wanted).iter().zip(&expected).enumerate() {
            assert!((a - b).abs() < 0.15 * b + 0.02, "{wanted:?}, epoch {epoch}: {a} against {b}");
        }
    }
}

#[test]
fn replayed_steps_compute_the_bits_of_recorded_ones_in_bf16_and_fp16() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    for wanted in [Wanted::Bf16, Wanted::Fp16] {
        let run = |execution: Execution| {
            let mut config = wanting(wanted);
            config.train.epochs = 3;
            config.train.execution = execution;
            let place = dir.path().join(format!("{wanted:?}{execution:?}"));
            let (_, messages) = alone(&config, &place, &staged, None, &Recorder::default()).unwrap();
            losses(&messages).2
        };
        assert_eq!(run(Execution::Plan), run(Execution::Tape), "{wanted:?}");
    }
}

/// A batch of the first rows.
fn batch(staged: &Path, rows: usize) -> Batch {
    let open = Staged::open(staged).unwrap();
    let stack = |values: Vec<Tensor>| Tensor::stack(&values, 0);
    let x = stack((0..rows).map(|row| Tensor::from_slice(open.x_row(row))).collect());
    let y = stack((0..rows).map(|row| Tensor::from_slice(open.y_row(row))).collect());
    let x_mask = x.isfinite();
    let y_mask = y.isfinite();
    Batch { x, x_mask, y, y_mask, whole: None, rows: (0..rows as u64).collect(), real: rows }
}

#[test]
fn a_place_in_trouble_runs_in_f32_for_64_steps_even_when_steps_are_replayed() {
    tch::set_num_threads(1);
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = wanting(Wanted::Bf16);
    config.train.execution = Execution::Plan;
    let spec = ModelSpec::from_meta(Staged::open(&staged).unwrap().meta());
    let mut learner = Learner::build(&config, &spec, &SubModels::new(), 100, Device::Cpu).unwrap();
    let demand = Demand::of(&spec, 12);
    learner.take_precision(Precision::decide(Wanted::Bf16, demand, Device::Cpu, &Solo).unwrap()).unwrap();
    let recorder = Recorder::default();
    let kernels = Kernels::new(&config, &KernelTask::default(), &recorder).unwrap();
    let place = StepContext {
        group: &Solo,
        reporter: &recorder,
        kernels: &kernels,
        device: Device::Cpu,
        seed: 1,
        accumulation: 1,
        first_row: 0,
        save: false,
        holds: false,
        copying: None,
        profile: None,
    };
    let batch = batch(&staged, 12);
    let low_products = |learner: &mut Learner| {
        let plan = learner.executor.plan().unwrap();
        let program = plan.program();
        let fuser = program.recs().iter().filter(|rec| program.place(rec.scope).starts_with("fuser"));
        fuser.filter(|rec| rec.op.name() == "linear" && program.val(rec.first_out).meta.kind == Kind::BFloat16).count()
    };
    let mut seen = Vec::new();
    for at in 0..80 {
        if at == 4 {
            learner.precision.trouble("fuser", 3);
        }
        step(&mut learner, &place, &batch, at, at == 0).unwrap();
        if learner.executor.plan().is_some() {
            seen.push((at, low_products(&mut learner) > 0));
        }
    }
    let low = |at: u64| seen.iter().find(|(step, _)| *step == at).map(|(_, low)| *low);
    assert_eq!((low(3), low(10), low(67), low(75)), (Some(true), Some(false), Some(false), Some(true)), "{seen:?}");
}

/// A row far out of range is refused in fp16; the place whose numbers outgrow fp16 then computes in f32, and the row is taken.
/// Only one rank has the row, and both go on alike.
#[test]
fn numbers_that_outgrow_fp16_cool_their_place_down_and_the_row_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    spoil(&staged, 1e6);
    let mut config = wanting(Wanted::Fp16);
    config.train.epochs = 6;
    let one = alone(&config, &dir.path().join("one"), &staged, None, &Recorder::default()).unwrap();
    let two = two_ranks(&config, &dir.path().join("two"), &staged, gloo);
    for (outcome, messages) in [one, two] {
        let skipped: Vec<u64> = messages
            .iter()
            .filter_map(
                |message| if let FromWorker::EpochEnded(report) = message { Some(report.skipped) } else { None },
            )
            .collect();
        let told: Vec<&String> = messages
            .iter()
            .filter_map(|message| if let FromWorker::Warned { message } = message { Some(message) } else { None })
            .collect();
        assert_eq!(outcome.step, 36);
        assert!(!told.is_empty() && told[0].contains("computes in fp32 for 64 steps"), "{told:?}");
        assert!(skipped[0] > 0 && skipped[5] == 0, "{skipped:?}: {told:?}");
    }
}

/// The loss scale, the places in f32 and the ends of their times come back: a training in fp16 may be stopped when a place
/// begins to cool down, while it does, and after that.
#[test]
fn stopping_anywhere_and_resuming_changes_no_bit_in_fp16() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    spoil(&staged, 1e6);
    let mut config = wanting(Wanted::Fp16);
    config.train.epochs = 14;
    let states = resumed_as_whole(&config, dir.path(), &staged, &[1, 9, 40, 72]);
    let number = |bytes: &Vec<u8>| i64::from_le_bytes(bytes.as_slice().try_into().unwrap());
    // The first steps that cast again, by place.
    let cooling = |state: &BTreeMap<String, Vec<u8>>| -> Vec<i64> {
        let places = state.iter().filter(|(name, _)| name.starts_with("precision.cooldown."));
        places.map(|(_, until)| number(until)).collect()
    };
    let begun = cooling(&states[0]);
    let last = cooling(&states[4]);
    assert!(!begun.is_empty() && begun.iter().all(|until| (65..84).contains(until)), "{begun:?}");
    assert!(last.iter().all(|until| *until > 84), "they cooled down and had trouble again: {last:?}");
    let scale = |state: &BTreeMap<String, Vec<u8>>| floats(&state["precision.loss_scale"])[0];
    let scales: Vec<f32> = states.iter().map(scale).collect();
    assert!(scales[4] < scales[0], "refused steps made it smaller: {scales:?}");
    assert!(states[4].contains_key("precision.good_steps"));
}

#[test]
fn a_training_goes_on_in_another_precision() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut resume = None;
    for (index, wanted) in [Wanted::Fp32, Wanted::Fp16, Wanted::Bf16, Wanted::Fp16].into_iter().enumerate() {
        let config = wanting(wanted);
        let stop = 3 * (index as u64 + 1);
        let place = dir.path().join(format!("part{index}"));
        let (outcome, messages) = alone(&config, &place, &staged, resume, &Recorder::stopping_at(stop - 1)).unwrap();
        assert_eq!((outcome.stopped, outcome.step), (true, stop));
        let checkpoint = commit_last(&messages, &config, &staged);
        let names = tensors(&checkpoint).into_keys();
        let own = names.filter(|name| name.starts_with("precision.")).count();
        assert_eq!(own, if wanted == Wanted::Fp16 { 2 } else { 0 }, "{wanted:?}");
        resume = Some(checkpoint);
    }
}
