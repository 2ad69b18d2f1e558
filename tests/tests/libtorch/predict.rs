//! Prediction as a user has it: killed and taken up again, and as a stream between two pipes.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test's helpers fail the test by panicking and look again until a deadline"
)]

use arrow_array::{
    Array, DictionaryArray, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
    cast::AsArray,
    types::{Float32Type, Float64Type, Int32Type},
};
use arrow_ipc::{
    CompressionType,
    reader::StreamReader,
    writer::{IpcWriteOptions, StreamWriter},
};
use enn_common::event::{Event, EventKind};
use enn_tests::{
    data::{self, mix},
    launch,
};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use std::{
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

/// Rows to predict, and rows of a chunk.
const ROWS: u64 = 120_000;
const CHUNK_ROWS: u64 = 4096;
/// Longest time until what a killed process left is gone.
const GONE_MAX: Duration = Duration::from_secs(60);
/// Chunks that are told of before the kill.
const CHUNKS: u64 = 3;

fn enn() -> Command {
    Command::new(launch::enn())
}

/// A trained run in `dir`.
fn trained(dir: &Path, more: &[&str]) -> PathBuf {
    data::trained(enn(), dir, more)
}

fn value(row: u64, column: u64) -> f64 {
    (mix(row * 4 + column) % 2_000) as f64 / 1_000.0 - 1.0
}

fn predict(run: &Path, csv: &Path, out: &Path, shown: &str) -> Command {
    let mut command = enn();
    command.arg("predict").arg(run).args([shown, "--nproc-per-node", "2", "--data"]).arg(csv).arg("--out").arg(out);
    command
}

/// Rows predicted and rows in all, where a line of a journal tells of them.
fn predicted(line: impl AsRef<str>) -> Option<(u64, u64)> {
    match serde_json::from_str::<Event>(line.as_ref()).ok()?.what {
        EventKind::Predicted { rows, rows_total } => Some((rows, rows_total)),
        _ => None,
    }
}

/// Lines of the ledger of what is being predicted into `out`, without its header.
fn chunks(out: &Path) -> u64 {
    let partial = out.with_file_name(format!("{}.partial", out.file_name().unwrap().to_string_lossy()));
    let text = fs::read_to_string(partial.join("ledger.jsonl")).unwrap_or_default();
    text.lines().count().saturating_sub(1) as u64
}

#[test]
fn a_killed_prediction_goes_on_with_the_chunks_that_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &[]);
    let csv = dir.path().join("new.csv");
    let mut text = "id,a,b,c\n".to_owned();
    for row in 0..ROWS {
        writeln!(text, "{row},{},{},{}", value(row, 0), value(row, 1), value(row, 2)).unwrap();
    }
    fs::write(&csv, text).unwrap();

    let out = dir.path().join("killed");
    let mut child = predict(&run, &csv, &out, "--json").stdout(Stdio::piped()).spawn().unwrap();
    let told = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let enough = told.into_iter().find(|line| predicted(line).is_some_and(|(rows, _)| rows >= CHUNKS * CHUNK_ROWS));
    assert!(enough.is_some(), "it ended before it was killed");
    child.kill().unwrap();
    child.wait().unwrap();
    let done = chunks(&out);
    // The last ones may have been told of and not yet be in the ledger.
    assert!((1..ROWS.div_ceil(CHUNK_ROWS)).contains(&done) && !out.exists(), "{done} chunks");

    let journals = || {
        let entries = fs::read_dir(run.join("predictions")).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| path.join("events.jsonl")).filter(|path| path.is_file()).collect::<Vec<PathBuf>>()
    };
    let before = journals();
    let again = predict(&run, &csv, &out, "--quiet").output().unwrap();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    let own = journals().into_iter().find(|path| !before.contains(path)).unwrap();
    let events = fs::read_to_string(own).unwrap();
    // What was done before counts from the beginning.
    let (rows, total) = events.lines().find_map(predicted).unwrap();
    assert!(rows > done * CHUNK_ROWS && total == ROWS, "{rows} rows after {done} chunks");

    let whole = dir.path().join("whole");
    assert!(predict(&run, &csv, &whole, "--quiet").status().unwrap().success());
    for file in ["pred.npy", "row_id.npy", "status.npy"] {
        assert!(fs::read(out.join(file)).unwrap() == fs::read(whole.join(file)).unwrap(), "{file}");
    }
}

