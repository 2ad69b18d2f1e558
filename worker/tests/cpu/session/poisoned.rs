//! Rows of the data that make a step not finite: named, left out from that step on, remembered, and counted.

use crate::again;
use crate::session::data::{ROWS, blank_row, commit_last, config, spoil, spoil_row, stage};
use crate::session::process::{Run, Worker};
use crate::session::{alone, gloo, tensors, two_ranks, two_ranks_from};
use enn_common::{
    config::RunConfig,
    metrics::Metrics,
    staged::Staged,
    wire::message::{Assignment, FromWorker},
};
use enn_worker::{
    data::{Position, RowIndex, Sampler},
    session::{Recorder, SessionError},
};
use nix::sys::signal::Signal;
use std::{collections::BTreeMap, path::Path, sync::atomic::Ordering};

/// Name of the list in a checkpoint.
const LIST: &str = "progress.poisoned_rows";

fn warnings(messages: &[FromWorker]) -> Vec<&str> {
    let told = messages.iter().filter_map(|message| match message {
        FromWorker::Warned { message } => Some(message.as_str()),
        FromWorker::KernelFaulted(fault) => panic!("{fault:?}"),
        _ => None,
    });
    told.collect()
}

fn skipped(messages: &[FromWorker]) -> Vec<u64> {
    let told = messages.iter().filter_map(|message| match message {
        FromWorker::EpochEnded(report) => Some(report.skipped),
        _ => None,
    });
    told.collect()
}

/// Rows of the staged order in each step of the first epoch.
fn steps(config: &RunConfig, staged: &Path) -> Vec<Vec<u64>> {
    let index = RowIndex::of_split(Staged::open(staged).unwrap().split(), 0);
    let rows = index.len();
    let batch = config.train.batch as u64;
    let order = Sampler { rows, batch, seed: config.seed, rank: 0, world: 1, accumulation: 1, mix: None };
    let global =
        |step| order.global(Position { epoch: 0, step }).into_iter().map(|ordinal| index.at(ordinal)).collect();
    (0..order.steps_per_epoch()).map(global).collect()
}

/// All but the list, which data without the row do not have.
fn without_list(mut state: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    state.remove(LIST);
    state
}

fn assert_same(found: BTreeMap<String, Vec<u8>>, expected: BTreeMap<String, Vec<u8>>) {
    let found = without_list(found);
    let expected = without_list(expected);
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, bytes) in expected {
        assert!(found[&name] == bytes, "{name} differs");
    }
}

/// Data with a row far out of range are as data in which that row has no valid cell, from the step on that meets it first: in
/// one rank and in two.
#[test]
#[expect(clippy::disallowed_methods, reason = "the environment is how a test names its child's part")]
fn a_row_out_of_range_weighs_nothing_from_its_step_on() {
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        // It is read when the library is loaded. By several threads, products are rounded by where operands lie on some processors.
        let mut command = again::command(module_path!(), "a_row_out_of_range_weighs_nothing_from_its_step_on");
        command.env("OMP_NUM_THREADS", "1");
        again::alone(command);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(3);
    for accumulation in [1, 2] {
        config.train.accumulation = accumulation;
        let dir = dir.path().join(format!("of{accumulation}"));
        std::fs::create_dir(&dir).unwrap();
        let staged = stage(&dir);
        let step = 2;
        let row = steps(&config, &staged)[step as usize][7];
        // Standardised it is infinite.
        spoil_row(&staged, row as usize, 3e38);
        let stopping = Recorder::stopping_at(step - 1);
        let (outcome, messages) = alone(&config, &dir.join("before"), &staged, None, &stopping).unwrap();
        assert_eq!((outcome.step, warnings(&messages).len()), (step, 0));
        let before = commit_last(&messages, &config, &staged);
        let one = |name: &str| {
            alone(&config, &dir.join(name), &staged, Some(before.clone()), &Recorder::default()).unwrap().1
        };
        let two = |name: &str| two_ranks_from(Some(&before), &config, &dir.join(name), &staged, gloo).1;
        let train = |messages: &[FromWorker]| -> Vec<Metrics> {
            let told = messages.iter().filter_map(|message| match message {
                FromWorker::Trained { split, .. } => Some(split["train"]),
                _ => None,
            });
            told.collect()
        };
        let spoilt = [one("one"), two("two")];
        blank_row(&staged, row as usize);
        let blank = [one("blank one"), two("blank two")];
        for (messages, blank) in spoilt.iter().zip(&blank) {
            let told = warnings(messages);
            assert_eq!(told.len(), 1, "{told:?}");
            let begin = format!(
                "step {step} was refused because its gradient was not finite: layer_norm at fuser.spatial: 1 rows ("
            );
            let end = format!("; data with row_id {} are the cause and left out from now on", 1000 - row);
            assert!(told[0].starts_with(&begin) && told[0].ends_with(&end), "{told:?}");
            assert_eq!(skipped(messages), [0, 0, 0], "its step is done without it");
            let found = tensors(&commit_last(messages, &config, &staged));
            assert_eq!(found[LIST], row.to_le_bytes());
            assert_same(found, tensors(&commit_last(blank, &config, &staged)));
            assert!(train(messages).iter().all(|errors| errors.mae.is_finite()));
            assert_eq!(train(messages), train(blank), "nor does it count in the errors at the end");
        }
    }
}

