//! Several sources through the public function: where their samples lie, how they are divided, and what is said of those that do not fit.

use super::tests::Bench;
use enn_common::{
    config::data::{ArraysLayout, DataSource, DuplicatePolicy, Layout, SplitKind, WindowsLayout},
    staged::{StagedMeta, meta::SourceMeta},
};
use std::fs;

/// North has one file of 10 rows, south two of 4 and 6; row 2 of north repeats its row 1, and a row of south has no target.
fn bench() -> Bench {
    let mut bench = Bench::rows("north.csv", b"a,y\n1,1\n2,2\n2,2\n3,3\n4,4\n5,5\n6,6\n7,7\n8,8\n9,9\n");
    fs::write(bench.dir.path().join("s1.csv"), "a,y\n101,1\n102,NA\n103,3\n104,4\n").unwrap();
    fs::write(bench.dir.path().join("s2.csv"), "y,a\n5,105\n6,106\n7,107\n8,108\n9,109\n10,110\n").unwrap();
    bench.config.files.extend(["s1.csv", "s2.csv"].map(|name| bench.dir.path().join(name)));
    let source = |name: &str, files, weight| DataSource { name: name.into(), files, weight: Some(weight) };
    bench.config.sources = vec![source("north", 1, 1.0), source("south", 2, 3.0)];
    bench.config.split.val = 0.2;
    bench.config.split.test = 0.1;
    bench
}

#[test]
fn each_source_lies_together_and_has_a_division_of_its_own() {
    let bench = bench();
    let (staged, arrays) = bench.stage();
    let expected = |name: &str, split_rows| SourceMeta { name: name.into(), split_rows };
    // Of nine samples two validate and one tests, in the order of each source.
    assert_eq!(arrays.meta().sources, [expected("north", [6, 2, 1]), expected("south", [6, 2, 1])]);
    assert_eq!(arrays.split(), [0, 0, 0, 0, 0, 0, 1, 1, 2].repeat(2));
    let a: Vec<f32> = arrays.x().to_vec();
    assert_eq!(a[..2], [1.0, 2.0]);
    assert_eq!(a[9..12], [101.0, 103.0, 104.0], "files of a source follow each other, their columns in any order");
    let mut again = bench;
    again.config.sources[0].weight = Some(7.0);
    let other = again.stage().0;
    assert!(other.reused && other.dir == staged.dir, "weights are no part of what is staged");
    again.config.sources[0].files = 2;
    again.config.sources[1].files = 1;
    assert!(!again.stage().0.reused);
}

#[test]
fn a_division_made_anew_counts_by_source() {
    let bench = bench();
    let (staged, arrays) = bench.stage();
    let mut split = vec![0; arrays.rows()];
    split[10] = 1;
    let found = super::redivide(&staged.dir, &split).unwrap();
    let counts: Vec<[u64; 3]> = found.meta.sources.iter().map(|source| source.split_rows).collect();
    assert_eq!(counts, [[9, 0, 0], [8, 1, 0]]);
}

#[test]
fn sources_that_do_not_fit_are_named_with_the_column() {
    let mut bench = bench();
    fs::write(bench.dir.path().join("s2.csv"), "y,b\n5,105\n").unwrap();
    let error = bench.error();
    assert!(error.contains("s2.csv: source \"south\" has no column \"a\", which source \"north\" has"), "{error}");
    fs::write(bench.dir.path().join("s2.csv"), "y,a\n5,high\n").unwrap();
    let error = bench.error();
    assert!(error.contains("s2.csv:2") && error.contains("\"high\""), "{error}");
    // A source whose samples all validate or test cannot be drawn.
    fs::write(bench.dir.path().join("s2.csv"), "y,a\n5,1\n").unwrap();
    bench.config.split.val = 0.99;
    bench.config.split.test = 0.0;
    let error = bench.error();
    assert!(error.contains("of which no sample trains") || error.contains("no training sample"), "{error}");
}

