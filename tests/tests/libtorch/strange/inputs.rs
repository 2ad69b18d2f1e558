//! Inputs that say nothing, or say it oddly.

use super::{Place, Table, data};
use enn_common::artifact::evaluation::MODEL;

const WITH_CATEGORY: (&str, &str) = ("data.rows", r#"features = ["a", "b", { column = "k", kind = "category" }]"#);

fn all_finite(place: &Place, table: &Table, rows: usize) {
    let told = place.predict(table, &[]);
    assert_eq!(told.status.len(), rows);
    assert!(told.values.iter().all(|value| value.is_finite() && value.abs() < 5.0));
    assert!(told.status.iter().all(|status| *status == 0));
}

#[test]
fn columns_of_nothing_and_cells_of_infinity() {
    let place = Place::new(&data().with("b", |_, _| "nan".into()), &[]);
    place.train(&[]);
    assert!(
        place.meta().report.notes.iter().any(|note| note.contains("left out of the inputs") && note.contains(": b"))
    );
    place.is_sensible();
    all_finite(&place, &data(), 240);

    let nothing = ["a", "b", "c"].into_iter().fold(data(), |table, column| table.with(column, |_, _| "NA".into()));
    let (code, said) = Place::new(&nothing, &[]).refusal();
    assert_eq!(code, 3);
    assert!(said.contains("no input with a valid value in the training samples"), "{said}");

    let every = |n: usize, word: &'static str| {
        move |row: usize, value: f64| if row.is_multiple_of(n) { word.to_owned() } else { value.to_string() }
    };
    let table = data().with("a", every(9, "inf")).with("c", every(7, "-inf")).with("y", every(11, "inf"));
    let place = Place::new(&table, &[]);
    place.train(&[]);
    assert_eq!(place.meta().report.columns["a"].non_finite, 27);
    place.is_sensible();
    all_finite(&place, &table, 240);
}

#[test]
fn one_row_two_rows_one_column() {
    let whole = ("data.split", "val = 0.0\ntest = 0.0");
    for rows in [1, 2] {
        let place = Place::new(&data().rows(0..rows), &[whole]);
        place.train(&[]);
        assert!(place.metrics().split["train"].mae.is_finite());
        all_finite(&place, &data(), 240);
    }
    for columns in ["features = [\"c\"]", "targets = [\"y\"]"] {
        let place = Place::new(&data(), &[("data.rows", columns)]);
        place.train(&[]);
        place.is_sensible();
        assert!(place.predict(&data(), &[]).values.iter().all(|value| value.is_finite()));
    }
}

#[test]
fn categories_that_training_has_not_seen_are_counted_and_predicted() {
    let table = data().with("k", |row, _| format!("k{}", row % 7));
    let place = Place::new(&table, &[WITH_CATEGORY]);
    place.train(&[]);
    place.is_sensible();
    let asked = table.with("k", |row, _| if row % 2 == 0 { "never".to_owned() } else { "k1".to_owned() });
    all_finite(&place, &asked.clone().without(&["y", "z"]), 240);
    // A row of which nothing is known has no prediction, and counts for nobody.
    let nothing = |row: usize, value: f64| if row == 3 { String::new() } else { value.to_string() };
    let asked = asked.with("a", nothing).with("b", nothing).with("k", |row, _| if row == 3 { "" } else { "k2" }.into());
    let told = place.predict(&asked, &[]);
    assert!(told.status[3] != 0 && told.status.iter().filter(|status| **status != 0).count() == 1);
    place.write("holes.csv", asked.text().as_bytes());
    let (found, mae) = place.evaluate("holes.csv");
    let judged: u64 = found.seen.iter().map(|one| one.part.errors[MODEL].n).sum();
    assert!(
        mae.is_finite()
            && judged == 478
            && found.all.errors.values().all(|errors| errors.n == found.all.errors[MODEL].n)
    );
}

#[test]
fn long_names_of_categories_and_ten_thousand_of_them() {
    let long = "x".repeat(100_000);
    let table = data().with("k", |row, _| format!("{long}{}", row % 7));
    let place = Place::new(&table, &[WITH_CATEGORY]);
    place.train(&[]);
    place.is_sensible();
    all_finite(&place, &table, 240);

    let many = (0..42).fold(data(), |table, _| table.then(data())).with("k", |row, _| format!("c{row}"));
    let place =
        Place::new(&many, &[WITH_CATEGORY, ("data.rows", "row_id = \"k\""), ("train", "epochs = 1\nbatch = 1024")]);
    // Regressions on so many columns are another matter.
    place.train_with(&["--baselines", "quick"]);
    assert_eq!(place.meta().rows, 43 * 240);
    assert!(place.metrics().split["test"].mae.is_finite());
}

#[test]
fn repeated_rows_count_once() {
    let once = data();
    let thrice = data().then(data()).then(data());
    let trained = |table: &Table, sections: &[(&str, &str)]| {
        let place = Place::new(table, sections);
        place.train(&[]);
        (place.metrics().split["test"].mae, place.meta().report.duplicates)
    };
    let expected = trained(&once, &[]).0;
    assert_eq!(trained(&thrice, &[]), (expected, 480), "by their ids");
}

#[test]
fn numbers_beyond_what_a_double_holds_name_rows_and_mislead_nobody() {
    const BIG: i64 = (1 << 53) + 1;
    let table =
        data().with("id", |row, _| (BIG + row as i64).to_string()).with("a", |row, _| (BIG + row as i64).to_string());
    let place = Place::new(&table, &[]);
    place.train(&[]);
    place.is_sensible();
    // They are one number to an f32.
    assert!(place.meta().report.columns["a"].constant);
    let told = |place: &Place| {
        let notes = place.meta().report.notes;
        notes.into_iter().find(|note| note.starts_with("an f32 keeps seven digits")).unwrap_or_default()
    };
    assert!(told(&place).ends_with("constant offset: a"), "{}", told(&place));
    place.predict(&table, &[]);
    // Seconds since 1970 of one minute are four numbers to it, and a target far from 0 is no better off.
    let far = |offset: f64| {
        data()
            .with("b", |row, _| (1_700_000_000 + row / 4).to_string())
            .with("y", move |_, value| (offset + 10.0 * value).to_string())
    };
    let other = Place::new(&far(1e7), &[("train", "epochs = 1")]);
    let said = other.train(&[]);
    assert!(told(&other).ends_with("constant offset: b, y") && said.contains(&told(&other)), "{said}");
    let (code, said) = Place::new(&far(1e9), &[]).refusal();
    assert_eq!(code, 3);
    assert!(said.contains("target \"y\": found numbers as large as 1e9 that differ by less than"), "{said}");
    let ids = enn_common::staged::reader::NpyMap::open(&place.path().join("answer/row_id.npy")).unwrap();
    assert!(ids.numbers::<i64>().unwrap().iter().copied().eq((0..240).map(|row| BIG + row)));
}

#[test]
fn inputs_far_from_all_training_are_answered_or_said_to_be_missing() {
    let place = Place::new(&data(), &[]);
    place.train(&[]);
    let asked = data().with("a", |row, value| match row {
        3 => "3e38".to_owned(),
        4 => "1e300".to_owned(),
        5 => "-1e20".to_owned(),
        _ => value.to_string(),
    });
    all_finite(&place, &asked, 240);
}
