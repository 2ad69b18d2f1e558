//! Staging through its public function: small files in, arrays and sentences out.

use super::*;
use enn_common::{
    config::data::{
        ColumnRange, DuplicatePolicy, Feature, FeatureKind, RowsLayout, SplitConfig, SplitKind, TargetMask,
    },
    staged::{Split, Staged as Arrays},
};
use std::{collections::BTreeSet, ffi::OsString, fs};

/// A directory with one table and a place to stage to.
pub(crate) struct Bench {
    pub dir: tempfile::TempDir,
    pub config: DataConfig,
}

fn feature(column: &str, kind: FeatureKind) -> Feature {
    Feature::new(column, kind)
}

impl Bench {
    /// A table `name` whose number column `a` predicts `y`.
    pub(crate) fn rows(name: &str, text: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        let layout = RowsLayout {
            features: vec![feature("a", FeatureKind::Number)],
            targets: vec!["y".into()],
            classes: false,
            out_shape: vec![1],
            row_id: None,
        };
        let config = DataConfig {
            files: vec![file],
            sources: vec![],
            format: None,
            sheet: None,
            missing: vec!["NA".into()],
            duplicates: DuplicatePolicy::First,
            layout: Layout::Rows(layout),
            split: SplitConfig { kind: SplitKind::InOrder, val: 0.0, test: 0.0, seed: 1, column: None },
            units: "°F".into(),
            input_units: Default::default(),
            ranges: vec![],
            weight: None,
            mask: TargetMask::Finite,
        };
        Self { dir, config }
    }

    pub(crate) fn layout(&mut self) -> &mut RowsLayout {
        match &mut self.config.layout {
            Layout::Rows(layout) => layout,
            _ => panic!("rows"),
        }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("staged")
    }

    pub(crate) fn try_stage(&self, threads: usize, for_prediction: Option<StagedMeta>) -> Result<Staged, StageError> {
        let options = StageOptions { out: self.out(), threads, for_prediction };
        stage(&self.config, &options, &mut |_| {})
    }

    pub(crate) fn stage(&self) -> (Staged, Arrays) {
        let staged = self.try_stage(2, None).unwrap();
        let arrays = Arrays::open(&staged.dir).unwrap();
        (staged, arrays)
    }

    pub(crate) fn error(&self) -> String {
        let names = || -> BTreeSet<OsString> {
            let entries = fs::read_dir(self.out()).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name()).filter(|name| name != ".sources.json").collect()
        };
        let before = names();
        let error = self.try_stage(2, None).unwrap_err().to_string();
        assert_eq!(names(), before, "an error leaves nothing new");
        error
    }
}

