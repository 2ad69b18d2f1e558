//! The fold, told by a story: two workers train, one is killed, the round is tried again from a checkpoint, training ends.

use super::*;
use enn_common::{
    event::StepTimes,
    id::{LocalRank, Rank, Round},
    staged::meta::ColumnReport,
};
use proptest::prelude::*;

/// When the story begins.
const START: f64 = 1_790_000_000.0;

/// An epoch of 8 steps whose validation MAE is `mae`.
pub(in crate::ui) fn epoch(epoch: u64, loss: f64, mae: f64, best: bool) -> EpochReport {
    EpochReport {
        epoch,
        step: epoch * 8,
        train_loss: loss,
        val: Metrics { mae, rmse: mae * 1.3, r2: 0.9, n: 3_800 },
        best,
        lr: 1e-3,
        grad_norm: 0.8,
        gate_mean: 0.5,
        reactivity: 0.9,
        step_ms: StepTimes { total: 41.0, data: 0.5, forward: 14.0, backward: 22.0, comm: 2.5, optimizer: 2.0 },
        samples_per_s: 780.5,
        skipped: 0,
    }
}

fn stepped(step: u64, loss: f64) -> What {
    What::Stepped { epoch: (step - 1) / 8 + 1, step, loss, lr: 1e-3, grad_norm: 0.9, samples_per_s: 781.0 }
}

fn round(round: u64, resume_step: Option<u64>) -> Vec<(f64, What)> {
    let mut all =
        vec![(0.1, What::RoundStarted { round: Round(round), world_size: 2, attempt: round as u32, resume_step })];
    for rank in 0..2 {
        let pid = 4_000 + 10 * round as u32 + rank;
        all.push((
            0.01,
            What::WorkerStarted {
                round: Round(round),
                local_rank: LocalRank(rank),
                rank: Rank(rank),
                pid,
                host: String::new(),
            },
        ));
    }
    for rank in 0..2 {
        let (device, backend, libtorch) = ("cpu".to_owned(), "gloo".to_owned(), "2.11.0".to_owned());
        all.push((
            0.4,
            What::WorkerReady { round: Round(round), rank: Rank(rank), device, backend, libtorch, seconds: 0.81 },
        ));
    }
    all.push((
        0.1,
        What::ModelBuilt {
            parameters: 412_345,
            program_hash: "9c1e77aa".into(),
            batch: 32,
            steps_per_epoch: 8,
            steps_total: 24,
        },
    ));
    all
}

fn exited(round: u64, rank: u32, code: Option<i32>, signal: Option<i32>) -> What {
    let pid = 4_000 + 10 * round as u32 + rank;
    What::WorkerExited { round: Round(round), rank: Rank(rank), pid, code, signal, seconds_to_notice: 0.0012 }
}

fn report() -> CleaningReport {
    CleaningReport {
        rows_read: 26_130,
        samples: 363,
        absent_cells: 75,
        dropped_samples: 2,
        columns: BTreeMap::from([
            ("temp".into(), ColumnReport { missing: 1, ..ColumnReport::default() }),
            ("pressure".into(), ColumnReport { missing: 2_730, out_of_range: 1, ..ColumnReport::default() }),
        ]),
        notes: vec!["temp: rows <JFK> \"5 & 6\" look odd".into()],
        ..CleaningReport::default()
    }
}

fn preparation() -> Vec<(f64, What)> {
    let baseline = |mae: f64| Baseline { mae, rmse: mae * 1.28 };
    let all = |add: f64| {
        BTreeMap::from([
            ("cell_mean".to_owned(), baseline(8.9 + add)),
            ("persistence".to_owned(), baseline(6.1 + add)),
            ("ridge".to_owned(), baseline(4.7 + add)),
        ])
    };
    vec![
        (
            0.0,
            What::RunStarted {
                run: "weather-20260921-2f1c".into(),
                mode: "train".into(),
                dir: "/runs/weather-20260921-2f1c".into(),
                host: "node7".into(),
                nproc: 2,
                argv: vec!["enn".into(), "train".into(), "weather.toml".into()],
            },
        ),
        (0.1, What::StageProgressed { rows: 12_000, bytes: 1_100_000, bytes_total: 2_300_000 }),
        (
            0.1,
            What::Staged {
                dir: "/runs/weather-20260921-2f1c/staged/ab12".into(),
                rows: 363,
                features: 652,
                out_shape: vec![3, 24],
                split_rows: [255, 54, 54],
                units: "°F".into(),
                reused: false,
                seconds: 0.21,
                report: report(),
            },
        ),
        (
            0.2,
            What::BaselinesComputed {
                split: BTreeMap::from([("val".to_owned(), all(0.0)), ("test".to_owned(), all(0.2))]),
                notes: vec!["ridge: λ = 316 by generalised cross-validation".into()],
            },
        ),
    ]
}

