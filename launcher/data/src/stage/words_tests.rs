//! Categories, classes, labels and entities: the same whatever file brought them.

use super::{tests::Bench, *};
use arrow_array::{
    ArrayRef, Date32Array, Float32Array, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
    TimestampMillisecondArray,
    types::{Float64Type, Int32Type},
};
use enn_common::{
    config::data::{DuplicatePolicy, Feature, FeatureKind, Labels},
    staged::{Staged as Arrays, words::Form},
};
use std::{fs, sync::Arc};

const DAY_MS: i64 = 86_400_000;

fn parquet(columns: Vec<(&str, ArrayRef)>) -> Vec<u8> {
    let named = columns.into_iter().map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(named).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ::parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

/// A table of one category `a` and the row's number `y`.
fn typed(a: ArrayRef) -> (&'static str, Vec<u8>) {
    let y: ArrayRef = Arc::new(Int64Array::from_iter_values(0..a.len() as i64));
    ("t.parquet", parquet(vec![("a", a), ("y", y)]))
}

fn text(cells: &[&str]) -> (&'static str, Vec<u8>) {
    let rows = cells.iter().enumerate().map(|(y, cell)| format!("{cell},{y}\n"));
    ("t.csv", format!("a,y\n{}", rows.collect::<String>()).into_bytes())
}

fn bench((name, bytes): &(&str, Vec<u8>)) -> Bench {
    let mut bench = Bench::rows(name, bytes);
    bench.layout().features = vec![Feature::new("a", FeatureKind::Category)];
    bench.config.duplicates = DuplicatePolicy::Keep;
    bench
}

fn staged(table: &(&str, Vec<u8>), training: Option<StagedMeta>) -> (Vec<f32>, StagedMeta) {
    let bench = bench(table);
    let staged = bench.try_stage(2, training).unwrap();
    (Arrays::open(&staged.dir).unwrap().x().to_vec(), staged.meta)
}

/// All tables are one: each is staged as every other, and by a model of every other.
fn are_one(tables: &[(&str, Vec<u8>)], categories: &[&str], form: Form) {
    let bits = |x: &[f32]| x.iter().map(|cell| cell.to_bits()).collect::<Vec<_>>();
    let (expected, _) = staged(&tables[0], None);
    for trained in tables {
        let (x, meta) = staged(trained, None);
        assert_eq!(bits(&x), bits(&expected));
        assert_eq!(
            (meta.features[0].categories.as_slice(), meta.features[0].form),
            (&categories.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>()[..], Some(form))
        );
        for new in tables {
            let (x, meta) = staged(new, Some(meta.clone()));
            assert_eq!(bits(&x), bits(&expected), "{} by a model of {}", new.0, trained.0);
            assert_eq!(meta.report.columns["a"].unseen_category, 0);
        }
    }
}

#[test]
fn numbers_are_the_same_category_in_every_format() {
    let reals: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.0), Some(2.5), None, Some(1.0), Some(-0.0)]));
    let short: ArrayRef = Arc::new(Float32Array::from(vec![Some(1.0), Some(2.5), None, Some(1.0), Some(0.0)]));
    let words: ArrayRef = Arc::new(StringArray::from(vec![Some("1.00"), Some("2.5"), None, Some("1"), Some("0.0")]));
    let csv = text(&["1.0", "2.5", "", "1", "0"]);
    let other = text(&["1", "2.50", "NA", "1e0", "-0.0"]);
    are_one(&[csv, other, typed(reals), typed(short), typed(words)], &["1", "2.5", "0"], Form::Number);
}

#[test]
fn an_f32_has_the_digits_that_people_write() {
    let short: ArrayRef = Arc::new(Float32Array::from(vec![0.1, 0.2, 0.1]));
    let long: ArrayRef = Arc::new(Float64Array::from(vec![0.1, 0.2, 0.1]));
    are_one(&[text(&["0.1", "0.2", "0.10"]), typed(short), typed(long)], &["0.1", "0.2"], Form::Number);
}

#[test]
fn moments_are_the_same_category_in_every_format() {
    let days: ArrayRef = Arc::new(Date32Array::from(vec![1, 2, 1]));
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![DAY_MS, 2 * DAY_MS, DAY_MS]));
    let long = text(&["1970-01-02 00:00:00", "1970-01-03T00:00:00Z", "1970-01-02T00:00:00.000"]);
    let brief = text(&["1970-01-02", "1970-01-03", "1970-01-02"]);
    are_one(&[typed(days), typed(times), long, brief], &["1970-01-02", "1970-01-03"], Form::Time);
}

