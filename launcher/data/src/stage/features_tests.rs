//! Indices, labels and one-hot categories through the public function.

use super::{tests::Bench, *};
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, builder};
use enn_common::{
    config::data::{Feature, FeatureKind, Index, Labels, Outside, SplitKind},
    staged::{Split, Staged as Arrays, meta::IndexMeta},
};
use std::{fs, sync::Arc};

/// Row by row: station, weather (none: missing), target, split.
const ROWS: [(Option<i64>, Option<&str>, f64, &str); 8] = [
    (Some(11), Some("rain;wind"), 1.0, "train"),
    (Some(13), Some(""), 2.0, "train"),
    (None, Some("wind; wind ;"), 3.0, "train"),
    (Some(9), None, 4.0, "train"),
    (Some(14), Some("rain"), 5.0, "train"),
    (Some(12), Some("hail;rain"), 6.0, "val"),
    (Some(11), Some("fog;hail"), 7.0, "test"),
    (Some(10), Some("wind"), 8.0, "test"),
];

fn csv() -> String {
    let row = |(station, weather, y, split): &(Option<i64>, Option<&str>, f64, &str)| {
        format!("{},{},{y},{split}\n", station.map_or("NA".into(), |s| s.to_string()), weather.unwrap_or("NA"))
    };
    format!("station,weather,y,s\n{}", ROWS.iter().map(row).collect::<String>())
}

fn index(outside: Outside) -> Feature {
    Feature::new("station", FeatureKind::Index(Index { offset: 10, rows: 4, outside }))
}

fn labels(empty_is_missing: bool) -> Feature {
    Feature::new("weather", FeatureKind::Labels(Labels { separator: ';', empty_is_missing }))
}

fn bench(name: &str, bytes: &[u8], features: Vec<Feature>) -> Bench {
    let mut bench = Bench::rows(name, bytes);
    bench.layout().features = features;
    bench.config.split.kind = SplitKind::Column;
    bench.config.split.column = Some("s".into());
    bench
}

fn column(arrays: &Arrays, name: &str) -> Vec<Option<f32>> {
    let at = arrays.meta().features.iter().position(|feature| feature.name == name).unwrap();
    let cell = |row: usize| (arrays.x_mask_row(row)[at] != 0).then(|| arrays.x_row(row)[at]);
    (0..arrays.rows()).map(cell).collect()
}

#[test]
fn an_index_keeps_its_rows_and_strangers_are_unknown_or_the_nearest() {
    let names: Vec<String> = (10..14).map(|row| row.to_string()).collect();
    for (outside, low, high, unseen, clamped) in [(Outside::Unknown, 4.0, 4.0, 4, 0), (Outside::Clamp, 0.0, 3.0, 1, 2)]
    {
        let bench = bench("t.csv", csv().as_bytes(), vec![index(outside)]);
        let (staged, arrays) = bench.stage();
        let feature = &arrays.meta().features[0];
        assert_eq!((&feature.categories, feature.has_missing), (&names, true));
        let found = column(&arrays, "station");
        assert_eq!(found[..5], [Some(1.0), Some(3.0), None, Some(low), Some(high)]);
        assert_eq!(found[5..], [Some(2.0), Some(1.0), Some(0.0)], "rows that training has not are rows all the same");
        let own = if outside == Outside::Clamp { vec![2] } else { vec![0, 2] };
        assert_eq!(feature.index, Some(IndexMeta { offset: 10, unseen: own }));
        let stats = arrays.meta().x_stats[0];
        assert_eq!((stats.mean, stats.std), (0.0, 1.0), "an index is not standardised");
        let report = &staged.meta.report.columns["station"];
        assert_eq!((report.missing, report.unseen_category, report.clamped), (1, unseen, clamped), "{outside:?}");
        // Other rows, to be predicted.
        let path = bench.dir.path().join("new.csv");
        fs::write(&path, "station\n12\n99\nNA\n").unwrap();
        let config = DataConfig { files: vec![path], ..bench.config.clone() };
        let out = bench.dir.path().join("p");
        let options = StageOptions { out, threads: 1, for_prediction: Some(staged.meta.clone()) };
        let new = stage(&config, &options, &mut |_| {}).unwrap();
        assert_eq!(column(&Arrays::open(&new.dir).unwrap(), "station"), [Some(2.0), Some(high), None]);
        let report = &new.meta.report.columns["station"];
        assert_eq!(report.unseen_category + report.clamped, 2, "one beyond the table, and one that training has not");
    }
    let wrong = bench("t.csv", csv().replace("13,", "13.5,").as_bytes(), vec![index(Outside::Clamp)]);
    assert!(
        wrong.error().contains("t.csv:3, column \"station\": found 13.5, expected an integer"),
        "{}",
        wrong.error()
    );
}