#[test]
fn what_was_changed_after_it_was_written_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &[]);
    let csv = dir.path().join("new.csv");
    let out = dir.path().join("out");
    fs::write(&csv, "id,a,b,c\n1,0.5,0.25,0.125\n2,0.1,0.2,0.3\n").unwrap();
    assert!(predict(&run, &csv, &out, "--quiet").status().unwrap().success());
    let verify = |what: &Path| {
        let done = enn().args(["data", "verify"]).arg(what).output().unwrap();
        (done.status.code(), String::from_utf8([done.stdout, done.stderr].concat()).unwrap())
    };
    let staged = run.join("staged");
    let array = fs::read_dir(&staged).unwrap().map(|entry| entry.unwrap().path());
    let array = array.filter(|path| path.extension().is_some_and(|end| end == "npy")).max().unwrap();
    for (what, file) in [(&out, &out.join("pred.npy")), (&staged, &array), (&run, &array)] {
        let written = fs::read(file).unwrap();
        let (code, told) = verify(what);
        assert!(code == Some(0) && told.contains("every byte is as it was written"), "{told}");
        let mut changed = written.clone();
        *changed.last_mut().unwrap() ^= 1;
        fs::write(file, changed).unwrap();
        let (code, told) = verify(what);
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(code == Some(5) && told.contains("WRONG") && told.contains(name), "{told}");
        fs::write(file, written).unwrap();
    }
    // A file that is no prediction.
    let (code, told) = verify(&csv);
    assert!(code == Some(5) && told.contains("new.csv.manifest.json"), "{told}");
}

#[test]
fn names_that_are_too_many_to_keep_are_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let config = data::write(dir.path());
    let made =
        enn().arg("init").arg(config).args(["--quiet", "--runs-dir"]).arg(dir.path().join("runs")).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let run = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
    let csv = dir.path().join("new.csv");
    for (rows, told) in [(100_000, false), (100_001, true)] {
        let mut text = "id,a,b,c\n".to_owned();
        (0..rows).for_each(|row| writeln!(text, "r{row},0.5,{},0.25", row % 7).unwrap());
        fs::write(&csv, text).unwrap();
        let out = dir.path().join(format!("{rows}.csv"));
        let done = predict(&run, &csv, &out, "--json").output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let lines = String::from_utf8(done.stdout).unwrap();
        let lines = lines.lines().filter_map(|line| serde_json::from_str::<Event>(line).ok());
        let warned =
            lines.filter_map(|event| if let EventKind::Warned { message } = event.what { Some(message) } else { None });
        let warned: Vec<String> = warned.filter(|message| message.contains("keep their names")).collect();
        assert_eq!(warned.len(), usize::from(told), "{warned:?}");
        let header = fs::read_to_string(&out).unwrap().lines().next().unwrap().to_owned();
        assert_eq!(header.contains("row_name"), !told, "{header}");
    }
}

/// What the worker may take of the address space, KiB: several times what it takes before it computes, and less than all rows at once need.
const ROOM_KIB: u64 = 2 << 20;

