//! Baselines against figures computed by NumPy from the definitions (per-cell refits, literally leaving rows out): those of validation rows
//! with fits to the training rows, those of test rows with fits to the training and validation rows.

use super::*;
use enn_common::staged::{StagedMeta, meta::FeatureMeta};
use fixture::Table;
use proptest::prelude::*;

/// A number in [0, 1) with 24 bits, the same in Python.
fn noise(index: u64) -> f32 {
    (enn_common::mix::spread(index) >> 40) as f32 / (1u64 << 24) as f32
}

/// `numbers` real features and one of three categories; a (2, 2) target, linear with noise; holes in both.
fn table(rows: usize, numbers: usize) -> Table {
    let features = numbers + 1;
    let mut x = Vec::new();
    let mut y = Vec::new();
    for row in 0..rows {
        let at = |column: usize| (row * 1000 + column) as u64;
        let values: Vec<f32> = (0..numbers).map(|column| noise(at(column))).collect();
        let category = (noise(at(500)) * 3.0).floor();
        for cell in 0..4 {
            let linear: f32 = values.iter().enumerate().map(|(i, v)| v * (((i + cell) % 5) as f32 - 2.0)).sum();
            let target = (linear + category + noise(at(600 + cell))) * 4.0 + 50.0;
            y.push(if noise(at(700 + cell)) < 0.1 { f32::NAN } else { (target * 64.0).round() / 64.0 });
        }
        x.extend(values.iter().enumerate().map(|(i, v)| if noise(at(800 + i)) < 0.05 { f32::NAN } else { *v }));
        x.push(category);
    }
    let meta = |i: usize| FeatureMeta {
        name: format!("f{i}"),
        categories: if i == numbers { ["a", "b", "c"].map(String::from).to_vec() } else { vec![] },
        has_missing: i < numbers,
        ..FeatureMeta::default()
    };
    Table {
        rows,
        features: (0..features).map(meta).collect(),
        out_shape: vec![2, 2],
        out_labels: vec![["s0", "s1"].map(String::from).to_vec(), ["t0", "t1"].map(String::from).to_vec()],
        x,
        y,
        split: (0..rows).map(|row| [0, 0, 0, 1, 0, 0, 2, 0][row % 8]).collect(),
        persistence: Some(vec![0, 1, 0, 1]),
    }
}

/// The errors must agree with NumPy's to the digits given there.
fn check(found: &Baselines, split: &str, expected: [(&str, f64, f64); 3]) {
    for (name, mae, rmse) in expected {
        let baseline = found.split[split][name];
        let close = |a: f64, b: f64| (a - b).abs() < 1e-8 * b.abs();
        assert!(
            close(baseline.mae, mae) && close(baseline.rmse, rmse),
            "{split} {name}: {baseline:?}, not {mae} {rmse}"
        );
    }
}

fn compute_table(table: &Table) -> Baselines {
    let dir = tempfile::tempdir().unwrap();
    compute(&table.write(dir.path()), Effort::Full).unwrap()
}

fn lambda(found: &Baselines) -> f64 {
    let ridge = found.forecasters.iter().find_map(|one| match one {
        Forecaster::Ridge(ridge) => Some(ridge.lambda()),
        _ => None,
    });
    ridge.unwrap()
}

#[test]
fn fewer_rows_than_columns_agree_with_numpy() {
    let found = compute_table(&table(32, 30));
    assert!((lambda(&found) - 0.305_867_346_938_775_43).abs() < 1e-9, "{}", lambda(&found));
    check(
        &found,
        "val",
        [
            ("cell_mean", 8.305_719_860_819_822, 9.755_157_542_708_384),
            ("persistence", 58.308_368_052_755_085, 59.028_322_025_587_35),
            ("ridge", 4.675_742_482_993_385, 5.302_771_890_129_1),
        ],
    );
    check(
        &found,
        "test",
        [
            ("cell_mean", 7.036_804_108_796_296_5, 8.611_223_230_807_177),
            ("persistence", 57.506_738_975_644_11, 58.102_519_031_607_244),
            ("ridge", 5.843_666_832_182_839, 6.948_148_223_836_283_5),
        ],
    );
}

#[test]
fn more_rows_than_columns_agree_with_numpy() {
    let found = compute_table(&table(160, 6));
    assert!((lambda(&found) - 1.962_705_275_946_126).abs() < 1e-9, "{}", lambda(&found));
    check(
        &found,
        "val",
        [
            ("cell_mean", 4.411_288_452_961_693, 5.332_444_266_670_678),
            ("persistence", 51.588_868_057_670_75, 53.151_372_016_289_3),
            ("ridge", 1.330_441_963_800_198_3, 1.656_198_966_314_392_6),
        ],
    );
    check(
        &found,
        "test",
        [
            ("cell_mean", 4.231_730_158_511_531, 5.026_571_211_364_57),
            ("persistence", 54.818_283_214_197_53, 55.113_555_900_015_21),
            ("ridge", 1.138_508_679_138_811_7, 1.340_410_879_544_543_7),
        ],
    );
}

#[test]
fn a_cell_never_seen_before_gets_the_mean_of_the_others() {
    for (rows, numbers) in [(32, 30), (160, 6)] {
        let mut table = table(rows, numbers);
        for row in (0..rows).filter(|row| table.split[*row] != Split::Test as u8) {
            table.y[row * 4 + 3] = f32::NAN;
        }
        let dir = tempfile::tempdir().unwrap();
        let staged = Staged::open(&table.write(dir.path())).unwrap();
        let found = compute_of(&staged, Effort::Full).unwrap();
        let means = found.forecasters[0].predict(&staged, &[0]);
        assert!((means[3] - (means[0] + means[1] + means[2]) / 3.0).abs() < 1e-9);
        let ridge = found.forecasters.last().unwrap().predict(&staged, &[3, 6]);
        assert!(ridge.row(3).iter().all(|value| (value - means[3]).abs() < 1e-9), "{}", ridge.row(3));
    }
}