#[test]
fn labels_are_columns_of_those_that_training_has() {
    for empty_is_missing in [false, true] {
        let bench = bench("t.csv", csv().as_bytes(), vec![labels(empty_is_missing)]);
        let (staged, arrays) = bench.stage();
        let names: Vec<&str> = arrays.meta().features.iter().map(|feature| feature.name.as_str()).collect();
        assert_eq!(names, ["weather[rain]", "weather[wind]"], "hail and fog are of no training row");
        let flags: Vec<bool> = arrays.meta().features.iter().map(|feature| feature.has_missing).collect();
        assert_eq!(flags, [true, false], "they are missing together: one flag says it");
        let none = if empty_is_missing { None } else { Some(0.0) };
        let one = |rain, wind| (Some(rain), Some(wind));
        let expected = [one(1.0, 1.0), (none, none), one(0.0, 1.0), (None, None), one(1.0, 0.0), one(1.0, 0.0)];
        let expected = [&expected[..], &[one(0.0, 0.0), one(0.0, 1.0)]].concat();
        let rain = column(&arrays, "weather[rain]");
        let wind = column(&arrays, "weather[wind]");
        assert_eq!(rain.into_iter().zip(wind).collect::<Vec<_>>(), expected);
        assert!(arrays.meta().x_stats.iter().all(|stats| (stats.mean, stats.std) == (0.0, 1.0)));
        let report = &staged.meta.report;
        let missing = 1 + u64::from(empty_is_missing);
        assert_eq!((report.columns["weather"].missing, report.columns["weather"].unseen_category), (missing, 3));
        assert!(!report.notes.iter().any(|note| note.contains("left out")), "{:?}", report.notes);
    }
}

#[test]
fn labels_that_a_model_does_not_know_count_for_nothing_and_are_counted() {
    let bench = bench("t.csv", csv().as_bytes(), vec![labels(false), index(Outside::Unknown)]);
    let (staged, _) = bench.stage();
    let path = bench.dir.path().join("new.csv");
    fs::write(&path, "weather,station\nfog;wind;snow;fog,11\nrain,12\n,13\nNA,10\n").unwrap();
    let config = DataConfig { files: vec![path], ..bench.config.clone() };
    let out = bench.dir.path().join("predicted");
    let options = StageOptions { out, threads: 2, for_prediction: Some(staged.meta.clone()) };
    let new = stage(&config, &options, &mut |_| {}).unwrap();
    let arrays = Arrays::open(&new.dir).unwrap();
    assert_eq!(new.meta.features, staged.meta.features);
    assert_eq!(column(&arrays, "weather[wind]"), [Some(1.0), Some(0.0), Some(0.0), None]);
    assert_eq!(column(&arrays, "weather[rain]"), [Some(0.0), Some(1.0), Some(0.0), None]);
    assert_eq!(new.meta.report.columns["weather"].unseen_category, 2, "a label twice in a cell is one");
    // The same rows in memory, as a list of texts.
    let mut lists = builder::ListBuilder::new(builder::StringBuilder::new());
    for labels in [&["fog", "wind", "snow", "fog"][..], &["rain"], &[]] {
        lists.append_value(labels.iter().map(Some));
    }
    lists.append_null();
    let stations: ArrayRef = Arc::new(Int64Array::from(vec![11, 12, 13, 10]));
    let lists: ArrayRef = Arc::new(lists.finish());
    let batch = RecordBatch::try_from_iter_with_nullable([("station", stations, true), ("weather", lists, true)]);
    let encoder = Encoder::new(&bench.config, &staged.meta).unwrap().unwrap();
    let x = encoder.encode(batch.unwrap()).unwrap();
    let width = staged.meta.features.len();
    assert_eq!(x[..3 * width], arrays.x()[..3 * width]);
    assert_eq!(x[3 * width..3 * width + 2], [0.0, 0.0], "a null is an empty cell");
}

