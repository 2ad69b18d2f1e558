//! Micro-batches by what memory holds.

use super::{
    alone,
    data::{commit_last, config, stage},
    tensors,
};
use enn_common::{
    config::train::{Recompute, TrainConfig},
    wire::message::FromWorker,
};
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

#[test]
fn activations_are_computed_again_where_memory_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = config(2);
    config.model.d_model = 128;
    config.train.batch = 64;
    let run = |name: &str, (accumulation, step_memory_mb): (usize, u64), recompute: Recompute| {
        let mut config = config.clone();
        config.train = TrainConfig { accumulation, step_memory_mb, recompute, ..config.train };
        let recorder = Recorder::default();
        let (_, told) = alone(&config, &dir.path().join(name), &staged, None, &recorder).unwrap();
        let chosen = told.iter().find_map(|message| match message {
            &FromWorker::BatchChosen { micro, accumulation, recompute, .. } => Some((micro, accumulation, recompute)),
            _ => None,
        });
        let again = told.iter().any(|message| {
            matches!(message, FromWorker::Decided { decision } if decision.starts_with("activations are computed again"))
        });
        (tensors(&commit_last(&told, &config, &staged)), chosen, again)
    };
    // What a process takes once counts for its first step.
    run("cold", (0, 2), Recompute::Never);
    let (_, kept, _) = run("kept", (0, 2), Recompute::Never);
    let (auto, chosen, _) = run("auto", (0, 2), Recompute::Auto);
    let Some((micro, accumulation, true)) = chosen else { panic!("{chosen:?}") };
    assert!(kept.is_some_and(|(rows, _, again)| rows < micro.min(16) && !again), "{kept:?} beside {micro} rows");
    // In as many parts, with and without: the same bits. Where the parts are given, that memory still decides.
    let parts = usize::try_from(accumulation).unwrap();
    for (recompute, expected) in [(Recompute::Never, false), (Recompute::Auto, true)] {
        let (given, _, again) = run(&format!("{parts} {expected}"), (parts, 1), recompute);
        assert!(auto == given && again == expected, "{parts} parts, {recompute:?}: computed again: {again}");
    }
}