#[test]
fn a_cpu_predicts_as_many_rows_at_once_as_there_is_memory_for() {
    let dir = tempfile::tempdir().unwrap();
    let config = data::write(dir.path());
    let mut init = enn();
    init.arg("init").arg(config).args(["--quiet", "--set", "model.spatial_latents=8192", "--set", "model.d_model=64"]);
    let made = init.arg("--runs-dir").arg(dir.path().join("runs")).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let run = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
    let csv = dir.path().join("new.csv");
    let row = |row: u64| format!("{row},{},{},{}\n", value(row, 0), value(row, 1), value(row, 2));
    fs::write(&csv, format!("id,a,b,c\n{}", (0..60).map(row).collect::<String>())).unwrap();
    let worker = dir.path().join("worker.sh");
    let real = launch::enn().with_file_name("enn-worker");
    fs::write(&worker, format!("#!/bin/sh\nulimit -v {ROOM_KIB}\nexec '{}' \"$@\"\n", real.display())).unwrap();
    fs::set_permissions(&worker, fs::Permissions::from_mode(0o755)).unwrap();

    let out = dir.path().join("out");
    let mut command = enn();
    command
        .arg("predict")
        .arg(&run)
        .args(["--json", "--nproc-per-node", "1", "--data"])
        .arg(&csv)
        .arg("--out")
        .arg(&out);
    let done = command.env("ENN_WORKER", &worker).output().unwrap();
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{told}{}", String::from_utf8_lossy(&done.stderr));
    let decided = told.lines().find_map(|line| match serde_json::from_str::<Event>(line).ok()?.what {
        EventKind::Decided { decision } => {
            decision.split_once(" rows are predicted at once: they need ")?.0.parse().ok()
        }
        _ => None,
    });
    let rows: u64 = decided.unwrap_or_else(|| panic!("{told}"));
    assert!((1..60).contains(&rows), "{rows} of 60 rows at once in {ROOM_KIB} KiB: {told}");
    let found = enn_common::staged::reader::NpyMap::open(&out.join("pred.npy")).unwrap();
    let found: &[f32] = found.numbers().unwrap();
    assert!(found.len() == 60 && found.iter().all(|value| value.is_finite()), "{found:?}");
}

fn batch(first: u64, rows: u64) -> RecordBatch {
    let column = |column: u64| {
        // One row has nothing.
        let numbers = (first..first + rows).map(|row| (row != 3).then(|| value(row, column)));
        Arc::new(Float64Array::from_iter(numbers)) as Arc<dyn Array>
    };
    let ids = Arc::new(Int64Array::from_iter_values((first..first + rows).map(|row| row as i64))) as Arc<dyn Array>;
    let columns = [("id", ids, false), ("a", column(0), true), ("b", column(1), true), ("c", column(2), true)];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

#[test]
fn a_stream_is_answered_batch_by_batch() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &["--set", "train.loss=quantile"]);
    let mut command = enn();
    command.arg("predict").arg(&run).args(["--data", "-", "--out", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut questions = StreamWriter::try_new(child.stdin.take().unwrap(), &batch(0, 1).schema()).unwrap();
    let mut answers = None;
    let mut output = child.stdout.take();
    let mut streamed: Vec<(Vec<Option<f32>>, i64)> = Vec::new();
    for (first, rows) in [(0, 5), (5, 1), (6, 40)] {
        questions.write(&batch(first, rows)).unwrap();
        questions.flush().unwrap();
        // The answer comes before the next question, or this waits for ever.
        let answers = answers.get_or_insert_with(|| StreamReader::try_new(output.take().unwrap(), None).unwrap());
        let answer = answers.next().unwrap().unwrap();
        let names: Vec<&str> = answer.schema_ref().fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["row_id", "y", "y@0.1", "y@0.9", "failed"]);
        assert_eq!(answer.num_rows() as u64, rows);
        let column = |index: usize| answer.column(index).as_primitive::<Float32Type>().iter().collect::<Vec<_>>();
        let y = column(1);
        let low = column(2);
        let high = column(3);
        let ids = answer.column(0).as_primitive::<arrow_array::types::Int64Type>();
        for (row, id) in ids.values().iter().enumerate() {
            let failed = answer.column(4).as_string::<i32>();
            assert_eq!(failed.is_valid(row), *id == 3, "row {id}");
            assert!(*id == 3 || (low[row] <= y[row] && y[row] <= high[row]));
            streamed.push((vec![y[row], low[row], high[row]], *id));
        }
    }
    questions.into_inner().unwrap().flush().unwrap();
    assert!(answers.unwrap().next().is_none());
    assert!(child.wait().unwrap().success());
    assert_eq!(streamed.iter().map(|(_, id)| *id).collect::<Vec<_>>(), (0..46).collect::<Vec<_>>());
    let left: Vec<_> = fs::read_dir(run.join("predictions")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".stream")), "{left:?}");

    // The same rows from a file.
    let csv = dir.path().join("same.csv");
    let out = dir.path().join("same");
    let mut text = "id,a,b,c\n".to_owned();
    for row in 0..46 {
        let cells = [0, 1, 2].map(|column| if row == 3 { String::new() } else { value(row, column).to_string() });
        writeln!(text, "{row},{}", cells.join(",")).unwrap();
    }
    fs::write(&csv, text).unwrap();
    assert!(predict(&run, &csv, &out, "--quiet").status().unwrap().success());
    let levels = enn_common::staged::reader::NpyMap::open(&out.join("levels.npy")).unwrap();
    let levels: &[f32] = levels.numbers().unwrap();
    for (row, (numbers, _)) in streamed.iter().enumerate().filter(|(row, _)| *row != 3) {
        let file = [levels[row * 3 + 1], levels[row * 3], levels[row * 3 + 2]];
        for (streamed, file) in numbers.iter().zip(file) {
            assert!((streamed.unwrap() - file).abs() < 1e-5, "row {row}: {numbers:?} {file:?}");
        }
    }
}