#[test]
fn what_cannot_be_computed_is_absent_with_a_reason() {
    let mut table = table(32, 2);
    table.persistence = None;
    table.split = (0..32).map(|row| if row < 2 { 0 } else { 1 }).collect();
    let found = compute_table(&table);
    assert_eq!(found.split.keys().collect::<Vec<_>>(), ["val"]);
    assert_eq!(found.split["val"].keys().collect::<Vec<_>>(), ["cell_mean"]);
    let notes = found.notes.join("\n");
    assert!(notes.contains("no input holds") && notes.contains("2 training rows are fewer than the 3"), "{notes}");
}

#[test]
fn a_category_beyond_the_columns_is_left_out_with_a_note() {
    let mut table = table(160, 6);
    table.features[6].categories = (0..1_200).map(|i| format!("c{i}")).collect();
    let found = compute_table(&table);
    assert!(found.notes.iter().any(|note| note.contains("without f6: its 1200 categories")), "{:?}", found.notes);
    assert!(found.split["val"].contains_key("ridge"));
}

#[test]
fn no_training_rows_is_an_error_with_a_hint() {
    let mut table = table(16, 2);
    table.split.fill(2);
    let dir = tempfile::tempdir().unwrap();
    let error = compute(&table.write(dir.path()), Effort::Full).unwrap_err().to_string();
    assert!(error.contains("no training rows") && error.contains("hint"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Whatever the rows hold that a baseline is judged on, its forecasts of a training row stay the same to the bit: of what is judged on
    /// validation rows whatever validation and test rows hold, of what is judged on test rows whatever test rows hold.
    #[test]
    fn nothing_is_learned_from_the_rows_that_are_judged(seed in any::<u32>(), dual: bool) {
        let original = if dual { table(32, 30) } else { table(160, 6) };
        let learned: [&[Split]; 2] = [&[Split::Train], &[Split::Train, Split::Val]];
        for known in learned {
            let mut changed = table(original.rows, original.features.len() - 1);
            let columns = changed.features.len();
            let is_known = |code: u8| known.iter().any(|split| *split as u8 == code);
            for row in (0..changed.rows).filter(|row| !is_known(changed.split[*row])).collect::<Vec<_>>() {
                for column in 0..columns - 1 {
                    changed.x[row * columns + column] = noise(u64::from(seed) + (row * 64 + column) as u64) * 1e3;
                }
                changed.y[row * 4..][..4].fill(noise(u64::from(seed) + row as u64) * 1e4);
            }
            let forecasts = [&original, &changed].map(|table| {
                let dir = tempfile::tempdir().unwrap();
                let staged = Staged::open(&table.write(dir.path())).unwrap();
                let fitted = match known {
                    [_] => fit_to(&staged, &rows_of(&staged, known), Effort::Full).unwrap().0,
                    _ => compute_of(&staged, Effort::Full).unwrap().forecasters,
                };
                fitted.iter().map(|one| one.predict(&staged, &[0, 1])).collect::<Vec<_>>()
            });
            prop_assert_eq!(&forecasts[0], &forecasts[1]);
        }
    }
}

#[test]
fn logistic_regression_finds_the_probabilities_that_are_there() {
    let rows = 4_000;
    let mut x = Vec::new();
    let mut y = Vec::new();
    let truth = |u: f64| {
        let scores = [1.5 * u, -0.5, -1.5 * u].map(f64::exp);
        scores.map(|score| score / scores.iter().sum::<f64>())
    };
    for row in 0..rows {
        let u = 4.0 * noise(row * 2) - 2.0;
        let at = f64::from(noise(row * 2 + 1));
        let told = truth(f64::from(u));
        let class = if at < told[0] {
            0
        } else if at < told[0] + told[1] {
            1
        } else {
            2
        };
        x.push(u);
        y.extend((0..3).map(|one| f32::from(u8::from(one == class))));
    }
    let dir = tempfile::tempdir().unwrap();
    let table = Table {
        rows: rows as usize,
        features: vec![FeatureMeta { name: "u".into(), ..FeatureMeta::default() }],
        out_shape: vec![3],
        out_labels: vec![["a", "b", "c"].map(String::from).to_vec()],
        x: x.clone(),
        y,
        split: (0..rows).map(|row| if row % 4 == 0 { 1 } else { 0 }).collect(),
        persistence: None,
    };
    let meta = StagedMeta { has_classes: true, ..table.meta() };
    let staged = Staged::open(&table.write_with(dir.path(), &meta)).unwrap();
    let found = compute_of(&staged, Effort::Full).unwrap();
    let [rates, logistic] = &found.forecasters[..] else { panic!("{:?}", found.forecasters) };
    assert_eq!((rates.name(), logistic.name()), ("class_rates", "logistic"));
    let told = logistic.predict(&staged, &[0, 1, 2, 3, 5, 8, 13, 21]);
    for (row, told) in [0, 1, 2, 3, 5, 8, 13, 21].into_iter().zip(told.column_iter()) {
        let off = told.iter().zip(truth(f64::from(x[row]))).map(|(told, true_one)| (told - true_one).abs());
        assert!(off.fold(0.0, f64::max) < 0.04 && (told.sum() - 1.0).abs() < 1e-12, "{told} at {}", x[row]);
    }
    let of = |name: &str| found.split["val"][name];
    assert!(
        of("logistic").loss < 0.85 * of("class_rates").loss && of("logistic").accuracy > of("class_rates").accuracy
    );
}