#[test]
fn rows_become_samples_with_masks_statistics_and_a_report() {
    let text = "k,a,c,when,y\n\
        10,1,red,2024-01-01,5\n\
        11,NA,blue,2024-01-01T06:00,6\n\
        12,3,red,,NA\n\
        13,99,,2024-01-02,8\n\
        14,5,green,2024-01-03,9\n\
        15,1,2\n";
    let mut bench = Bench::rows("t.csv", text.as_bytes());
    bench.layout().features = vec![
        feature("c", FeatureKind::Category),
        feature("a", FeatureKind::Number),
        feature("when", FeatureKind::Time),
    ];
    bench.layout().row_id = Some("k".into());
    bench.config.ranges = vec![ColumnRange { column: "a".into(), low: 0.0, high: 10.0 }];
    bench.config.split = SplitConfig { kind: SplitKind::InOrder, val: 0.0, test: 0.25, seed: 1, column: None };
    let (staged, arrays) = bench.stage();
    let meta = arrays.meta();
    // Row 12 has no target: dropped. Row 15 has the wrong width.
    assert_eq!(arrays.row_id(), [10, 11, 13, 14]);
    assert_eq!(arrays.split(), [0, 0, 0, 2]);
    assert_eq!(meta.split_rows, [3, 0, 1]);
    let names: Vec<&str> = meta.features.iter().map(|feature| feature.name.as_str()).collect();
    assert_eq!(names[..4], ["c", "a", "when.day_of_year.sin", "when.day_of_year.cos"]);
    assert_eq!(meta.features[0].categories, ["red", "blue"], "green is seen in the test split only");
    let column = |index: usize| (0..4).map(|row| arrays.x_row(row)[index]).collect::<Vec<f32>>();
    assert_eq!(column(0)[..2], [0.0, 1.0]);
    assert!(column(0)[2].is_nan());
    assert_eq!(column(0)[3], 2.0, "the unknown id");
    assert_eq!((column(1)[0], column(1)[3]), (1.0, 5.0));
    assert!(column(1)[1].is_nan() && column(1)[2].is_nan());
    assert_eq!((0..4).map(|row| arrays.x_mask_row(row)[1]).collect::<Vec<u8>>(), [1, 0, 0, 1]);
    assert_eq!(arrays.y(), [5.0, 6.0, 8.0, 9.0]);
    let stats = meta.y_stats[0];
    assert_eq!((stats.n, stats.mean, stats.min, stats.max), (3, 19.0 / 3.0, 5.0, 8.0));
    assert!((stats.std - (14.0f64 / 9.0).sqrt()).abs() < 1e-12);
    assert_eq!((meta.x_stats[0].mean, meta.x_stats[0].std, meta.x_stats[0].n), (0.0, 1.0, 2));
    assert_eq!((meta.x_stats[1].n, meta.x_stats[1].mean), (1, 1.0));
    assert!(meta.features[1].has_missing);
    let report = &meta.report;
    assert_eq!((report.rows_read, report.samples, report.wrong_width, report.wrong_width_line), (6, 4, 1, Some(7)));
    assert_eq!(report.dropped_samples, 1);
    assert_eq!(
        (report.columns["a"].missing, report.columns["a"].out_of_range, report.columns["a"].constant),
        (1, 1, true)
    );
    assert_eq!((report.columns["c"].missing, report.columns["c"].unseen_category), (1, 1));
    assert_eq!((report.columns["when"].missing, report.columns["y"].missing), (1, 1));
    assert!(!staged.reused && meta.units == "°F");
}

#[test]
fn a_categorical_target_becomes_a_cell_for_each_class() {
    let text = "a,y\n1,red\n2,blue\n3,NA\n4,red\n5,green\n6,blue\n";
    let mut bench = Bench::rows("t.csv", text.as_bytes());
    bench.layout().classes = true;
    bench.config.split = SplitConfig { kind: SplitKind::InOrder, val: 0.0, test: 0.4, seed: 1, column: None };
    let (staged, arrays) = bench.stage();
    let meta = arrays.meta();
    assert!(meta.has_classes && !meta.has_weights);
    assert_eq!(
        (meta.out_shape.as_slice(), &meta.out_labels[0][..]),
        (&[2][..], &["red".to_owned(), "blue".into()][..])
    );
    assert_eq!(arrays.y()[..6], [1.0, 0.0, 0.0, 1.0, 1.0, 0.0], "the row without a class is left out");
    assert!(arrays.y_row(3).iter().all(|y| y.is_nan()), "green is in no training row");
    assert_eq!((arrays.y_row(4), arrays.y_mask()[6..].to_vec()), (&[0.0, 1.0][..], vec![0, 0, 1, 1]));
    assert_eq!((meta.report.columns["y"].unseen_category, meta.report.columns["y"].missing), (1, 1));
    assert!((meta.y_stats[0].mean - 2.0 / 3.0).abs() < 1e-12, "the share of the class");

    // Data to predict, with and without the target, and with a class that the model does not know.
    for (table, expected) in [("a\n7\n8\n", None), ("a,y\n7,blue\n8,pink\n", Some([0.0, 1.0]))] {
        fs::write(&bench.config.files[0], table).unwrap();
        let predicted = bench.try_stage(2, Some(staged.meta.clone())).unwrap();
        let arrays = Arrays::open(&predicted.dir).unwrap();
        assert!(arrays.meta().has_classes && arrays.meta().has_targets == expected.is_some());
        assert_eq!((arrays.rows(), &arrays.meta().out_labels), (2, &staged.meta.out_labels));
        if let Some(expected) = expected {
            assert!(arrays.y_row(0) == expected && arrays.y_row(1)[0].is_nan());
        }
    }
    fs::write(&bench.config.files[0], "a,y\n1,red\n2,red\n").unwrap();
    let error = bench.error();
    assert!(
        error.contains("data.rows.targets is 1 classes of \"y\"") || error.contains("1 classes of \"y\""),
        "{error}"
    );
    let names: String = (0..40).map(|row| format!("{row},name{row}\n")).collect();
    fs::write(&bench.config.files[0], format!("a,y\n{names}")).unwrap();
    let error = bench.error();
    assert!(
        error.contains("training samples, each of them once, expected classes that several samples have"),
        "{error}"
    );
}

