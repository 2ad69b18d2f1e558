//! A training that begins with another one's weights, and changes nothing, predicts what that one predicts; what does not fit is an error.

use crate::session::{
    alone,
    data::{self, config, stage},
    losses::{trained, with_loss},
    two_ranks_from,
};
use enn_common::{
    config::{
        Parent, RunConfig,
        parent::ScalerChoice,
        train::{Loss, PointCalibration, Precision},
    },
    wire::message::FromWorker,
};
use enn_worker::session::Recorder;
use std::path::{Path, PathBuf};

/// In spreads of the target, about 4.5: sums of f32 in another order.
const TOLERANCE: f32 = 2e-5;

fn still(loss: Loss) -> RunConfig {
    let mut config = with_loss(loss, 1);
    config.train.calibration = PointCalibration::Off;
    config.train.calibrate_intervals = false;
    config.model.linear_branch = true;
    config
}

fn child(config: &RunConfig, checkpoint: &Path, scaler: ScalerChoice, partial: bool) -> RunConfig {
    let mut config = config.clone();
    config.train.lr = 1e-12;
    config.parent = Some(Parent { checkpoint: checkpoint.to_owned(), scaler, partial });
    config
}

/// The same rows, staged with statistics of other ones.
fn other_statistics(staged: &Path) {
    let path = staged.join("meta.json");
    let mut meta: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (name, mean, std) in [("x_stats", 1.5, 0.4), ("y_stats", -7.0, 3.0)] {
        for stats in meta[name].as_array_mut().unwrap() {
            stats["mean"] = (stats["mean"].as_f64().unwrap() + mean).into();
            stats["std"] = (stats["std"].as_f64().unwrap() * std).into();
        }
    }
    std::fs::write(&path, serde_json::to_vec(&meta).unwrap()).unwrap();
}

fn run(config: &RunConfig, dir: &Path, staged: &Path) -> (PathBuf, Vec<String>) {
    let (_, messages) = alone(config, dir, staged, None, &Recorder::default()).unwrap();
    let decided = messages.iter().filter_map(|message| match message {
        FromWorker::Decided { decision } => Some(decision.clone()),
        _ => None,
    });
    let decided = decided.collect();
    (data::commit_last(&messages, config, staged), decided)
}

#[test]
fn a_child_that_does_not_learn_predicts_what_its_parent_predicts() {
    for loss in [Loss::Huber, Loss::Quantile, Loss::Gaussian] {
        let mut config = still(loss);
        config.train.epochs = 3;
        let parent = trained(&config);
        let expected = parent.predict(&parent.staged, 90, Precision::Fp32).0;
        let dir = tempfile::tempdir().unwrap();
        let other = stage(dir.path());
        other_statistics(&other);
        for (scaler, staged) in
            [(ScalerChoice::Keep, &parent.staged), (ScalerChoice::Keep, &other), (ScalerChoice::Refit, &other)]
        {
            let config = child(&still(loss), &parent.checkpoint, scaler, false);
            let place = tempfile::tempdir().unwrap();
            let (checkpoint, decided) = run(&config, place.path(), staged);
            assert!(decided[0].starts_with("begins with") && !decided[0].contains("left"), "{decided:?}");
            let found = parent.predict_with(&checkpoint, &parent.staged);
            let apart = found.iter().flatten().zip(expected.iter().flatten());
            let most = apart.fold(0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(most < TOLERANCE * 4.5, "{loss:?} {scaler:?}: {most}");
        }
    }
}

#[test]
fn a_child_learns_on_in_any_world() {
    let mut config = still(Loss::Huber);
    config.train.epochs = 10;
    let parent = trained(&config);
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    other_statistics(&staged);
    let mut config = child(&still(Loss::Huber), &parent.checkpoint, ScalerChoice::Refit, false);
    config.train.lr = 1e-3;
    config.train.epochs = 2;
    let (one, _) = alone(&config, &dir.path().join("one"), &staged, None, &Recorder::default()).unwrap();
    let (two, _) = two_ranks_from(None, &config, &dir.path().join("two"), &staged, crate::session::gloo);
    assert!((one.split["val"].mae - two.split["val"].mae).abs() < 1e-3, "{one:?} {two:?}");
    assert_eq!(one.epoch, 2);
}

#[test]
fn a_parent_that_does_not_fit_is_refused_with_a_list_and_taken_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let first = config(1);
    let (checkpoint, _) = run(&first, &dir.path().join("first"), &staged);
    let mut other = child(&with_loss(Loss::Gaussian, 1), &checkpoint, ScalerChoice::Keep, false);
    other.model.fuser_latents = 6;
    let refused =
        alone(&other, &dir.path().join("second"), &staged, None, &Recorder::default()).unwrap_err().to_string();
    for part in
        ["base.channels.bias is missing there", "fuser.perceiver.latents is [4, 16], expected [6, 16]", "--partial"]
    {
        assert!(refused.contains(part), "{refused}");
    }
    other.parent.as_mut().unwrap().partial = true;
    let (_, decided) = run(&other, &dir.path().join("third"), &staged);
    assert!(decided[0].contains("left: ") && decided[0].contains("its scaler is kept"), "{decided:?}");
}
