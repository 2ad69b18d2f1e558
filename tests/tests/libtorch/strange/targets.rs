//! Targets that say little, too much, or nothing.

use super::{Place, data};
use enn_common::{
    artifact::{cv::CvRecord, evaluation::MODEL},
    config::train::Loss,
    metrics::Measure,
};

/// Every loss over numbers.
fn losses() -> impl Iterator<Item = &'static str> {
    Loss::NAMES.iter().filter(|(_, loss)| *loss != Loss::CrossEntropy).map(|(name, _)| *name)
}

#[test]
fn constant_targets_are_told_as_they_are_by_every_loss() {
    let table = data().with("y", |_, _| "3.5".into()).with("z", |_, _| "-2e7".into());
    let place = Place::new(&table, &[("train", "epochs = 2")]);
    for loss in losses() {
        let said = place.train(&[&format!("train.loss={loss}")]);
        assert!(said.contains("ENN's test error is that of the best baseline"), "{loss}: {said}");
        assert!(!said.contains("nothing useful") && !said.contains("NaN"), "{loss}: {said}");
        assert_eq!(place.metrics().split["test"].mae, 0.0, "{loss}");
        let told = place.predict(&data(), &[]);
        assert!(told.of_cell(0).iter().all(|value| *value == 3.5), "{loss}");
        assert!(told.of_cell(1).iter().all(|value| *value == -2e7), "{loss}");
    }
}

#[test]
fn the_median_may_be_the_only_level() {
    let place = Place::new(&data(), &[("train", "levels = [0.5]\nepochs = 2")]);
    for loss in losses().filter(|loss| !["mse", "huber"].contains(loss)) {
        let loss = format!("train.loss={loss}");
        place.train(&[&loss]);
        assert!(place.metrics().split["test"].mae < 1.0, "{loss}");
        assert!(place.predict(&data(), &[]).values.iter().all(|value| value.is_finite()), "{loss}");
    }
}

#[test]
fn ranges_a_million_times_apart_hurt_no_cell_under_any_loss() {
    let scale = |by: f64| move |_: usize, value: f64| format!("{:e}", value * by);
    let table = data().with("y", scale(1e-3)).with("z", scale(1e6)).with("a", scale(1e6)).with("b", scale(1e-6));
    let plain = Place::new(&data(), &[]);
    let scaled = Place::new(&table, &[]);
    for loss in losses() {
        // Each cell by itself: the mean over both would be that of the large one alone.
        let [plain, scaled] = [&plain, &scaled].map(|place| {
            place.train(&[&format!("train.loss={loss}")]);
            place.evaluate("data.csv").0.cells.iter().map(|cell| cell.errors[MODEL].mae).collect::<Vec<f64>>()
        });
        for (cell, by) in [1e-3, 1e6].into_iter().enumerate() {
            let off = scaled[cell] / (by * plain[cell]) - 1.0;
            assert!(off.abs() < 0.02, "{loss}, cell {cell}: {off} from the error without the scale");
        }
    }
}

#[test]
fn cells_of_several_units_are_judged_in_their_own() {
    let table = data().with("z", |_, value| format!("{:e}", value * 1e6));
    let place = Place::new(&table, &[("train", "calibration = \"affine\"")]);
    place.train(&[]);
    let events = std::fs::read_to_string(place.run().join("events.jsonl")).unwrap();
    assert!(events.contains("of each cell's standard deviation with it"), "{events}");
    let spreads: Vec<f64> = place.meta().y_stats.iter().map(|stats| stats.std).collect();
    let (found, _) = place.evaluate("data.csv");
    let of_cells =
        |name: &str| found.cells.iter().zip(&spreads).map(|(cell, std)| cell.errors[name].mae / std).sum::<f64>() / 2.0;
    for name in [MODEL, "cell_mean", "ridge"] {
        let told = found.all.errors[name].judged();
        let expected = of_cells(name);
        assert!((told - expected).abs() < 1e-9 * expected, "{name}: {told}, in the cells {expected}");
    }
    let trained = place.metrics();
    assert!((trained.split["test"].scaled.unwrap() / found.all.errors[MODEL].judged() - 1.0).abs() < 1e-4);
    assert_eq!(found.all.measure(), Some(Measure::Scaled));

    let output = place.command(&["cv", "strange.toml", "--folds", "2", "--json"]).output().unwrap();
    let record: CvRecord = serde_json::from_slice(&output.stdout).unwrap();
    let verdict = record.verdict().unwrap();
    assert_eq!(output.status.code(), Some(if verdict.difference < 0.0 { 0 } else { 8 }), "{verdict:?}");
    let judged = |name: &str| {
        let folds = record.folds.iter().map(|fold| fold.errors[name].scaled.unwrap());
        folds.sum::<f64>() / record.folds.len() as f64
    };
    assert!((judged(MODEL) / judged(&verdict.baseline) - 1.0 - verdict.difference).abs() < 1e-12, "{verdict:?}");
    // By the millions of z alone the mean of the cells would be far beyond these.
    assert!(record.contenders.iter().all(|one| one.judged.mean < 2.0 && one.mae.mean > 1e4), "{:?}", record.contenders);
}