#[test]
fn weights_are_staged_and_what_is_no_weight_is_told() {
    let mut bench = Bench::rows("t.csv", b"a,w,y\n1,2,1\n2,NA,2\n3,-1,3\n4,0.5,NA\n5,3,5\n");
    bench.config.weight = Some("w".into());
    let (staged, arrays) = bench.stage();
    assert_eq!((arrays.weight(), arrays.y()), (&[2.0, 0.0, 0.0, 3.0][..], &[1.0, 2.0, 3.0, 5.0][..]));
    assert!(staged.meta.report.notes.iter().any(|note| note.starts_with("2 samples have no weight")), "{staged:?}");
    // What is judged has weights, too; what is only predicted has none.
    let judged = bench.try_stage(2, Some(staged.meta.clone())).unwrap();
    assert_eq!(Arrays::open(&judged.dir).unwrap().weight(), [2.0, 0.0, 0.0, 0.5, 3.0]);
    fs::write(&bench.config.files[0], "a,w\n1,x\n").unwrap();
    let predicted = bench.try_stage(2, Some(staged.meta)).unwrap();
    assert!(!predicted.meta.has_weights && Arrays::open(&predicted.dir).unwrap().weight().is_empty());
}

#[test]
fn a_mask_decides_which_targets_count() {
    let mut bench = Bench::rows("t.csv", b"a,y\n-9,1\n2,-9.0\n3,3\n4,NA\n");
    bench.config.mask = TargetMask::Value(-9.0);
    let (staged, arrays) = bench.stage();
    assert_eq!((arrays.y(), arrays.x()), (&[1.0, 3.0][..], &[-9.0, 3.0][..]), "the sentinel is one in targets only");
    assert_eq!((staged.meta.y_stats[0].min, staged.meta.report.columns["y"].missing), (1.0, 2));
    let mut bench = Bench::rows("t.csv", b"a,y,z\n1,1,1\n2,2,NA\n");
    bench.layout().targets = vec!["y".into(), "z".into()];
    bench.layout().out_shape = vec![2];
    bench.config.mask = TargetMask::None;
    let error = bench.error();
    assert!(
        error.contains("data.mask") && error.contains("1 target cells of the training samples are missing"),
        "{error}"
    );
    fs::write(&bench.config.files[0], "a,y,z\n1,1,1\n2,2,3\n").unwrap();
    assert_eq!(bench.stage().1.rows(), 2);
}