#[test]
fn columns_of_a_stream_that_the_model_does_not_have_stay_packed() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &[]);
    let predicted = |batch: &RecordBatch, damage: &dyn Fn(&mut Vec<u8>)| {
        let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        writer.write(batch).unwrap();
        let mut bytes = writer.into_inner().unwrap();
        damage(&mut bytes);
        let mut command = enn();
        command.arg("predict").arg(&run).args(["--data", "-", "--out", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success());
        StreamReader::try_new(done.stdout.as_slice(), None).unwrap().next().unwrap().unwrap()
    };
    let plain = batch(0, 40);
    let expected = predicted(&plain, &|_| ());
    assert_eq!(expected.num_rows(), 40);
    // Before, between and behind its own: texts, categories, and numbers in a list.
    let texts = Arc::new(StringArray::from(vec!["x".repeat(1000); 40])) as Arc<dyn Array>;
    let words: DictionaryArray<Int32Type> = (0..40).map(|_| Some("word")).collect();
    let lists = ListArray::from_iter_primitive::<Float64Type, _, _>((0..40).map(|_| Some(vec![Some(0.5); 3])));
    let mut columns = vec![("texts", texts, false), ("words", Arc::new(words) as Arc<dyn Array>, false)];
    let schema = plain.schema();
    columns.extend(schema.fields().iter().zip(plain.columns()).map(|(f, own)| (f.name().as_str(), own.clone(), true)));
    columns.insert(4, ("lists", Arc::new(lists), false));
    let wide = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    // Nobody has the room that the texts say they take.
    let absurd = |bytes: &mut Vec<u8>| {
        let at = bytes.windows(8).position(|eight| eight == 40_000_i64.to_le_bytes()).unwrap();
        bytes[at..at + 8].copy_from_slice(&(1_i64 << 46).to_le_bytes());
    };
    assert_eq!(predicted(&wide, &absurd), expected);
}