#[test]
fn parts_of_a_second_tell_moments_apart_in_every_format() {
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![DAY_MS + 250, DAY_MS + 500, DAY_MS + 250]));
    let [quarter, half] = ["1970-01-02 00:00:00.25", "1970-01-02 00:00:00.5"];
    are_one(&[text(&[quarter, half, quarter]), typed(times)], &[quarter, half], Form::Text);
}

#[test]
fn a_later_cell_says_what_a_column_is() {
    // Far behind the first piece, in another file.
    let mut cells = vec!["1.0"; 40_000];
    cells.extend(["1", "2.0"]);
    for (last, categories) in
        [("3.0", vec!["1", "2", "3"]), ("x", vec!["1.0", "1", "2.0", "x"]), ("007", vec!["1.0", "1", "2.0", "007"])]
    {
        let mut bench = bench(&text(&cells));
        let second = bench.dir.path().join("second.csv");
        fs::write(&second, format!("a,y\n{last},7\n")).unwrap();
        bench.config.files.push(second);
        for threads in [1, 3] {
            let meta = bench.try_stage(threads, None).unwrap().meta;
            assert_eq!(meta.features[0].categories, categories, "{last}");
        }
    }
}

#[test]
fn texts_are_what_they_are() {
    let (_, meta) = staged(&text(&["007", "7", "7.0", "+7"]), None);
    assert_eq!((meta.features[0].categories.len(), meta.features[0].form), (4, Some(Form::Text)));
    let (x, meta) = staged(&text(&["7.00", "07", "007"]), Some(meta));
    assert_eq!((x, meta.report.columns["a"].unseen_category), (vec![4.0, 4.0, 0.0], 2));
    assert_eq!(meta.report.columns["a"].strangers, ["7.00", "07"]);
    let mut words = CategoryCoverage::default();
    words.add(&meta.report, &[]);
    let told = words.check().unwrap_err().to_string();
    assert!(
        told.starts_with("column \"a\": the model does not know 2 of 3 values, such as \"7.00\", \"07\""),
        "{told}"
    );
}

#[test]
fn a_model_of_a_version_before_knows_its_categories() {
    for (old, new) in [
        (["1.0", "2.0"], text(&["1", "2.0", "1"])),
        (["1", "2"], text(&["1.0", "2.0", "1"])),
        (["0.10000000149011612", "0.20000000298023224"], text(&["0.1", "0.2", "0.1"])),
        (["1970-01-02 00:00:00", "1970-01-03 00:00:00"], text(&["1970-01-02", "1970-01-03", "1970-01-02"])),
    ] {
        let (_, mut meta) = staged(&text(&[old[0], old[1], old[0]]), None);
        meta.features[0].categories = old.map(String::from).to_vec();
        meta.features[0].form = None;
        let (x, _) = staged(&new, Some(meta));
        assert_eq!(x, [0.0, 1.0, 0.0], "{old:?}");
    }
}

#[test]
fn classes_are_the_same_in_every_format() {
    let reals: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 2.0, 1.0, 2.0]));
    let number: ArrayRef = Arc::new(Float64Array::from(vec![0.5, 1.5, 2.5, 3.5]));
    let tables = [
        ("t.csv", b"a,y\n0.5,1.0\n1.5,2\n2.5,1\n3.5,2.0\n".to_vec()),
        ("t.parquet", parquet(vec![("a", number), ("y", reals)])),
    ];
    let stage = |(name, bytes): &(&str, Vec<u8>), training| {
        let mut bench = Bench::rows(name, bytes);
        bench.layout().classes = true;
        let staged = bench.try_stage(2, training).unwrap();
        (Arrays::open(&staged.dir).unwrap().y().to_vec(), staged.meta)
    };
    for trained in &tables {
        let (_, meta) = stage(trained, None);
        assert_eq!((&meta.out_labels[0], meta.class_form), (&vec!["1".to_owned(), "2".to_owned()], Some(Form::Number)));
        for new in &tables {
            let (y, meta) = stage(new, Some(meta.clone()));
            assert_eq!(y, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
            assert_eq!((meta.report.columns["y"].words, meta.report.columns["y"].unseen_category), (4, 0));
        }
        let strange = ("t.csv", b"a,y\n0.5,1\n1.5,3\n".to_vec());
        let (_, meta) = stage(&strange, Some(meta));
        let told = check_classes(&meta.report, "y", &meta.out_labels[0]).unwrap_err().to_string();
        assert!(told.contains("the class of 1 of 2 rows, such as \"3\""), "{told}");
    }
}