#[test]
fn the_same_data_are_staged_once_and_changed_data_again() {
    let mut bench = Bench::rows("t.csv", b"a,y\n1,2\n3,4\n");
    let first = bench.try_stage(1, None).unwrap();
    let again = bench.try_stage(2, None).unwrap();
    assert_eq!((first.reused, again.reused), (false, true));
    assert_eq!((&first.dir, &first.meta), (&again.dir, &again.meta));
    // Another name, the same contents.
    let moved = bench.dir.path().join("moved.csv");
    fs::rename(&bench.config.files[0], &moved).unwrap();
    bench.config.files = vec![moved.clone()];
    assert!(bench.try_stage(2, None).unwrap().reused);
    // Other contents of the same length at nearly the same time.
    fs::write(&moved, "a,y\n1,2\n3,5\n").unwrap();
    let other = bench.try_stage(2, None).unwrap();
    assert!(!other.reused && other.dir != first.dir);
    bench.config.split.test = 0.5;
    assert!(!bench.try_stage(2, None).unwrap().reused);
    assert_eq!(fs::read_dir(bench.out()).unwrap().count(), 4, "three sets and the memory of sources");
}

#[test]
fn many_blocks_and_any_number_of_threads_give_the_same_bytes() {
    let mut text = String::from("a,c,y\r\n");
    for row in 0..60_000u64 {
        let hash = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let cell = if hash % 11 == 0 { "NA".to_string() } else { format!("{:.6}", hash as f64 / 997.0) };
        text.push_str(&format!("{cell},\"c{},{}\",{}\r\n", hash % 50, row / 20_000, row as f64 * 0.5));
        if row % 1000 == 17 {
            text.push_str("1,2\r\n\r\n");
        }
    }
    let mut bench = Bench::rows("t.csv", text.as_bytes());
    bench.layout().features = vec![feature("a", FeatureKind::Number), feature("c", FeatureKind::Category)];
    bench.config.split = SplitConfig { kind: SplitKind::Random, val: 0.1, test: 0.1, seed: 3, column: None };
    let one = bench.try_stage(1, None).unwrap();
    let arrays = Arrays::open(&one.dir).unwrap();
    assert_eq!(arrays.rows(), 60_000);
    assert!((0..60_000).all(|row| arrays.y_row(row)[0] == row as f32 * 0.5), "every row in its place");
    let mut hidden = 0;
    for row in 0..60_000u64 {
        let hash = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        hidden += u64::from(arrays.x_mask_row(row as usize)[0] == 0);
        let word = &one.meta.features[1].categories[arrays.x_row(row as usize)[1] as usize];
        assert_eq!(*word, format!("c{},{}", hash % 50, row / 20_000));
    }
    assert_eq!(one.meta.report.columns["a"].missing, hidden);
    assert_eq!((one.meta.report.wrong_width, one.meta.report.wrong_width_line), (60, Some(20)));
    let first = arrays.rows_of(Split::Train).next().unwrap();
    assert_eq!(arrays.x_row(first)[1], 0.0, "the first training row has the first category");
    let bytes = |file: &str| fs::read(one.dir.join(file)).unwrap();
    let before: Vec<Vec<u8>> =
        ["x.npy", "x_mask.npy", "y.npy", "row_id.npy", "split.npy", "meta.json"].map(bytes).to_vec();
    fs::remove_dir_all(bench.out()).unwrap();
    bench.try_stage(5, None).unwrap();
    let after: Vec<Vec<u8>> =
        ["x.npy", "x_mask.npy", "y.npy", "row_id.npy", "split.npy", "meta.json"].map(bytes).to_vec();
    assert!(before == after);
}

#[test]
fn repeated_rows_follow_the_policy_and_are_counted() {
    let mut bench = Bench::rows("t.csv", b"k,a,y\n1,1,1\n2,2,2\n1,1,1\n2,9,9\n");
    let (_, arrays) = bench.stage();
    assert_eq!(arrays.y(), [1.0, 2.0, 9.0], "without a key a whole row repeats");
    assert_eq!((arrays.meta().report.duplicates, arrays.row_id()), (1, [0, 1, 3].as_slice()));
    bench.layout().row_id = Some("k".into());
    bench.config.duplicates = DuplicatePolicy::Last;
    let (_, arrays) = bench.stage();
    assert_eq!((arrays.y(), arrays.row_id()), ([1.0, 9.0].as_slice(), [1, 2].as_slice()));
    bench.config.duplicates = DuplicatePolicy::Keep;
    let (_, arrays) = bench.stage();
    assert_eq!((arrays.rows(), arrays.meta().report.duplicates), (4, 2));
    bench.config.duplicates = DuplicatePolicy::Error;
    let error = bench.try_stage(2, None).unwrap_err().to_string();
    assert!(error.contains("row 3 repeats the row id of row 1"), "{error}");
}

