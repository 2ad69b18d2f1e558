//! Validations within an epoch: when they come, that they change no weight, and that best weights and patience go by them.

use crate::session::{
    alone,
    data::{commit_last, config, stage, task},
    resumed_as_whole, tensors,
};
use enn_common::{
    event::EpochReport,
    wire::{client::ClientError, control::Phase, message::FromWorker},
};
use enn_worker::{
    comm::Solo,
    error::OpErrorKind,
    kernel::Extra,
    op::{
        Op,
        row::{Kernel, Launch, Launched, Tolerance},
    },
    session::{KernelTask, Recorder, Reporter, SessionError, TrainTask, train},
};
use std::cell::Cell;
use tch::TchError;

fn reports(messages: &[FromWorker]) -> Vec<EpochReport> {
    let report = |message: &FromWorker| match message {
        FromWorker::EpochEnded(report) => Some((**report).clone()),
        _ => None,
    };
    messages.iter().filter_map(report).collect()
}

#[test]
fn validations_within_an_epoch_change_no_weight_and_resume_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let trained = |every: u64, name: &str| {
        let mut config = config(3);
        config.train.validate_every_steps = every;
        let (_, messages) = alone(&config, &dir.path().join(name), &staged, None, &Recorder::default()).unwrap();
        (tensors(&commit_last(&messages, &config, &staged)), reports(&messages))
    };
    let seldom = trained(0, "seldom");
    let often = trained(4, "often");
    // Six steps an epoch.
    let when = |reports: &[EpochReport]| reports.iter().map(|report| (report.step, report.name())).collect::<Vec<_>>();
    let named = |all: &[(u64, &str)]| all.iter().map(|(step, name)| (*step, (*name).to_owned())).collect::<Vec<_>>();
    assert_eq!(when(&seldom.1), named(&[(6, "epoch 1"), (12, "epoch 2"), (18, "epoch 3")]));
    let expected = [
        (4, "epoch 1 at 67 %"),
        (6, "epoch 1"),
        (10, "epoch 2 at 67 %"),
        (12, "epoch 2"),
        (16, "epoch 3 at 67 %"),
        (18, "epoch 3"),
    ];
    assert_eq!(when(&often.1), named(&expected));
    for (one, other) in seldom.1.iter().zip(often.1.iter().filter(|report| report.part == 1.0)) {
        assert_eq!((one.train_loss, one.val.mae), (other.train_loss, other.val.mae), "{}", one.name());
    }
    for (name, bytes) in seldom.0.iter().filter(|(name, _)| name.starts_with("model.") || name.starts_with("optim.")) {
        assert!(often.0[name] == *bytes, "{name}");
    }
    // At a validation, behind one, and at an epoch's end.
    let mut config = config(3);
    config.train.validate_every_steps = 4;
    resumed_as_whole(&config, &dir.path().join("resumed"), &staged, &[4, 5, 12, 16]);
}

#[test]
fn patience_counts_validations_and_the_best_of_them_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = config(40);
    // Far too fast to stay good: the error rises soon.
    config.train.lr = 0.3;
    config.train.ema = 0.0;
    config.train.patience = 3;
    config.train.validate_every_steps = 1;
    let (outcome, messages) = alone(&config, dir.path(), &staged, None, &Recorder::default()).unwrap();
    let maes: Vec<f64> = reports(&messages).iter().map(|report| report.val.mae).collect();
    assert!(outcome.step < 40 * 6 && maes.len() as u64 == outcome.step, "{outcome:?}: {maes:?}");
    let best = maes.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(maes.iter().rposition(|mae| *mae == best).unwrap() + 4, maes.len());
    assert!((outcome.split["val"].mae - best).abs() < 1e-9);
    let kept = messages.iter().find_map(|message| match message {
        FromWorker::Decided { decision } => decision.strip_prefix("kept the weights of ").map(str::to_owned),
        _ => None,
    });
    let step = maes.len() as u64 - 3;
    let of = if step.is_multiple_of(6) { format!("epoch {}:", step / 6) } else { format!("step {step}:") };
    assert!(kept.as_ref().is_some_and(|kept| kept.starts_with(&of)), "{kept:?}, expected {of}");
}

thread_local! {
    /// Rows of a product that have room where weights are judged, and whether they are being judged.
    static ROOM: Cell<i64> = const { Cell::new(i64::MAX) };
    static JUDGING: Cell<bool> = const { Cell::new(false) };
}

/// As the reference, but that memory is short for many rows at once where weights are judged.
static SHORT: Kernel = Kernel {
    id: "test.short",
    fits: |_, _| Ok(()),
    launch: short,
    tolerance: Tolerance::Rounding,
    deterministic: true,
};

fn short(op: &Op, l: &Launch<'_>) -> Launched {
    if JUDGING.get() && l.at(0).size()[0] > ROOM.get() {
        return Err(OpErrorKind::Torch(TchError::Torch("CUDA out of memory. Tried to allocate 3 GiB".to_owned())));
    }
    (op.row().launch)(op, l)
}

/// Notes when weights are judged.
#[derive(Default)]
struct Judging(Recorder);

impl Reporter for Judging {
    fn send(&self, message: FromWorker) -> Result<(), ClientError> {
        self.0.send(message)
    }

    fn mark(&self, phase: Phase, step: u64) {
        JUDGING.set(phase == Phase::Validate);
        self.0.mark(phase, step);
    }

    fn stop_requested(&self) -> bool {
        false
    }
}

#[test]
fn memory_that_is_short_where_weights_are_judged_changes_no_training_and_is_told_where_it_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let config = config(2);
    tch::set_num_threads(1);
    let trained = |room: i64, name: &str| {
        ROOM.set(room);
        let extras = vec![Extra { op: "linear", kernel: &SHORT }];
        let kernels = KernelTask { extras, ..KernelTask::default() };
        let task = TrainTask { kernels, ..task(&dir.path().join(name), &staged, None) };
        let judging = Judging::default();
        let done = train(&config, &task, &judging, &Solo).map(|_| ());
        JUDGING.set(false);
        let messages = judging.0.take();
        let words = |message: &FromWorker| match message {
            FromWorker::Warned { message } => Some(message.clone()),
            _ => None,
        };
        let told: Vec<String> = messages.iter().filter_map(words).collect();
        (done.map(|()| tensors(&commit_last(&messages, &config, &staged))), told)
    };
    let (undisturbed, none) = trained(i64::MAX, "undisturbed");
    let (halved, told) = trained(20, "short");
    assert!(none.is_empty() && told[0].contains("rows at once without gradients"), "{none:?} {told:?}");
    let undisturbed = undisturbed.unwrap();
    let found = halved.unwrap();
    for (name, bytes) in undisturbed.iter().filter(|(name, _)| name.starts_with("model.") || name.starts_with("optim."))
    {
        assert!(found[name] == *bytes, "{name}");
    }

    let (ended, told) = trained(0, "none");
    let error = ended.unwrap_err();
    assert!(matches!(&error, SessionError::NoRoom { .. }), "{error}");
    let sentence = error.sentence();
    assert!(sentence.contains("no room for one row without gradients") && sentence.contains("Tried to allocate 3 GiB"));
    // The launcher is not to cut the batch of training because of it, nor to try again.
    assert!(!error.is_out_of_memory() && error.is_lasting(), "{sentence}");
    assert_eq!(told.last().map(|told| told.contains("2 rows at once without gradients, 1 from now on")), Some(true));
}