#[test]
fn labels_are_the_same_in_every_format() {
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(vec![
        Some(vec![Some(1.0), Some(2.5)]),
        Some(vec![Some(2.5)]),
        Some(vec![]),
    ]));
    let whole: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
        Some(vec![Some(1)]),
        Some(vec![Some(1)]),
        Some(vec![]),
    ]));
    let stage = |(name, bytes): &(&str, Vec<u8>), training| {
        let mut bench = bench(&(*name, bytes.clone()));
        let labels = FeatureKind::Labels(Labels { separator: ';', empty_is_missing: false });
        bench.layout().features = vec![Feature::new("a", labels)];
        let staged = bench.try_stage(2, training).unwrap();
        (Arrays::open(&staged.dir).unwrap().x().to_vec(), staged.meta)
    };
    let tables = [text(&["1.0;2.5", "2.50", "1;1.0;"]), typed(lists)];
    let (_, meta) = stage(&tables[0], None);
    let names: Vec<&str> = meta.features.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["a[1]", "a[2.5]"]);
    let (x, _) = stage(&tables[1], Some(meta.clone()));
    assert_eq!(x, [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
    let (x, found) = stage(&typed(whole), Some(meta));
    assert_eq!(x, [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!((found.report.columns["a"].words, found.report.columns["a"].unseen_category), (2, 0));
}

#[test]
fn entities_are_the_same_in_every_format() {
    use enn_common::config::data::WindowsLayout;
    let windows = |bench: &mut Bench| {
        bench.config.duplicates = DuplicatePolicy::First;
        bench.config.split.kind = enn_common::config::data::SplitKind::Chronological;
        bench.config.layout = Layout::Windows(WindowsLayout {
            entity: "who".into(),
            time: "when".into(),
            time_offset_s: 0,
            step_s: 3600,
            steps: 2,
            history: 1,
            inputs: vec!["v".into()],
            circular: vec![],
            target: "v".into(),
            calendar: vec![],
            target_valid_min: 0.5,
        });
    };
    let rows = || (0..24i64).flat_map(|step| [(1.0, step), (2.0, step)]);
    let spelt = |of: fn(f64, i64) -> String| {
        let lines = rows().map(|(who, step)| format!("{},{},{}\n", of(who, step), step * 3600, step * 10 + who as i64));
        ("t.csv", format!("who,when,v\n{}", lines.collect::<String>()).into_bytes())
    };
    let who: ArrayRef = Arc::new(Float64Array::from_iter_values(rows().map(|row| row.0)));
    let when: ArrayRef = Arc::new(Int64Array::from_iter_values(rows().map(|row| row.1 * 3600)));
    let v: ArrayRef = Arc::new(Int64Array::from_iter_values(rows().map(|row| row.1 * 10 + row.0 as i64)));
    let tables = [
        spelt(|who, _| format!("{who:.1}")),
        spelt(|who, step| if step % 2 == 0 { format!("{who:.0}") } else { format!("{who:.2}") }),
        ("t.parquet", parquet(vec![("who", who), ("when", when), ("v", v)])),
    ];
    let stage = |(name, bytes): &(&str, Vec<u8>), training| {
        let mut bench = Bench::rows(name, bytes);
        windows(&mut bench);
        let staged = bench.try_stage(2, training).unwrap();
        (Arrays::open(&staged.dir).unwrap().x().to_vec(), staged.meta)
    };
    let (expected, _) = stage(&tables[0], None);
    for trained in &tables {
        let (_, meta) = stage(trained, None);
        assert_eq!(meta.out_labels[0], ["1", "2"]);
        let (own, _) = stage(&tables[0], Some(meta.clone()));
        for new in &tables {
            let (x, found) = stage(new, Some(meta.clone()));
            assert_eq!(x, own);
            assert_eq!(found.report.columns["who"].unseen_category, 0);
        }
        assert_eq!(stage(trained, None).0, expected);
    }
}

#[test]
fn groups_of_the_same_name_are_divided_alike_in_every_format() {
    use enn_common::config::data::{SplitConfig, SplitKind};
    let stage = |(name, bytes): &(&str, Vec<u8>)| {
        let mut bench = Bench::rows(name, bytes);
        bench.config.duplicates = DuplicatePolicy::Keep;
        bench.layout().features = vec![Feature::new("y", FeatureKind::Number)];
        bench.layout().targets = vec!["a".into()];
        bench.config.split =
            SplitConfig { kind: SplitKind::Group, val: 0.3, test: 0.3, seed: 5, column: Some("a".into()) };
        fs::read(bench.try_stage(2, None).unwrap().dir.join("split.npy")).unwrap()
    };
    let groups = (0..60).map(|row| f64::from(row % 20));
    let cells: Vec<String> = groups.clone().map(|group| format!("{group:.1}")).collect();
    let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
    let typed = typed(Arc::new(Float64Array::from_iter_values(groups)));
    assert!(stage(&text(&cells)) == stage(&typed));
}
