//! Weights of rows and cells: what weighs nothing is not there, in training, evaluation and cross-validation.

use super::{Place, data};
use enn_common::artifact::cv::{CvRecord, MODEL};

const WEIGHT: (&str, &str) = ("data", "weight = \"w\"");

#[test]
fn weights_of_zero_are_refused_when_they_are_all_and_leave_out_rows_when_they_are_some() {
    let (code, said) = Place::new(&data().with("w", |_, _| "0".into()), &[WEIGHT]).refusal();
    assert_eq!(code, 3);
    assert!(said.contains("column \"w\": no training sample has a weight above 0"), "{said}");
    let (code, said) = Place::new(&data(), &[("train", "cell_weights = [0, 0]")]).refusal();
    assert_eq!(code, 2);
    assert!(said.contains("expected weights that are not all 0"), "{said}");

    // Every third row is nonsense and weighs nothing, one weight is negative and one is missing.
    let weight = |row: usize, _: f64| match row {
        5 => "-1".to_owned(),
        8 => String::new(),
        _ => if row.is_multiple_of(3) { "0" } else { "2" }.to_owned(),
    };
    let nonsense = |row: usize, value: f64| if row.is_multiple_of(3) { "900".to_owned() } else { value.to_string() };
    let table = data().with("w", weight).with("y", nonsense);
    let place = Place::new(&table, &[WEIGHT]);
    place.train(&[]);
    assert!(place.meta().report.notes.iter().any(|note| note.starts_with("2 samples have no weight")));
    let (found, mae) = place.evaluate("data.csv");
    let n: u64 = found.seen.iter().map(|one| one.part.errors[MODEL].n).sum();
    assert_eq!(n, 2 * 158);
    // Statistics do not look at weights: the spread of y is that of the nonsense.
    let counted = place.metrics();
    assert!((mae - counted.split["test"].mae).abs() < 1e-4 * mae, "{mae} beside {counted:?}");
}

#[test]
fn an_evaluation_and_a_cross_validation_weigh_rows_and_cells_as_training_does() {
    let table = data().with("w", |row, _| (1 + row % 3).to_string());
    let place = Place::new(&table, &[WEIGHT, ("train", "cell_weights = [1, 3]\nepochs = 2")]);
    place.train(&[]);
    let (found, mae) = place.evaluate("data.csv");
    let trained = place.metrics();
    for (part, split) in found.seen.iter().zip(["train", "val", "test"]) {
        let ours = part.part.errors[MODEL].mae;
        let its = trained.split[split].mae;
        assert!((ours - its).abs() < 1e-5 * its, "{split}: {ours} beside {its}");
    }
    let cells: Vec<f64> = found.cells.iter().map(|cell| cell.model().unwrap()).collect();
    assert!((mae - (cells[0] + 3.0 * cells[1]) / 4.0).abs() < 1e-9);
    let judged = &found.all.errors["ridge"];
    assert!(judged.n == 2 * found.judged && judged.mae > 0.0);

    let output = place.command(&["cv", "strange.toml", "--folds", "2", "--json"]).output().unwrap();
    let record: CvRecord = serde_json::from_slice(&output.stdout).unwrap();
    for fold in &record.folds {
        let staged = enn_common::staged::Staged::open(&fold.staged).unwrap();
        let of_run: enn_common::metrics::RunMetrics = {
            let dir = fold.run.below(&place.path().join("runs").join(&record.run));
            let words = ["metrics", dir.to_str().unwrap(), "--json"];
            serde_json::from_slice(&place.command(&words).output().unwrap().stdout).unwrap()
        };
        // The fold's own run has weighed the same rows and cells.
        let ours = &fold.errors[MODEL];
        let its = &of_run.split["test"];
        assert!((ours.mae - its.mae).abs() < 1e-5 * its.mae && (ours.rmse - its.rmse).abs() < 1e-5 * its.rmse);
        assert!((ours.r2 - its.r2).abs() < 1e-4, "{} beside {}", ours.r2, its.r2);
        assert_eq!(ours.n, 2 * staged.meta().split_rows[2]);
        // Baselines are fitted where the fold is judged, and only there.
        assert!(fold.errors.contains_key("ridge") && !of_run.baselines.contains_key("ridge"));
        assert!(of_run.baselines.contains_key("cell_mean"));
    }
}