#[test]
fn one_constant_cell_is_exact_and_the_other_is_learned() {
    let place = Place::new(&data().with("y", |_, _| "3.5".into()), &[]);
    place.train(&[]);
    place.is_sensible();
    assert!(place.predict(&data(), &[]).of_cell(0).iter().all(|value| *value == 3.5));
}

#[test]
fn a_cell_without_a_target_has_no_prediction_and_counts_for_nobody() {
    let table = data().with("z", |_, _| "NA".into());
    let place = Place::new(&table, &[]);
    place.train(&[]);
    place.is_sensible();
    let told = place.predict(&data(), &[]);
    assert!(told.of_cell(0).iter().all(|value| value.is_finite()));
    assert!(told.of_cell(1).iter().all(|value| value.is_nan()));
    assert!(told.status.iter().all(|status| *status == 0), "the rows have a prediction");
    // Targets that turn up later cannot be judged.
    place.write("later.csv", data().text().as_bytes());
    let (found, mae) = place.evaluate("later.csv");
    let judged: u64 = found.seen.iter().map(|one| one.part.errors[MODEL].n).sum();
    assert!(mae.is_finite() && judged == 240 && found.seen.len() == 3, "{:?}", found.seen);
    assert!(
        found.notes.iter().any(|note| note.starts_with("240 targets without a forecast are excluded")),
        "{:?}",
        found.notes
    );
}

#[test]
fn targets_that_are_missing_where_a_split_needs_them() {
    let split = |row: usize| ["train", "val", "test", "train"][row % 4];
    let divided = data().with("s", |row, _| split(row).into());
    let sections = [("data.split", "kind = \"column\"\ncolumn = \"s\"")];
    let without = |of: &'static str| {
        let blank = move |row: usize, value: f64| if split(row) == of { String::new() } else { value.to_string() };
        divided.clone().with("y", blank).with("z", blank)
    };
    let place = Place::new(&without("val"), &sections);
    place.train(&[]);
    assert!(place.metrics().split.get("val").is_none_or(|metrics| metrics.n == 0));
    place.is_sensible();
    let (code, said) = Place::new(&without("train"), &sections).refusal();
    assert_eq!(code, 3);
    assert!(said.contains("no training sample of 120, after 120 without a valid target were dropped"), "{said}");
    // A cell that only training lacks.
    let blank = |row: usize, value: f64| if split(row) == "train" { String::new() } else { value.to_string() };
    let place = Place::new(&divided.with("z", blank), &sections);
    place.train(&[]);
    let notes = place.meta().report.notes.join("\n");
    assert!(notes.contains("120 targets are excluded"), "{notes}");
    place.is_sensible();
}

#[test]
fn one_poisoned_row_in_a_hundred_leaves_the_others_alone() {
    let error = |poison: &str, columns: &[&str]| {
        let spoil = |row: usize, value: f64| if row % 100 == 7 { poison.to_owned() } else { value.to_string() };
        let table = columns.iter().fold(data(), |table, column| table.with(column, spoil));
        let place = Place::new(&table, &[]);
        place.train(&[]);
        let report = place.meta().report;
        let clean = data().rows((0..240).filter(|row| row % 100 != 7));
        place.write("clean.csv", clean.text().as_bytes());
        (place.evaluate("clean.csv").1, report, place)
    };
    let (clean, ..) = error("", &[]);
    for (poison, columns) in [("1e30", ["y", "z"]), ("-1e12", ["y", "b"]), ("1e30", ["a", "b"]), ("inf", ["a", "z"])] {
        let (mae, report, place) = error(poison, &columns);
        assert!(mae <= 1.1 * clean, "{poison} in {columns:?}: {mae} beside {clean} without");
        for column in columns {
            let found = &report.columns[column];
            assert_eq!(found.implausible + found.non_finite, 3, "{poison} in {column}");
        }
        // Every row has a prediction, also those.
        let told = place.predict(&data(), &[]);
        assert!(told.values.iter().all(|value| value.abs() < 5.0), "{poison} in {columns:?}");
    }
}

#[test]
fn what_is_odd_is_told_of_and_a_declared_range_decides() {
    let spoil = |row: usize, value: f64| if row % 100 == 7 { "1e4".to_owned() } else { value.to_string() };
    let table = data().with("y", spoil);
    let place = Place::new(&table, &[("train", "epochs = 1")]);
    let said = place.train(&[]);
    assert!(
        said.contains("a thousand times as far from the median as most; data.ranges can leave them out: y"),
        "{said}"
    );
    let place = Place::new(&table, &[("data", "ranges.y = [-10.0, 10.0]")]);
    place.train(&[]);
    assert_eq!(place.meta().report.columns["y"].out_of_range, 3);
    place.is_sensible();
    // Whoever declares that anything goes is believed.
    let far = data().with("y", |row, value| if row % 100 == 7 { "1e20".to_owned() } else { value.to_string() });
    let place = Place::new(&far, &[("data", "ranges.y = [-1e30, 1e30]"), ("train", "epochs = 1")]);
    place.train(&[]);
    assert_eq!(place.meta().report.columns["y"].implausible, 0);
    assert_eq!(place.meta().y_stats[0].max, f64::from(1e20f32));
}