#[test]
fn text_ids_number_the_samples_and_name_them() {
    let mut bench = Bench::rows("t.csv", b"k,a,y\n7,1,1\nseven,2,2\n8,3,NA\nx,4,4\n");
    bench.layout().row_id = Some("k".into());
    let (staged, arrays) = bench.stage();
    assert_eq!(arrays.row_id(), [0, 1, 3]);
    assert_eq!(staged.meta.row_names, ["7", "seven", "x"]);
    assert_eq!(staged.meta.report.nameless, 0);
}

#[test]
fn groups_and_named_splits_are_kept_together() {
    let mut text = String::from("g,a,s,y\n");
    for row in 0..300 {
        text.push_str(&format!("g{},{row},{},{row}\n", row % 30, ["train", "Validation", "test"][row % 3]));
    }
    let mut bench = Bench::rows("t.csv", text.as_bytes());
    bench.config.split =
        SplitConfig { kind: SplitKind::Column, val: 0.0, test: 0.0, seed: 1, column: Some("s".into()) };
    let (_, arrays) = bench.stage();
    assert_eq!(arrays.meta().split_rows, [100, 100, 100]);
    assert_eq!(arrays.split()[..4], [0, 1, 2, 0]);
    bench.config.split = SplitConfig { kind: SplitKind::Group, val: 0.3, test: 0.2, seed: 1, column: Some("g".into()) };
    let (_, arrays) = bench.stage();
    assert!((30..300).all(|row| arrays.split()[row] == arrays.split()[row % 30]));
    assert!(arrays.meta().split_rows.iter().all(|rows| *rows >= 10), "{:?}", arrays.meta().split_rows);
    fs::write(&bench.config.files[0], "g,a,s,y\n1,1,train,1\n1,1,trian,1\n").unwrap();
    bench.config.split.kind = SplitKind::Column;
    bench.config.split.column = Some("s".into());
    let error = bench.try_stage(2, None).unwrap_err().to_string();
    assert!(error.ends_with("t.csv:3, column \"s\": found \"trian\", expected train, val or test"), "{error}");
}

#[test]
fn prediction_takes_the_models_inputs_and_keeps_every_row() {
    let mut bench = Bench::rows("t.csv", b"a,dead,c,y\n1,NA,x,1\n2,NA,y,2\n3,NA,x,3\n");
    bench.layout().features = vec![
        feature("a", FeatureKind::Number),
        feature("dead", FeatureKind::Number),
        feature("c", FeatureKind::Category),
    ];
    let (trained, _) = bench.stage();
    assert_eq!(trained.meta.features.len(), 2);
    assert!(trained.meta.report.notes[0].contains("left out of the inputs"), "{:?}", trained.meta.report.notes);
    // New data: other column order, no target, a repeated row, a stranger, and the dead column alive.
    fs::write(&bench.config.files[0], "c,a,dead\ny,5,1\ny,5,1\nz,NA,2\n").unwrap();
    let staged = bench.try_stage(2, Some(trained.meta.clone())).unwrap();
    let arrays = Arrays::open(&staged.dir).unwrap();
    assert_eq!(staged.meta.features, trained.meta.features);
    assert_eq!((staged.meta.split_rows, staged.meta.has_targets), ([0, 0, 3], false));
    assert_eq!(arrays.x_row(0), [5.0, 1.0]);
    assert!(arrays.x_row(2)[0].is_nan() && arrays.x_row(2)[1] == 2.0);
    assert_eq!((arrays.row_id(), arrays.y()), ([0, 1, 2].as_slice(), [].as_slice()));
    assert_eq!(staged.meta.report.columns["c"].unseen_category, 1);
    assert_eq!(staged.meta.x_stats, trained.meta.x_stats);
    fs::write(&bench.config.files[0], "a,b\n1,2\n").unwrap();
    let error = bench.try_stage(2, Some(trained.meta)).unwrap_err().to_string();
    assert!(error.contains("has no column \"dead\", \"c\""), "{error}");
}

