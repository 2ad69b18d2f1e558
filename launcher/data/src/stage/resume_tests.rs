//! Staging that was cut off: what another attempt finds, at any moment, must become the bytes of an undisturbed one.

use super::{tests::Bench, *};
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use enn_common::{
    config::data::{
        ArraysLayout, Calendar, DataSource, Feature, FeatureKind, Labels, RowsLayout, SplitConfig, SplitKind,
        WindowsLayout,
    },
    staged::{
        npy::{Header, NpyElement},
        unfinished::{CELLS, HASHES, PROGRESS},
    },
};
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Rows of the tables: some pieces of every source.
const ROWS: usize = 60_000;

/// A row: an id, an input that may be missing, a category that new words join all the time, the target.
fn cells(row: usize) -> (i64, Option<f64>, String, f64) {
    let a = (!row.is_multiple_of(7)).then_some(row as f64 * 0.25);
    (row as i64 * 3, a, format!("c{}", row * row % (row / 500 + 3)), (row % 1000) as f64)
}

fn csv(rows: std::ops::Range<usize>) -> Vec<u8> {
    let mut text = String::from("id,a,c,y,more\n");
    for row in rows {
        let (id, a, c, y) = cells(row);
        let a = a.map_or("NA".to_string(), |a| a.to_string());
        text.push_str(&format!("{id},{a},\"{c}\nof, it\",{y},{:060}\n", id));
    }
    text.into_bytes()
}

fn batch() -> RecordBatch {
    let rows = || (0..ROWS).map(cells);
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(rows().map(|row| row.0)));
    let a: ArrayRef = Arc::new(rows().map(|row| row.1).collect::<Float64Array>());
    let c: ArrayRef = Arc::new(StringArray::from_iter_values(rows().map(|row| row.2)));
    let y: ArrayRef = Arc::new(Float64Array::from_iter_values(rows().map(|row| row.3)));
    RecordBatch::try_from_iter([("id", id), ("a", a), ("c", c), ("y", y)]).unwrap()
}

fn table(name: &str, bytes: &[u8], row_id: Option<&str>) -> Bench {
    let mut bench = Bench::rows(name, bytes);
    let feature = |column: &str, kind| Feature::new(column, kind);
    bench.config.layout = Layout::Rows(RowsLayout {
        features: vec![feature("a", FeatureKind::Number), feature("c", FeatureKind::Category)],
        targets: vec!["y".into()],
        classes: false,
        out_shape: vec![1],
        row_id: row_id.map(str::to_owned),
    });
    bench.config.split = SplitConfig { kind: SplitKind::Random, val: 0.2, test: 0.2, seed: 5, column: None };
    bench
}

/// Every file of a directory.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// What is there unfinished, as a killed process leaves it.
fn unfinished(out: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(out).ok()?.map(Result::unwrap).map(|entry| entry.path());
    let is_marked = |path: &Path| fs::metadata(path.join(PROGRESS)).is_ok_and(|found| found.len() > 0);
    entries.into_iter().find(|path| is_marked(path))
}

fn options(out: &Path, threads: usize) -> StageOptions {
    StageOptions { out: out.to_path_buf(), threads, for_prediction: None }
}

