//! What becomes of the weights at the end: which are kept, how their answers are calibrated, and that neither a stop nor the world
//! changes anything in it.

use crate::session::{
    alone,
    data::{self, config, stage},
    gloo,
    losses::{trained, with_loss},
    resumed_as_whole, tensors, two_ranks,
};
use enn_common::{
    config::train::{Averaging, Loss, PointCalibration},
    wire::message::FromWorker,
};
use enn_worker::session::{Outcome, Recorder};

const STRETCH: &str = "model.calibration.stretch";

fn decisions(messages: &[FromWorker]) -> Vec<String> {
    let decided = |message: &FromWorker| match message {
        FromWorker::Decided { decision } => Some(decision.clone()),
        _ => None,
    };
    messages.iter().filter_map(decided).collect()
}

#[test]
fn the_mean_of_the_last_quarter_is_kept_where_it_validates_better_and_resumes_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = config(4);
    // So large a step that single weights are far from where they go; 24 steps, the last six of which are averaged.
    config.train.averaging = Averaging::SwaTail;
    config.train.ema = 0.0;
    config.train.lr = 3e-2;
    let states = resumed_as_whole(&config, dir.path(), &staged, &[7, 18, 19, 22]);
    assert!(states[..2].iter().all(|state| !state.contains_key("tail.updates")));
    let updates: Vec<f64> = states[2..]
        .iter()
        .map(|state| f64::from_le_bytes(state["tail.updates"].as_slice().try_into().unwrap()))
        .collect();
    assert_eq!(updates, [1.0, 4.0, 6.0]);

    let (outcome, messages) = alone(&config, &dir.path().join("again"), &staged, None, &Recorder::default()).unwrap();
    let kept = decisions(&messages).into_iter().find(|decision| decision.starts_with("kept")).unwrap();
    let best = messages.iter().filter_map(|message| match message {
        FromWorker::EpochEnded(report) => Some(report.val.mae),
        _ => None,
    });
    let best = best.fold(f64::INFINITY, f64::min);
    let of_mean = kept.starts_with("kept the mean of the last quarter's weights");
    let found = outcome.split["val"].mae;
    assert!(if of_mean { found < best } else { found == best }, "{kept}: {found}, single weights {best}");
    let last = states.last().unwrap();
    let name = last.keys().find(|name| name.starts_with("best.fuser")).unwrap();
    let mean = name.replacen("best.", "tail.", 1);
    assert_eq!(last[name] == last[&mean], of_mean);
}

#[test]
fn no_average_keeps_the_weights_of_the_best_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = config(2);
    config.train.averaging = Averaging::None;
    let (_, messages) = alone(&config, dir.path(), &staged, None, &Recorder::default()).unwrap();
    let state = tensors(&data::commit_last(&messages, &config, &staged));
    assert!(!state.keys().any(|name| name.starts_with("ema.") || name.starts_with("tail.")));
    assert!(decisions(&messages).iter().any(|decision| decision.starts_with("kept the weights of epoch")));
}

/// With steps that change nothing, so that what is calibrated has the same bits everywhere.
#[test]
fn a_calibration_is_the_same_in_any_world_and_survives_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    for loss in [Loss::Quantile, Loss::StudentT] {
        let mut config = with_loss(loss, 2);
        config.train.lr = 1e-12;
        config.model.dropout = 0.0;
        config.train.calibration = PointCalibration::Affine;
        config.model.linear_branch = true;
        let dir = dir.path().join(loss.name());
        let (one, messages) = alone(&config, &dir.join("one"), &staged, None, &Recorder::default()).unwrap();
        let alone = tensors(&data::commit_last(&messages, &config, &staged));
        let (_, messages) = two_ranks(&config, &dir.join("two"), &staged, gloo);
        let both = tensors(&data::commit_last(&messages, &config, &staged));
        for name in [STRETCH, "model.calibration.shift", "model.calibration.slope"] {
            assert!(alone[name] == both[name] && !alone[name].is_empty(), "{loss:?}: {name}");
        }
        assert_eq!(decisions(&messages).iter().filter(|decision| decision.contains("calibrat")).count(), 2);
        let interval = one.split["val"].interval.unwrap();
        // 17 rows: one more than the share, and one cell.
        assert!((0.78..0.9).contains(&interval.coverage), "{loss:?}: {interval:?}");
    }
    let mut config = with_loss(Loss::Gaussian, 2);
    config.train.calibration = PointCalibration::Affine;
    resumed_as_whole(&config, &dir.path().join("stopped"), &staged, &[8]);
}

#[test]
fn without_calibration_answers_are_the_models_own() {
    let mut config = with_loss(Loss::Quantile, 2);
    config.train.calibration = PointCalibration::Off;
    config.train.calibrate_intervals = false;
    let run = trained(&config);
    assert!(!tensors(&run.checkpoint).keys().any(|name| name.contains("calibration")));
}

#[test]
fn a_run_that_has_ended_goes_on_when_more_epochs_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = config(2);
    let (_, messages) = alone(&config, &dir.path().join("a"), &staged, None, &Recorder::default()).unwrap();
    let checkpoint = data::commit_last(&messages, &config, &staged);
    let again = |config: &_, place: &str| -> Outcome {
        alone(config, &dir.path().join(place), &staged, Some(checkpoint.clone()), &Recorder::default()).unwrap().0
    };
    assert_eq!(again(&config, "b").epoch, 2);
    config.train.epochs = 3;
    assert_eq!((again(&config, "c").epoch, again(&config, "d").step), (3, 18));
}
