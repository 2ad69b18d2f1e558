//! Checkpoints between the ends of epochs: when they come, that all ranks write theirs after the same step, and that going on from
//! one ends as a training that was never interrupted.

use crate::session::{
    data::{commit_last, config, stage},
    gloo,
    ledger::Chaos,
    tensors, two_ranks, two_ranks_from,
};
use enn_common::wire::message::FromWorker;
use std::collections::BTreeMap;

/// After which steps a share was written, and by how many ranks.
fn saved(messages: &[FromWorker]) -> BTreeMap<u64, usize> {
    let mut steps = BTreeMap::new();
    for message in messages {
        if let FromWorker::ShardWritten { step, .. } = message {
            *steps.entry(*step).or_default() += 1;
        }
    }
    steps
}

#[test]
fn a_checkpoint_in_the_middle_of_an_epoch_is_gone_on_from_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = config(3);
    // Six steps an epoch.
    config.train.checkpoint_every_steps = 4;
    let (whole, messages) = two_ranks(&config, &dir.path().join("whole"), &staged, gloo);
    assert_eq!(saved(&messages), [4, 8, 12, 16, 18].map(|step| (step, 2)).into());
    let expected = tensors(&commit_last(&messages, &config, &staged));
    let early: Vec<FromWorker> =
        messages.into_iter().filter(|message| matches!(message, FromWorker::ShardWritten { step: 8, .. })).collect();
    let checkpoint = commit_last(&early, &config, &staged);
    let (rest, messages) = two_ranks_from(Some(&checkpoint), &config, &dir.path().join("rest"), &staged, gloo);
    assert_eq!(saved(&messages), [12, 16, 18].map(|step| (step, 2)).into());
    assert_eq!(format!("{rest:?}"), format!("{whole:?}"));
    assert!(tensors(&commit_last(&messages, &config, &staged)) == expected, "the last checkpoints differ");
}

#[test]
fn what_the_clock_asks_for_is_saved_by_all_ranks_after_the_same_step_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let trained = |every_s: f64, name: &str| {
        let mut config = config(2);
        config.train.checkpoint_every_s = every_s;
        let (outcome, messages) = two_ranks(&config, &dir.path().join(name), &staged, gloo);
        (format!("{outcome:?}"), saved(&messages), tensors(&commit_last(&messages, &config, &staged)))
    };
    let quiet = trained(0.0, "quiet");
    let often = trained(1e-9, "often");
    assert_eq!(quiet.1, [(12, 2)].into());
    assert_eq!(often.1, (1..=12).map(|step| (step, 2)).collect());
    assert!(quiet.0 == often.0 && quiet.2 == often.2);
}

#[test]
fn workers_that_all_die_go_on_from_the_newest_checkpoint_of_the_epoch_and_every_row_counts_once() {
    let mut config = config(4);
    config.train.ledger = true;
    config.train.checkpoint_every_steps = 4;
    let mut chaos = Chaos::of(&config, 5);
    chaos.workers = vec![chaos.fork(), chaos.fork()];
    chaos.begin();
    // Of the third epoch's first steps.
    let wanted = |told: &FromWorker| matches!(told, FromWorker::ShardWritten { step: 16, .. });
    let until: Vec<FromWorker> = chaos.workers.iter_mut().map(|worker| worker.until(wanted)).collect();
    let checkpoint = commit_last(&until, &config, &chaos.run.staged);
    chaos.restart(checkpoint, "second");
    chaos.begin();
    let told = chaos.ends();
    assert_eq!(saved(&told), [20, 24].map(|step| (step, 2)).into());
    crate::session::ledger::prove(&config, &chaos);
}

#[test]
fn survivors_of_a_stopped_recovery_save_where_they_stand_and_train_no_further() {
    let mut config = config(90);
    config.train.ledger = true;
    let mut chaos = Chaos::of(&config, 7);
    chaos.workers = vec![chaos.fork(), chaos.fork(), chaos.fork()];
    chaos.begin();
    chaos.step();
    chaos.kill();
    chaos.save("last");
    chaos.begin();
    let told = chaos.ends();
    let saved = saved(&told);
    let [(step, ranks)] = saved.iter().collect::<Vec<_>>()[..] else { panic!("{saved:?}") };
    assert_eq!(*ranks, 2, "each survivor writes its shard");
    assert!(!told.iter().any(|message| matches!(message, FromWorker::Stepped { step: taken, .. } if taken > step)));
    // What was saved is what an undisturbed training goes on from.
    let checkpoint = commit_last(&told, &config, &chaos.run.staged);
    chaos.restart(checkpoint, "again");
    chaos.begin();
    chaos.ends();
    crate::session::ledger::prove(&config, &chaos);
}
