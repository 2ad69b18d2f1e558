//! Sources with weights: a training goes on with what it drew, and with nothing else. What an epoch draws is proved in `ledger`.

use super::{
    alone,
    data::{commit_last, config, divide, stage, weighted},
    tensors,
};
use enn_common::wire::message::FromWorker;
use enn_worker::session::{Recorder, SessionError};

#[test]
fn a_stopped_training_draws_on_and_refuses_other_weights() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    divide(&staged);
    let config = weighted(config(3), [1.0, 3.0]);
    let whole = dir.path().join("whole");
    let parts = dir.path().join("parts");
    let (outcome, told) = alone(&config, &whole, &staged, None, &Recorder::default()).unwrap();
    let whole = commit_last(&told, &config, &staged);
    let (stopped, told) = alone(&config, &parts, &staged, None, &Recorder::stopping_at(4)).unwrap();
    assert!(stopped.stopped && stopped.step < outcome.step);
    let checkpoint = commit_last(&told, &config, &staged);
    let other = weighted(config.clone(), [1.0, 1.0]);
    let error = alone(&other, &parts, &staged, Some(checkpoint.clone()), &Recorder::default()).map(|_| ());
    assert!(matches!(error, Err(SessionError::OtherMix { .. })), "{error:?}");
    let plain = enn_common::config::RunConfig { data: None, ..config.clone() };
    let error = alone(&plain, &parts, &staged, Some(checkpoint.clone()), &Recorder::default()).map(|_| ());
    assert!(matches!(error, Err(SessionError::OtherMix { .. })), "{error:?}");
    let (_, told): (_, Vec<FromWorker>) =
        alone(&config, &parts, &staged, Some(checkpoint), &Recorder::default()).unwrap();
    assert!(tensors(&whole) == tensors(&commit_last(&told, &config, &staged)), "a resumed training learns the same");
}

#[test]
fn weights_of_sources_that_were_not_staged_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let error = alone(&weighted(config(1), [1.0, 1.0]), dir.path(), &staged, None, &Recorder::default()).unwrap_err();
    assert!(error.to_string().contains("the sources that have weights"), "{error}");
}