#[test]
fn arrays_of_a_source_fit_each_other() {
    let mut bench = bench();
    let array = |name: &str, rows: usize, width: usize| {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
        let header = format!("{header:<117}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend((0..rows * width).flat_map(|i| (i as f32).to_le_bytes()));
        fs::create_dir_all(bench.dir.path().join(name).parent().unwrap()).unwrap();
        fs::write(bench.dir.path().join(name), bytes).unwrap();
    };
    array("n/x.npy", 5, 3);
    array("n/y.npy", 5, 2);
    array("s/x.npy", 4, 3);
    array("s/y.npy", 4, 2);
    bench.config.files = ["n/x.npy", "n/y.npy", "s/x.npy", "s/y.npy"].map(|name| bench.dir.path().join(name)).to_vec();
    bench.config.sources.iter_mut().for_each(|source| source.files = 2);
    bench.config.layout = Layout::Arrays(ArraysLayout { x: "x".into(), y: "y".into(), row_id: None });
    bench.config.duplicates = DuplicatePolicy::Keep;
    bench.config.split.val = 0.0;
    bench.config.split.test = 0.0;
    let counts: Vec<u64> = bench.stage().1.meta().sources.iter().map(SourceMeta::rows).collect();
    assert_eq!(counts, [5, 4]);
    array("n/y.npy", 4, 2);
    array("s/y.npy", 5, 2);
    let error = bench.error();
    assert!(error.contains("array \"y\" of source \"north\" has 4 rows") && error.contains("expected 5"), "{error}");
    array("s/x.npy", 4, 2);
    let error = bench.error();
    assert!(error.contains("in source \"south\" like the files before"), "{error}");
}

/// Two entities a and b by the minute, two steps a window, one of history: two tables of the same time span, of which the second
/// is longer, says other things and lacks b.
fn windows() -> Bench {
    let table = |steps: i32, names: &[&str], plus: i32| {
        let cell =
            |step, name: &&str| format!("{name},{},{}\n", step * 60, plus + step + 100 * i32::from(**name == *"b"));
        let rows = (0..steps).flat_map(|step| names.iter().map(move |name| cell(step, name)));
        format!("who,when,v\n{}", rows.collect::<String>())
    };
    let mut bench = Bench::rows("one.csv", table(10, &["b", "a"], 0).as_bytes());
    fs::write(bench.dir.path().join("two.csv"), table(14, &["a"], 1000)).unwrap();
    bench.config.files.push(bench.dir.path().join("two.csv"));
    let source = |name: &str, weight| DataSource { name: name.into(), files: 1, weight: Some(weight) };
    bench.config.sources = vec![source("one", 1.0), source("two", 3.0)];
    bench.config.split.kind = SplitKind::Chronological;
    bench.config.layout = Layout::Windows(WindowsLayout {
        entity: "who".into(),
        time: "when".into(),
        time_offset_s: 0,
        step_s: 60,
        steps: 2,
        history: 1,
        inputs: vec!["v".into()],
        circular: vec![],
        target: "v".into(),
        calendar: vec![],
        target_valid_min: 0.5,
    });
    bench.config.split.val = 0.25;
    bench.config.split.test = 0.25;
    bench
}

#[test]
fn windows_are_cut_out_of_each_source_alone() {
    let mut bench = windows();
    let (staged, arrays) = bench.stage();
    let expected = |name: &str, split_rows| SourceMeta { name: name.into(), split_rows };
    assert_eq!(arrays.meta().sources, [expected("one", [2, 1, 1]), expected("two", [2, 2, 2])]);
    assert_eq!(arrays.split(), [0, 0, 1, 2, 0, 0, 1, 1, 2, 2]);
    let begins: Vec<i64> = [2, 4, 6, 8, 2, 4, 6, 8, 10, 12].iter().map(|step| step * 60).collect();
    assert_eq!(arrays.row_id(), begins);
    let meta = arrays.meta();
    assert_eq!(
        (meta.row_names[0].as_str(), meta.row_names[4].as_str()),
        ("1970-01-01 00:02 one", "1970-01-01 00:02 two")
    );
    // [step][entity] of the window before, then [entity][step] of the target.
    assert_eq!((arrays.x_row(0), arrays.y_row(0)), (&[0.0, 100.0, 1.0, 101.0][..], &[2.0, 3.0, 102.0, 103.0][..]));
    let x = arrays.x_row(4);
    let y = arrays.y_row(4);
    assert_eq!([x[0], x[2], y[0], y[1]], [1000.0, 1001.0, 1002.0, 1003.0]);
    assert!(x[1].is_nan() && y[2].is_nan(), "what the other source has of b at that time is not taken");
    // Statistics are over the training samples of both: the first two of each.
    let stats = meta.y_stats[0];
    assert_eq!((stats.n, stats.mean, stats.min, stats.max), (4, 503.0, 2.0, 1004.0));
    assert_eq!(meta.y_stats[2].n, 2);
    let report = &meta.report;
    assert_eq!((report.rows_read, report.absent_cells, report.duplicates), (34, 14, 0));
    assert!(report.notes.iter().any(|note| note.starts_with("no row of source \"two\" is of b")), "{:?}", report.notes);
    // As if the first were alone, and months are those of each.
    bench.config.sources[1].weight = Some(9.0);
    assert!(bench.stage().0.reused);
    bench.config.split.kind = SplitKind::Blocked;
    assert_eq!(bench.stage().1.split(), arrays.split(), "all is one month, of each source");
    let mut alone = windows();
    alone.config.files.truncate(1);
    alone.config.sources.clear();
    let (_, one) = alone.stage();
    assert_eq!(one.x(), &arrays.x()[..one.x().len()]);
    let names = |meta: &StagedMeta| meta.features.iter().map(|feature| feature.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(one.meta()), names(&staged.meta));
    for threads in [1, 3] {
        let again = windows();
        assert_eq!(again.try_stage(threads, None).unwrap().meta.x_stats, staged.meta.x_stats, "{threads} threads");
    }
}

#[test]
fn a_source_of_windows_that_does_not_fit_is_named() {
    let bench = windows();
    let two = bench.dir.path().join("two.csv");
    fs::write(&two, "who,v\na,1\n").unwrap();
    let error = bench.error();
    assert!(error.contains("two.csv: source \"two\" has no column \"when\", which source \"one\" has"), "{error}");
    fs::write(&two, "who,when,v\na,0,1\nb,60,high\n").unwrap();
    let error = bench.error();
    assert!(error.contains("two.csv:3") && error.contains("\"high\""), "{error}");
    fs::write(&two, "who,when,v\n,0,1\n").unwrap();
    let error = bench.error();
    assert!(error.contains("two.csv") && error.contains("no row has both who and when"), "{error}");
    // One window makes no sample.
    fs::write(&two, "who,when,v\na,0,1\na,60,1\n").unwrap();
    let error = bench.error();
    assert!(error.contains("a weight for source \"two\", of which no sample trains"), "{error}");
}