#[test]
fn every_mistake_is_one_sentence_with_its_place() {
    for (text, expected) in [
        ("a,y\n1,2\nx,3\n", "t.csv:3, column \"a\": found \"x\", expected a number like the rest of the column"),
        ("\"a\",y\n\"1\",\"1,5\"\n", "t.csv:2, column \"y\": found \"1,5\", expected a number"),
        ("A,y\n1,2\n", "has no column \"a\" (did you mean \"A\"?); it has \"A\", \"y\""),
        ("a,a,y\n1,1,2\n", "the header names column \"a\" twice"),
        ("a,y\n", "the file holds a header and nothing else; expected at least one data row"),
        ("", "the file is empty"),
        (
            "a,y\n1\n2\n",
            "no sample can be made of 2 rows; expected at least one data row; 2 rows have a wrong number of fields, first line 2",
        ),
        ("a,y\n1,NA\n2,\n", "2 samples were dropped because too little of their target is valid"),
        ("a,y\nNA,1\nNA,2\n", "no input with a valid value in the training samples"),
        ("a,y\n1,\"2\n3,4\n", "t.csv:2: a quote is opened and never closed; close it"),
        ("a,y\n1,2\n\"3\n\",4\n5,6\n7,\"8\n9,1\n", "t.csv:6: a quote is opened and never closed; close it"),
        ("a,\"y\n1,2\n3,4\n", "t.csv:1: a quote is opened and never closed; close it"),
        ("a,y\n1,caf\u{e9}\n", "t.csv:2, column \"y\": found \"café\""),
    ] {
        let error = Bench::rows("t.csv", text.as_bytes()).error();
        assert!(error.contains(expected), "{text:?}: {error}");
        assert!(!error.contains('\n'));
    }
    let latin = Bench::rows("t.csv", b"a,y\n1,caf\xe9\n").error();
    assert!(latin.contains("t.csv:2, column \"y\": found bytes that are not UTF-8"), "{latin}");
    let mut bench = Bench::rows("t.csv", b"a,y\n1,2\n");
    bench.config.split.test = 1.0;
    assert!(bench.error().contains("no training sample of 1"));
    bench.config.files = vec![bench.dir.path().join("absent.csv")];
    assert!(bench.error().contains("absent.csv does not exist; data.files is relative to"));
    bench.config.files = vec![bench.dir.path().join("*.csv")];
    assert!(bench.error().contains("*.csv does not exist, and patterns are not expanded"));
    bench.config.files = vec![bench.dir.path().to_owned()];
    assert!(bench.error().contains("is a directory, expected a file; name the files in it"));
    let bench = Bench::rows("t.dat", b"a,y\n1,2\n");
    assert!(bench.error().contains("the extension does not name a format; set data.format"));
}

#[test]
fn rows_to_predict_that_seem_to_be_in_another_unit_are_told_of() {
    let rows: String = (0..40).map(|row| format!("{row},{}\n", row % 7)).collect();
    let bench = Bench::rows("t.csv", format!("a,y\n{rows}").as_bytes());
    let (trained, _) = bench.stage();
    let is_told = |first: &str| {
        fs::write(&bench.config.files[0], format!("a\n{first}\n2\n")).unwrap();
        let notes = bench.try_stage(2, Some(trained.meta.clone())).unwrap().meta.report.notes;
        notes.iter().any(|note| note.contains("perhaps of another unit: a"))
    };
    assert!(is_told("60000") && !is_told("600"));
}