/// Slots beyond a share repeat the batch's first row: on every rank.
#[test]
fn a_row_that_fills_up_the_shares_of_other_ranks_is_left_out_there_too() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let config = config(2);
    let last = steps(&config, &staged).pop().unwrap();
    assert_eq!(last.len(), 3, "the second rank has no row of it");
    spoil_row(&staged, last[0] as usize, 3e38);
    let (_, messages) = two_ranks(&config, dir.path(), &staged, gloo);
    assert_eq!(skipped(&messages), [0, 0], "{:?}", warnings(&messages));
    let named = format!("data with row_id {} are the cause", 1000 - last[0]);
    assert!(warnings(&messages).iter().all(|told| told.contains(&named)), "{:?}", warnings(&messages));
    let state = tensors(&commit_last(&messages, &config, &staged));
    assert_eq!(state[LIST], last[0].to_le_bytes());
}

#[test]
fn a_resumed_training_leaves_out_what_was_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let config = config(3);
    spoil(&staged, 3e38);
    let stopping = Recorder::stopping_at(7);
    let (_, messages) = alone(&config, &dir.path().join("one"), &staged, None, &stopping).unwrap();
    assert_eq!(warnings(&messages).len(), 1);
    let checkpoint = commit_last(&messages, &config, &staged);
    let (_, messages) =
        alone(&config, &dir.path().join("two"), &staged, Some(checkpoint), &Recorder::default()).unwrap();
    assert_eq!(warnings(&messages).len(), 0, "it does not have to be found again");
    assert_eq!(tensors(&commit_last(&messages, &config, &staged))[LIST], 20i64.to_le_bytes());
}

/// The list comes with the state: a newcomer that is left alone does not have to find the row.
#[test]
fn a_newcomer_leaves_out_what_was_left_out() {
    let config = config(1_000_000);
    let run = Run::of(&config);
    spoil(&run.staged, 3e38);
    let mut first = Worker::start(run.dir.path(), &run.assignment(0, 1));
    let told = first.until(|m| matches!(m, FromWorker::Warned { .. }));
    assert_eq!(warnings(&[told]).len(), 1);
    first.until(|m| matches!(m, FromWorker::EpochEnded(_)));
    first.ask_to_leave(true);
    let stood = first.halted(0);
    first.ask_to_leave(false);
    let mut newcomer = Worker::fork(run.dir.path(), 7);
    first.seat(&Assignment { round: 1, ..run.assignment(0, 2) });
    newcomer.seat(&Assignment { round: 1, ..run.assignment(1, 2) });
    newcomer.until(|m| matches!(m, FromWorker::StateReceived { step, .. } if *step == stood));
    first.until(|m| matches!(m, FromWorker::Stepped { .. }));
    first.signal(Signal::SIGKILL);
    newcomer.end_round(1);
    newcomer.seat(&Assignment { round: 2, ..run.assignment(0, 1) });
    let mut told = Vec::new();
    while told.iter().filter(|m| matches!(m, FromWorker::EpochEnded(_))).count() < 3 {
        told.push(newcomer.next().unwrap());
    }
    newcomer.page.word32(8).unwrap().store(1, Ordering::Relaxed);
    told.extend(newcomer.rest());
    assert!(newcomer.status().success() && warnings(&told).is_empty(), "{:?}", warnings(&told));
    assert!(skipped(&told).iter().all(|skipped| *skipped == 0));
    assert_eq!(tensors(&commit_last(&told, &config, &run.staged))[LIST], 20i64.to_le_bytes());
}

#[test]
fn too_many_such_rows_end_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = config(3);
    config.train.poisoned_rows_max = Some(1);
    let split = Staged::open(&staged).unwrap().split().to_vec();
    let rows: Vec<usize> = (20..ROWS).filter(|&row| split[row] == 0).take(2).collect();
    rows.iter().for_each(|&row| spoil_row(&staged, row, 3e38));
    let error = alone(&config, dir.path(), &staged, None, &Recorder::default()).unwrap_err();
    assert!(matches!(error, SessionError::TooManyExcludedRows { found: 2, limit: 1, .. }), "{error}");
    let ids = format!("row_id {}, {}", 1000 - rows[0], 1000 - rows[1]);
    assert!(error.to_string().contains(&ids) && error.to_string().contains("train.poisoned_rows_max"), "{error}");
}