#[test]
fn every_format_that_has_labels_gives_the_same() {
    let (_, expected) = bench("t.csv", csv().as_bytes(), vec![index(Outside::Clamp), labels(false)]).stage();
    let stations: ArrayRef = Arc::new(ROWS.iter().map(|row| row.0).collect::<Int64Array>());
    let reals: ArrayRef = Arc::new(ROWS.iter().map(|row| row.0.map(|s| s as f64)).collect::<Float64Array>());
    let texts: ArrayRef = Arc::new(ROWS.iter().map(|row| Some(row.1.unwrap_or("NA"))).collect::<StringArray>());
    let mut lists = builder::LargeListBuilder::new(builder::StringBuilder::new());
    for (_, weather, ..) in ROWS {
        let labels = weather.unwrap_or("NA").split(';').map(str::trim).filter(|label| !label.is_empty());
        lists.append_value(labels.map(Some));
    }
    let lists: ArrayRef = Arc::new(lists.finish());
    let y: ArrayRef = Arc::new(ROWS.iter().map(|row| Some(row.2)).collect::<Float64Array>());
    let split: ArrayRef = Arc::new(ROWS.iter().map(|row| Some(row.3)).collect::<StringArray>());
    for (station, weather, is_list) in [(&stations, &texts, false), (&reals, &texts, false), (&stations, &lists, true)]
    {
        let columns =
            [("station", station.clone()), ("weather", weather.clone()), ("y", y.clone()), ("s", split.clone())];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut file = Vec::new();
        let mut writer = parquet::arrow::ArrowWriter::try_new(&mut file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let mut stream = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        stream.write(&batch).unwrap();
        for (name, bytes) in [("t.parquet", file), ("t.arrows", stream.into_inner().unwrap())] {
            let mut features = vec![index(Outside::Clamp), labels(false)];
            let (_, found) = bench(name, &bytes, features.clone()).stage();
            if is_list {
                // What is a token in a text is a label in a list.
                assert_eq!(column(&found, "weather[NA]")[3], Some(1.0), "{name}");
                assert_eq!(column(&found, "weather[wind]")[..3], column(&expected, "weather[wind]")[..3], "{name}");
                features[1].kind = FeatureKind::Category;
                let error = bench(name, &bytes, features).error();
                assert!(error.contains("\"weather\" holds") && error.contains("for labels, lists of them"), "{error}");
            } else {
                assert_eq!(found.meta().features, expected.meta().features, "{name}");
                assert_eq!((found.x_mask(), found.split()), (expected.x_mask(), expected.split()), "{name}");
            }
        }
    }
}

#[test]
fn labels_without_end_and_names_that_meet_are_refused() {
    let many: String = (0..1001).map(|i| format!("l{i};,1\n")).collect();
    let mut wrong = Bench::rows("t.csv", format!("weather,y\n{many}").as_bytes());
    wrong.layout().features = vec![labels(false)];
    assert!(wrong.error().contains("column \"weather\" has more than 1000 labels; is its separator another one?"));
    fs::write(&wrong.config.files[0], "weather,weather[rain],y\nrain,1,2\n,2,3\n").unwrap();
    wrong.layout().features.push(Feature::new("weather[rain]", FeatureKind::Number));
    assert!(wrong.error().contains("two inputs that would be called \"weather[rain]\""), "{}", wrong.error());
    fs::write(&wrong.config.files[0], "weather,y\n,1\n,2\n").unwrap();
    wrong.layout().features.truncate(1);
    assert!(wrong.error().contains("found no label in any cell"), "{}", wrong.error());
}

#[test]
fn a_category_is_one_hot_when_it_is_small() {
    let mut one_hot = Feature::new("weather", FeatureKind::Category);
    one_hot.one_hot = true;
    let (_, arrays) = bench("t.csv", csv().as_bytes(), vec![one_hot.clone()]).stage();
    assert!(arrays.meta().features[0].one_hot && arrays.meta().features[0].categories.len() == 3);
    let many: String = (0..1001).map(|i| format!("l{i},1\n")).collect();
    let mut wrong = Bench::rows("t.csv", format!("weather,y\n{many}").as_bytes());
    wrong.layout().features = vec![one_hot];
    let error = wrong.error();
    assert!(error.contains("encoding = \"one_hot\" for the 1001 categories of \"weather\""), "{error}");
}

#[test]
fn a_division_made_anew_forgets_labels_and_rows_that_training_has_no_more() {
    let features = || vec![labels(false), index(Outside::Unknown)];
    let whole = bench("t.csv", csv().as_bytes(), features());
    let (staged, base) = whole.stage();
    let mut split = base.split().to_vec();
    // The rows with wind, and 13.
    [0, 1, 2].into_iter().for_each(|row| split[row] = Split::Test as u8);
    let found = redivide(&staged.dir, &split).unwrap();
    let arrays = Arrays::open(&found.dir).unwrap();
    assert_eq!(column(&arrays, "weather[wind]").into_iter().flatten().sum::<f32>(), 0.0, "nothing is learnt of it");
    assert_eq!(column(&arrays, "weather[rain]"), column(&base, "weather[rain]"));
    assert_eq!(column(&arrays, "station"), column(&base, "station"));
    let features = &arrays.meta().features;
    assert_eq!(features[2].index.as_ref().unwrap().unseen, [0, 1, 2, 3]);
    assert_eq!(
        (features[0].has_missing, features[1].has_missing, &features[0].label),
        (true, false, &base.meta().features[0].label)
    );
}