/// The whole story in order, with times.
pub(in crate::ui) fn events() -> Vec<Event> {
    let mut all = preparation();
    all.extend(round(0, None));
    all.extend((1..=8).map(|step| (0.04, stepped(step, 1.0 / step as f64))));
    all.push((0.1, What::EpochEnded(Box::new(epoch(1, 0.41, 6.2, true)))));
    all.push((
        0.05,
        What::CheckpointCommitted { step: 8, path: "/c/8".into(), bytes: 5_012_345, seconds: 0.04, metric: Some(6.2) },
    ));
    all.extend((9..=14).map(|step| (0.04, stepped(step, 0.3))));
    all.push((0.01, exited(0, 1, None, Some(9))));
    all.push((0.02, exited(0, 0, Some(1), None)));
    let cause = "worker 1 was killed by SIGKILL".to_owned();
    all.push((0.01, What::RoundFailed { round: Round(0), cause, restarting: true, restarts_left: 2 }));
    all.extend(round(1, Some(8)));
    all.extend((9..=24).map(|step| (0.04, stepped(step, 2.0 / step as f64))));
    all.insert(all.len() - 8, (0.0, What::EpochEnded(Box::new(epoch(2, 0.2, 4.4, true)))));
    all.push((0.1, What::EpochEnded(Box::new(epoch(3, 0.11, 4.5, false)))));
    all.push((0.02, What::CheckpointFailed { step: 24, error: "rank 0: no space left on device".into() }));
    all.push((
        0.05,
        What::CheckpointCommitted {
            step: 24,
            path: "/c/24".into(),
            bytes: 5_012_345,
            seconds: 0.05,
            metric: Some(4.4),
        },
    ));
    let split = [("train", 3.1, 18_000), ("val", 4.4, 3_800), ("test", 4.62, 3_850)];
    let split = split.map(|(name, mae, n)| (name.to_owned(), Metrics { mae, rmse: mae * 1.3, r2: 0.91, n }));
    all.push((
        0.1,
        What::Trained {
            epoch: 3,
            step: 24,
            stopped_early: false,
            split: BTreeMap::from(split),
            samples_per_s: 780.0,
            seconds: 4.2,
        },
    ));
    all.extend((0..2).map(|rank| (0.02, exited(1, rank, Some(0), None))));
    all.push((0.1, What::Warned { message: "wind_gust is all missing\n  hint: leave it out".into() }));
    all.push((0.1, What::RunEnded { code: 0, seconds: 6.1, restarts: 1, rounds: 2 }));
    let mut time = START;
    all.into_iter()
        .map(|(after, what)| {
            time += after;
            Event { time, what }
        })
        .collect()
}

/// The view after some events.
pub(in crate::ui) fn view_after(events: &[Event]) -> RunView {
    let mut view = RunView::default();
    events.iter().for_each(|event| view.apply(event));
    view
}

#[test]
fn the_story_is_understood() {
    let view = view_after(&events());
    assert_eq!((view.name(), view.units(), view.restarts()), ("weather-20260921-2f1c", "°F", 1));
    assert_eq!(view.epochs.iter().map(|report| report.epoch).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(view.best().map(|report| report.epoch), Some(2));
    assert_eq!(view.workers.len(), 4);
    assert_eq!(view.workers[1].exit.map(|exit| exit.signal), Some(Some(9)));
    assert_eq!(view.rounds[0].failure, Some(("worker 1 was killed by SIGKILL".into(), true)));
    assert!(view.rounds.iter().all(|round| round.ended.is_some()));
    assert_eq!(view.checkpoints.iter().filter(|checkpoint| checkpoint.error.is_some()).count(), 1);
    assert_eq!(view.session().and_then(|session| session.ended).map(|end| end.code), Some(0));
    // Steps 9 to 14 of the failed round are replaced by those of the next one.
    let points = view.losses.points();
    assert_eq!(points.len(), 24);
    assert!((points[8].1 - 2.0 / 9.0).abs() < 1e-12);
}

#[test]
fn the_living_are_counted() {
    let all = events();
    let killed = all.iter().position(|event| matches!(event.what, What::WorkerExited { .. })).unwrap();
    assert_eq!(view_after(&all[..killed]).alive(), (2, 2));
    assert_eq!(view_after(&all[..=killed]).alive(), (1, 2));
    assert_eq!(view_after(&all).alive(), (0, 2));
}

#[test]
fn time_left_follows_the_pace_of_the_round() {
    let all = events();
    let last = all.iter().rposition(|event| matches!(event.what, What::Stepped { step: 23, .. })).unwrap();
    let left = view_after(&all[..=last]).remaining_s().unwrap();
    assert!((left - 0.04).abs() < 1e-3, "one step of 40 ms is left, not {left}");
}

proptest! {
    /// Any subset of the events in any order is taken without a panic, and a view read back equals the live one.
    #[test]
    fn the_fold_is_total(order in proptest::collection::vec(any::<proptest::sample::Index>(), 0..60)) {
        let all = events();
        let chosen: Vec<Event> = order.iter().map(|index| index.get(&all).clone()).collect();
        let dir = tempfile::tempdir().unwrap();
        let mut journal = journal::Writer::open(dir.path()).unwrap();
        chosen.iter().for_each(|event| journal.write(event).unwrap());
        let live = view_after(&chosen);
        prop_assert_eq!(RunView::read(dir.path()).unwrap(), live);
    }
}