#[test]
fn a_killed_stream_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &[]);
    let left = || -> Vec<String> {
        let entries = fs::read_dir(run.join("predictions")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with(".stream")).collect()
    };
    for signal in [Signal::SIGKILL, Signal::SIGINT] {
        let mut command = enn();
        command.arg("predict").arg(&run).args(["--data", "-", "--out", "-"]).process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut questions = StreamWriter::try_new(child.stdin.take().unwrap(), &batch(0, 1).schema()).unwrap();
        questions.write(&batch(0, 5)).unwrap();
        questions.flush().unwrap();
        let mut answers = StreamReader::try_new(child.stdout.take().unwrap(), None).unwrap();
        assert_eq!(answers.next().unwrap().unwrap().num_rows(), 5);
        assert_eq!(left().len(), 1, "it is at work");
        // As a terminal does: all of its process group.
        killpg(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        assert!(!child.wait().unwrap().success());
        let deadline = Instant::now() + GONE_MAX;
        while !left().is_empty() {
            assert!(Instant::now() < deadline, "after {signal}: {:?}", left());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_stream_that_is_not_like_the_training_data_ends_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &[]);
    let column = Arc::new(Float64Array::from(vec![1.0])) as Arc<dyn Array>;
    let wrong = RecordBatch::try_from_iter([("z", column)]).unwrap();
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::try_new(&mut bytes, &wrong.schema()).unwrap();
    writer.write(&wrong).unwrap();
    writer.finish().unwrap();
    drop(writer);
    for (bytes, expected) in
        [(bytes.as_slice(), "has no column"), (&b"no arrow at all, but text\n"[..], "Arrow stream")]
    {
        let mut command = enn();
        command.arg("predict").arg(&run).args(["--data", "-", "--out", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It may end before it has read everything.
        let _ = child.stdin.take().unwrap().write_all(bytes);
        let done = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && told.contains(expected), "{told}");
        assert!(done.stdout.is_empty());
    }
    // A stream without rows is answered by one without rows.
    let mut empty = Vec::new();
    StreamWriter::try_new(&mut empty, &batch(0, 1).schema()).unwrap().finish().unwrap();
    let mut command = enn();
    command.arg("predict").arg(&run).args(["--data", "-", "--out", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&empty).unwrap();
    let done = child.wait_with_output().unwrap();
    let answers = StreamReader::try_new(done.stdout.as_slice(), None).unwrap();
    assert_eq!(answers.schema().fields().len(), 3);
    assert!(done.status.success() && answers.count() == 0);
}

/// As `enn predict` of a table does, a stream names the series that have no history, and gives the others their numbers.
#[test]
fn a_stream_names_series_without_history() {
    let dir = tempfile::tempdir().unwrap();
    let run = data::trained_on(enn(), &data::write_windows(dir.path(), "waves"), &[]);
    let strings = |values: Vec<&str>| Arc::new(StringArray::from(values)) as Arc<dyn Array>;
    let batch = |series: &[&str]| {
        let all = || (0..8).flat_map(|step| series.iter().map(move |who| (step, *who)));
        let whens = Arc::new(Int64Array::from_iter_values(all().map(|(step, _)| step * 3600))) as Arc<dyn Array>;
        let values =
            Arc::new(Float64Array::from_iter_values(all().map(|(step, _)| step as f64 / 8.0))) as Arc<dyn Array>;
        let columns = [("who", strings(all().map(|(_, who)| who).collect())), ("when", whens), ("v", values)];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let mut bytes = Vec::new();
    let mut questions = StreamWriter::try_new(&mut bytes, &batch(&["a"]).schema()).unwrap();
    for series in [&["a"][..], &["a", "b"], &["b"]] {
        questions.write(&batch(series)).unwrap();
    }
    questions.finish().unwrap();
    drop(questions);
    let mut command = enn();
    command.arg("predict").arg(&run).args(["--data", "-", "--out", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let answers = StreamReader::try_new(child.stdout.take().unwrap(), None).unwrap();
    let told = answers.map(|answer| {
        let answer = answer.unwrap();
        assert_eq!(answer.num_rows(), 1);
        let names: Vec<String> = answer.schema_ref().fields().iter().map(|field| field.name().clone()).collect();
        let there = |series: &str| {
            let own = names.iter().enumerate().filter(|(_, name)| name.starts_with(series));
            let cells: Vec<bool> = own.map(|(at, _)| answer.column(at).is_valid(0)).collect();
            assert!(cells.len() == 4 && cells.iter().all(|cell| *cell == cells[0]), "{cells:?}");
            cells[0]
        };
        let failed = answer.column_by_name("failed").unwrap().as_string::<i32>();
        (there("a."), there("b."), failed.is_valid(0).then(|| failed.value(0).to_owned()))
    });
    let without = |series: &str| Some(format!("no history, and so no numbers, of {series}"));
    assert_eq!(
        told.collect::<Vec<_>>(),
        [(true, false, without("b")), (true, true, None), (false, true, without("a"))]
    );
    assert!(child.wait().unwrap().success());
}