/// A copy of an unfinished directory, into which other threads may be writing.
fn copy(from: &Path, to: &Path) {
    let to = to.join(from.file_name().unwrap());
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Stages with a point after every piece, as far as the last is on_saved by then.
fn staged(bench: &Bench, out: &Path, threads: usize, on_saved: &(dyn Fn() + Sync)) -> Result<Staged, StageError> {
    stage_marked(&bench.config, &options(out, threads), ResumePolicy { every: Duration::ZERO, on_saved }, &mut |_| {})
}

/// Stages, goes on from copies on_saved at the points, and compares. Says how many rows each copy had.
fn check_with(bench: &Bench, threads: usize, expected: &BTreeMap<String, Vec<u8>>) -> Vec<u64> {
    let place = bench.dir.path().join(format!("by-{threads}"));
    let out = place.join("kept");
    let copies = AtomicUsize::new(0);
    let whole = staged(bench, &out, threads, &|| {
        let number = copies.fetch_add(1, Ordering::Relaxed);
        copy(&unfinished(&out).unwrap(), &place.join(format!("copy-{number}")));
    })
    .unwrap();
    assert_eq!((whole.resumed_rows, unfinished(&out)), (0, None));
    assert!(contents(&whole.dir) == *expected, "points change nothing");
    let resumed = (0..copies.into_inner()).map(|copy| {
        let staged = staged(bench, &place.join(format!("copy-{copy}")), 1 + copy % 3, &|| {}).unwrap();
        assert!(contents(&staged.dir) == *expected, "copy {copy} that began with {} rows", staged.resumed_rows);
        staged.resumed_rows
    });
    resumed.collect()
}

/// Goes on from copies on_saved by one thread and by several. Says how many rows those of one thread had, which is what it had read.
fn check(bench: &Bench) -> Vec<u64> {
    let plain = stage_marked(
        &bench.config,
        &options(&bench.dir.path().join("plain"), 1),
        ResumePolicy { every: Duration::MAX, ..ResumePolicy::default() },
        &mut |_| {},
    );
    let expected = contents(&plain.unwrap().dir);
    for threads in [2, 3] {
        let resumed = check_with(bench, threads, &expected);
        assert!(resumed.is_sorted() && resumed[0] > 0, "{threads} threads: {resumed:?}");
    }
    let resumed = check_with(bench, 1, &expected);
    assert!(resumed.len() > 1 && resumed.is_sorted() && resumed[0] > 0, "{resumed:?}");
    assert!(resumed.iter().all(|rows| *rows <= ROWS as u64), "{resumed:?}");
    resumed
}

#[test]
fn a_text_table_goes_on_behind_its_last_mark() {
    for row_id in [Some("id"), None, Some("c")] {
        check(&table("t.csv", &csv(0..ROWS), row_id));
    }
}

#[test]
fn several_files_go_on_in_the_one_whose_turn_it_is() {
    let mut bench = table("t0.csv", &csv(0..ROWS / 2), Some("id"));
    fs::write(bench.dir.path().join("t1.csv"), csv(ROWS / 2..ROWS)).unwrap();
    bench.config.files.push(bench.dir.path().join("t1.csv"));
    let resumed = check(&bench);
    assert!(resumed.iter().any(|rows| *rows > ROWS as u64 / 2), "{resumed:?}");
}

#[test]
fn labels_are_not_looked_for_again() {
    let mut text = String::from("id,a,c,y,more\n");
    for row in 0..ROWS {
        let (id, _, _, y) = cells(row);
        text.push_str(&format!("{id},{y},\"l{}, it\",{y},{id:060}\n", row * row % (row / 10_000 + 2)));
    }
    let mut bench = table("t.csv", text.as_bytes(), Some("id"));
    let labels = Labels { separator: ',', empty_is_missing: false };
    bench.layout().features[1].kind = FeatureKind::Labels(labels);
    let plain = staged(&bench, &bench.dir.path().join("plain"), 1, &|| {}).unwrap();
    assert!(plain.meta.features.iter().any(|feature| feature.name == "c[it]"), "{:?}", plain.meta.features);
    let resumed = check_with(&bench, 1, &contents(&plain.dir));
    // Marks of the first pass are followed by those of the second.
    assert!(resumed.is_sorted() && resumed[0] == 0 && resumed[resumed.len() - 1] > 0, "{resumed:?}");
    check_with(&bench, 3, &contents(&plain.dir));
}

#[test]
fn typed_tables_go_on_behind_their_last_mark() {
    let batch = batch();
    let mut parquet = Vec::new();
    let mut ipc = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut parquet, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(&mut ipc, &batch.schema()).unwrap();
    (0..ROWS).step_by(25_000).for_each(|at| writer.write(&batch.slice(at, 25_000.min(ROWS - at))).unwrap());
    writer.finish().unwrap();
    drop(writer);
    for (name, bytes) in [("t.parquet", parquet), ("t.arrows", ipc)] {
        check(&table(name, &bytes, Some("id")));
    }
}

#[test]
fn arrays_go_on_behind_their_last_mark() {
    let array = |width: usize| {
        let data: Vec<u8> = (0..ROWS * width).flat_map(|i| ((i * i % 1_000_003) as f32).to_le_bytes()).collect();
        let shape = [ROWS as u64, width as u64];
        let offset = Header::roomy_offset(NpyElement::F32, &shape[1..]);
        [Header::write(NpyElement::F32, &shape, offset).unwrap(), data].concat()
    };
    let mut bench = Bench::rows("x.npy", &array(30));
    fs::write(bench.dir.path().join("y.npy"), array(2)).unwrap();
    bench.config.files.push(bench.dir.path().join("y.npy"));
    bench.config.layout = Layout::Arrays(ArraysLayout { x: "x".into(), y: "y".into(), row_id: None });
    check(&bench);
}

/// Some rows of a long table of ten entities, one of them later than the others; some cells twice, some missing.
fn long_rows(rows: std::ops::Range<usize>) -> String {
    let mut text = String::from("who,when,v,w\n");
    for row in rows {
        let who = if row < ROWS / 2 { row % 9 } else { row % 10 };
        let when = row / 10 - row % 1000 / 990;
        let v = if row.is_multiple_of(11) { "NA".to_owned() } else { (row * row % 997).to_string() };
        text.push_str(&format!("e{who},{},{v},{}\n", when * 60, row % 7));
    }
    text
}

fn long_table(rows: usize) -> Bench {
    let mut bench = Bench::rows("long.csv", long_rows(0..rows).as_bytes());
    bench.config.layout = Layout::Windows(WindowsLayout {
        entity: "who".into(),
        time: "when".into(),
        time_offset_s: 0,
        step_s: 60,
        steps: 4,
        history: 2,
        inputs: vec!["w".into()],
        circular: vec![],
        target: "v".into(),
        calendar: vec![Calendar::Weekday],
        target_valid_min: 0.2,
    });
    bench.config.split = SplitConfig { kind: SplitKind::Random, val: 0.1, test: 0.1, seed: 5, column: None };
    bench
}

/// Where the rows of a source of windows wait.
fn cells_of(dir: &Path, source: usize) -> PathBuf {
    dir.join(format!("{CELLS}{source}"))
}

fn has_cells(dir: &Path, source: usize) -> bool {
    fs::metadata(cells_of(dir, source)).is_ok_and(|found| found.len() > 0)
}

#[test]
fn windows_go_on_behind_their_last_mark_in_either_pass() {
    let bench = long_table(ROWS);
    check(&bench);
    let out = bench.dir.path().join("staged");
    let place = bench.dir.path().join("copy");
    let whole = staged(&bench, &out, 1, &|| {
        let left = unfinished(&out).unwrap();
        if !place.exists() && has_cells(&left, 0) {
            copy(&left, &place);
        }
    })
    .unwrap();
    assert!(!has_cells(&whole.dir, 0));
    // Without the cells that a point tells of, both passes are on_saved again.
    fs::remove_file(cells_of(&unfinished(&place).unwrap(), 0)).unwrap();
    let again = staged(&bench, &place, 2, &|| {}).unwrap();
    assert_eq!(again.resumed_rows, 0);
    assert!(contents(&again.dir) == contents(&whole.dir));
}

/// The first source is two pieces long, the second a few rows, the third has the rest of the rows in two files.
#[test]
fn windows_of_several_sources_go_on_in_the_one_whose_turn_it_is() {
    let parts = [0..ROWS / 2, ROWS / 2..ROWS / 2 + 900, ROWS / 2 + 900..ROWS - 20_000, ROWS - 20_000..ROWS];
    let mut bench = long_table(parts[0].end);
    for (number, rows) in (1..).zip(&parts[1..]) {
        let path = bench.dir.path().join(format!("long-{number}.csv"));
        fs::write(&path, long_rows(rows.clone())).unwrap();
        bench.config.files.push(path);
    }
    let source = |name: &str, files| DataSource { name: name.into(), files, weight: None };
    bench.config.sources = vec![source("a", 1), source("b", 1), source("c", 2)];
    let resumed = check(&bench);
    assert!(resumed.contains(&(parts[1].end as u64)) && resumed.ends_with(&[ROWS as u64]), "{resumed:?}");
    // Copies from the second pass over the first and over the last source.
    let out = bench.dir.path().join("staged");
    let places = [0, 2].map(|source| (source, bench.dir.path().join(format!("copy of {source}"))));
    let whole = staged(&bench, &out, 1, &|| {
        let left = unfinished(&out).unwrap();
        for (_, place) in places.iter().filter(|(source, place)| !place.exists() && has_cells(&left, *source)) {
            copy(&left, place);
        }
    })
    .unwrap();
    assert!((0..3).all(|source| !has_cells(&whole.dir, source)));
    for (source, place) in places {
        let left = unfinished(&place).unwrap();
        assert!((0..3).all(|other| has_cells(&left, other) == (other <= source)));
        // Without the rows of a source whose turn it is no more, all is on_saved again.
        fs::remove_file(cells_of(&left, 0)).unwrap();
        let again = staged(&bench, &place, 2, &|| {}).unwrap();
        assert_eq!(again.resumed_rows, 0);
        assert!(contents(&again.dir) == contents(&whole.dir));
    }
}

#[test]
fn what_is_not_as_its_marks_say_is_begun_anew() {
    let bench = table("t.csv", &csv(0..ROWS), None);
    let out = bench.dir.path().join("staged");
    let place = bench.dir.path().join("copy");
    let whole = staged(&bench, &out, 1, &|| {
        if !place.exists() {
            copy(&unfinished(&out).unwrap(), &place);
        }
    })
    .unwrap();
    let left = unfinished(&place).unwrap();
    for (name, bytes) in [("x.npy", 100), (HASHES, 8), (PROGRESS, 20), ("split.npy", 10)] {
        let damaged = bench.dir.path().join(name);
        copy(&left, &damaged);
        let file = fs::File::options().write(true).open(unfinished(&damaged).unwrap().join(name)).unwrap();
        file.set_len(bytes).unwrap();
        let staged = staged(&bench, &damaged, 2, &|| {}).unwrap();
        assert_eq!(staged.resumed_rows, 0, "{name} was cut");
        assert!(contents(&staged.dir) == contents(&whole.dir), "{name}");
    }
    // A changed source is another data set.
    fs::write(&bench.config.files[0], csv(0..ROWS - 1)).unwrap();
    assert_eq!(staged(&bench, &place, 2, &|| {}).unwrap().resumed_rows, 0);
}

#[test]
fn bad_data_leave_nothing_to_go_on_with() {
    let mut text = csv(0..ROWS);
    text.extend_from_slice(b"1,high,c,1,2\n");
    let bench = table("t.csv", &text, None);
    let out = bench.dir.path().join("staged");
    let error = staged(&bench, &out, 2, &|| {}).unwrap_err();
    assert!(error.to_string().contains("high"), "{error}");
    assert_eq!(unfinished(&out), None);
}
