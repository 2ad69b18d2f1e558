//! Micro-batches by what memory holds.

use super::{
    alone,
    data::{config, stage},
};
use enn_common::{config::train::Recompute, wire::message::FromWorker};
use enn_worker::session::Recorder;

/// Micro-batches a step, rows at once, and why.
fn chosen(messages: &[FromWorker]) -> Vec<(u64, u64, &str)> {
    let one = |message| match message {
        &FromWorker::BatchChosen { micro, accumulation, ref reason, .. } => {
            Some((accumulation, micro, reason.as_str()))
        }
        _ => None,
    };
    messages.iter().filter_map(one).collect()
}

#[test]
fn a_share_that_fits_is_computed_at_once_and_one_that_does_not_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = config(2);
    config.train.accumulation = 0;
    config.train.batch = 64;
    config.train.recompute = Recompute::Never;
    let (whole, told) = alone(&config, &dir.path().join("whole"), &staged, None, &Recorder::default()).unwrap();
    let [(1, micro, reason)] = chosen(&told)[..] else { panic!("{told:?}") };
    assert!(reason.contains(&format!("all {micro} rows")), "{reason}");

    config.train.step_memory_mb = 1;
    let (parts, told) = alone(&config, &dir.path().join("parts"), &staged, None, &Recorder::default()).unwrap();
    let [(accumulation, fewer, reason)] = chosen(&told)[..] else { panic!("{told:?}") };
    assert!(accumulation > 1 && fewer < micro && accumulation * fewer >= micro, "{accumulation} × {fewer}");
    assert!(reason.contains("90 % of train.step_memory_mb are 0.9 MiB"), "{reason}");
    let judged = told.iter().find_map(|message| match message {
        FromWorker::Decided { decision } => decision.strip_prefix("weights are judged on ")?.split(' ').next(),
        _ => None,
    });
    let judged: u64 = judged.unwrap().parse().unwrap();
    assert!((fewer..4 * fewer + 8).contains(&judged), "{judged} rows, {fewer} with a backward pass");
    assert!((whole.split["val"].mae - parts.split["val"].mae).abs() < 1e-3, "{whole:?} {parts:?}");
}
