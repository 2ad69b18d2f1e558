use super::*;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::RowAccessor;
use enn_common::{
    artifact::{
        chunk::{self, ChunkExtent},
        prediction::{ModelDigest, OutputAxis, PredictionManifest, manifest_path},
        run::RunManifest,
    },
    config::train::Precision,
    fs::mmap::bytes_of,
    staged::{
        ArrayName, StagedMeta,
        meta::{CleaningReport, Stats},
        reader::NpyMap,
        writer::StagedWriter,
    },
};
use std::{collections::BTreeMap, fs, path::Path, path::PathBuf};

const ROWS: u64 = 25;

/// Ids go down, so that a sort by id would be seen.
fn id(row: u64) -> i64 {
    1000 - 3 * row as i64
}

fn value(row: u64, cell: u64) -> f32 {
    row as f32 + cell as f32 / 16.0
}

fn staged(out: &Path) -> PathBuf {
    let meta = StagedMeta {
        version: 1,
        digest: "ab".repeat(32),
        rows: ROWS,
        features: vec![],
        out_shape: vec![2, 3],
        out_labels: vec![vec!["EWR".into(), "JFK".into()], vec!["00h".into(), "01h".into(), "02h".into()]],
        units: "°F".into(),
        persistence: None,
        has_targets: false,
        has_classes: false,
        class_form: None,
        has_weights: false,
        split_rows: [0, 0, ROWS],
        sources: vec![],
        row_names: (0..ROWS).map(|row| format!("2013-01-{:02}", row + 1)).collect(),
        x_stats: vec![],
        y_stats: vec![Stats { n: 1, mean: 0.0, std: 1.0, min: 0.0, max: 0.0 }; 6],
        report: CleaningReport::default(),
    };
    let writer = StagedWriter::create(out).unwrap();
    let ids: Vec<i64> = (0..ROWS).map(id).collect();
    for (name, inner, bytes) in [
        (ArrayName::X, &[0][..], vec![]),
        (ArrayName::XMask, &[0], vec![]),
        (ArrayName::RowId, &[], bytes_of(&ids).to_vec()),
        (ArrayName::Split, &[], vec![2; 25]),
    ] {
        let array = writer.array(name, inner).unwrap();
        array.write_rows(0, &bytes).unwrap();
        array.finish(ROWS).unwrap();
    }
    writer.finish(&meta).unwrap()
}

/// Writes the chunk of rows [start, end) and notes it.
fn predict(partial: &Path, ledger: &mut Ledger, (start, end): (u64, u64)) {
    let values: Vec<f32> = (start..end).flat_map(|row| (0..6).map(move |cell| value(row, cell))).collect();
    let ids: Vec<i64> = (start..end).map(id).collect();
    let status = vec![0; ids.len()];
    let rows = chunk::ChunkRows { values: &values, ids: &ids, status: &status };
    let written = chunk::write(partial, ChunkExtent { start, end, out_shape: &[2, 3] }, rows).unwrap();
    ledger.record(start, end, &written.blake3).unwrap();
}

fn header() -> Header {
    Header { checkpoint: "c".into(), data: "d".into(), chunk_rows: 10, precision: Precision::Fp32 }
}

fn request<'a>(output: &'a Path, staged: &'a Path) -> Request<'a> {
    let checkpoint = ModelDigest { run: "weather".into(), step: 7, blake3: "00".into() };
    Request {
        output,
        replace: false,
        staged,
        checkpoint,
        levels: &[],
        point: false,
        axes: vec![OutputAxis { column: Some("site".to_owned()), ..OutputAxis::default() }],
        versions: BTreeMap::new(),
        wall_time: 1.0,
    }
}

/// All chunks, out of order.
fn all_chunks(output: &Path) -> Ledger {
    let partial = partial_dir(output);
    let mut ledger = Ledger::open(&partial, &header()).unwrap();
    for rows in [(20, 25), (0, 10), (10, 20)] {
        predict(&partial, &mut ledger, rows);
    }
    ledger
}

#[test]
fn chunks_become_one_parquet_file_in_source_order() {
    let dir = tempfile::tempdir().unwrap();
    let staged = staged(&dir.path().join("staged"));
    let output = dir.path().join("tomorrow.parquet");
    let ledger = all_chunks(&output);
    let mut seen = Vec::new();
    let gathered = predictions(&request(&output, &staged), &ledger, &mut |rows| seen.push(rows)).unwrap();
    assert_eq!((gathered.rows, gathered.non_finite, seen), (ROWS, 0, vec![10, 20, 25]));

    let reader = SerializedFileReader::try_from(output.as_path()).unwrap();
    let groups: Vec<i64> = reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
    assert_eq!(groups, [7, 7, 7, 4], "not those of the chunks");
    let schema = reader.metadata().file_metadata().schema_descr();
    let names: Vec<&str> = schema.columns().iter().map(|column| column.name()).collect();
    assert_eq!(
        names,
        ["row_id", "row_name", "EWR.00h", "EWR.01h", "EWR.02h", "JFK.00h", "JFK.01h", "JFK.02h", "failed"]
    );
    for (row, found) in reader.get_row_iter(None).unwrap().enumerate() {
        let row = row as u64;
        let found = found.unwrap();
        assert_eq!(found.get_long(0).unwrap(), id(row));
        assert_eq!(found.get_string(1).unwrap(), &format!("2013-01-{:02}", row + 1));
        for cell in 0..6 {
            assert_eq!(found.get_float(2 + cell as usize).unwrap(), value(row, cell));
        }
    }
    let manifest = PredictionManifest::read(&manifest_path(&output)).unwrap();
    assert_eq!(manifest.axes, [OutputAxis { column: Some("site".to_owned()), ..OutputAxis::default() }]);
    assert_eq!((manifest.rows, manifest.chunks.len(), manifest.units.as_str()), (ROWS, 3, "°F"));
    assert_eq!(manifest.files[0].blake3, blake3::hash(&fs::read(&output).unwrap()).to_hex().as_str());
    assert!(!partial_dir(&output).exists());
}

#[test]
fn an_arrow_file_and_text_say_what_a_parquet_file_says() {
    let dir = tempfile::tempdir().unwrap();
    let staged = staged(&dir.path().join("staged"));
    let made = |name: &str| {
        let output = dir.path().join(name);
        let ledger = all_chunks(&output);
        predictions(&request(&output, &staged), &ledger, &mut |_| {}).unwrap();
        let manifest = PredictionManifest::read(&manifest_path(&output)).unwrap();
        assert_eq!(manifest.files[0].blake3, blake3::hash(&fs::read(&output).unwrap()).to_hex().as_str());
        output
    };
    let reader = ::parquet::arrow::arrow_reader::ParquetRecordBatchReader::try_new(
        fs::File::open(made("told.parquet")).unwrap(),
        ROWS as usize,
    );
    let expected = reader.unwrap().next().unwrap().unwrap();
    let reader = arrow_ipc::reader::FileReader::try_new(fs::File::open(made("told.arrow")).unwrap(), None).unwrap();
    let schema = reader.schema();
    let batches = reader.collect::<Result<Vec<_>, _>>().unwrap();
    let found = arrow_select::concat::concat_batches(&schema, &batches).unwrap();
    assert_eq!(found.columns(), expected.columns());
    assert_eq!(schema.metadata()["units"], "°F");

    let text = fs::read_to_string(made("told.csv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some("row_id,row_name,EWR.00h,EWR.01h,EWR.02h,JFK.00h,JFK.01h,JFK.02h,failed"),
        "the columns of the others"
    );
    for (row, line) in (0..).zip(lines.by_ref()) {
        let values: Vec<String> = (0..6).map(|cell| value(row, cell).to_string()).collect();
        let numbers: Vec<f32> = line.split(',').skip(2).take(6).map(|cell| cell.parse().unwrap()).collect();
        assert!(line.starts_with(&format!("{},2013-01-{:02},", id(row), row + 1)) && line.ends_with(','), "{line}");
        assert!((0..6).all(|cell| numbers[cell as usize] == value(row, cell)), "{line} beside {values:?}");
    }
    assert_eq!(text.lines().count(), 26);
}

#[test]
fn a_name_without_extension_is_a_directory_of_arrays() {
    let dir = tempfile::tempdir().unwrap();
    let staged = staged(&dir.path().join("staged"));
    let output = dir.path().join("out");
    predictions(&request(&output, &staged), &all_chunks(&output), &mut |_| {}).unwrap();
    let found = NpyMap::open(&output.join("pred.npy")).unwrap();
    assert_eq!(found.header().shape, [25, 2, 3]);
    assert_eq!(found.numbers::<f32>().unwrap()[24 * 6 + 5], value(24, 5));
    assert_eq!(NpyMap::open(&output.join("row_id.npy")).unwrap().numbers::<i64>().unwrap()[24], id(24));
    assert_eq!(PredictionManifest::read(&output.join("manifest.json")).unwrap().files.len(), 3);

    // The same again: refused, and replaced when that is wanted.
    let again = all_chunks(&output);
    let refused = predictions(&request(&output, &staged), &again, &mut |_| {}).unwrap_err();
    assert!(matches!(refused, GatherError::Exists { .. }), "{refused}");
    let replace = Request { replace: true, ..request(&output, &staged) };
    predictions(&replace, &again, &mut |_| {}).unwrap();
    assert!(PredictionManifest::read(&output.join("manifest.json")).is_ok());

    // What somebody else put there is not removed with it.
    std::fs::write(output.join("thesis.txt"), "years").unwrap();
    let error = predictions(&replace, &all_chunks(&output), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("out/thesis.txt"), "{error}");
    assert_eq!(std::fs::read_to_string(output.join("thesis.txt")).unwrap(), "years");
}

#[test]
fn the_rows_to_predict_and_what_is_of_another_kind_are_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows.csv");
    let link = dir.path().join("link.csv");
    std::fs::write(&rows, "x").unwrap();
    std::os::unix::fs::symlink(&rows, &link).unwrap();
    for output in [&rows, &link] {
        let refused = writable(output, true, std::slice::from_ref(&rows)).unwrap_err();
        assert!(matches!(refused, GatherError::Input { .. }), "{refused}");
    }
    assert_eq!(writable(&rows, true, &[]).unwrap(), Format::Csv);
    std::fs::create_dir(dir.path().join("a.parquet")).unwrap();
    std::fs::write(dir.path().join("notes"), "x").unwrap();
    for other in ["a.parquet", "notes"] {
        let refused = writable(&dir.path().join(other), true, &[]).unwrap_err();
        assert!(matches!(refused, GatherError::Displace(_)), "{refused}");
    }
}

/// One chunk of all rows with the quantiles 0.1, 0.5, 0.9 of each cell; row 3 has no prediction.
fn quantiles(output: &Path) -> Ledger {
    let partial = partial_dir(output);
    let mut ledger = Ledger::open(&partial, &header()).unwrap();
    let number = |row: u64, level: u64, cell: u64| if row == 3 { f32::NAN } else { value(row, cell) + level as f32 };
    let cells = |row: u64, level: u64| (0..6).map(move |cell| number(row, level, cell));
    let values: Vec<f32> = (0..ROWS).flat_map(|row| (0..3).flat_map(move |level| cells(row, level))).collect();
    let ids: Vec<i64> = (0..ROWS).map(id).collect();
    let mut status = vec![0; ROWS as usize];
    status[3] = chunk::RowStatus::NoInput as u8;
    let rows = chunk::ChunkRows { values: &values, ids: &ids, status: &status };
    let written = chunk::write(&partial, ChunkExtent { start: 0, end: ROWS, out_shape: &[3, 2, 3] }, rows).unwrap();
    ledger.record(0, ROWS, &written.blake3).unwrap();
    ledger
}

#[test]
fn quantiles_and_failed_rows_are_told_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let staged = staged(&dir.path().join("staged"));
    let output = dir.path().join("a.parquet");
    let levels = [0.1, 0.5, 0.9];
    let request = |output| Request { levels: &levels, ..request(output, &staged) };
    let gathered = predictions(&request(&output), &quantiles(&output), &mut |_| {}).unwrap();
    let reason = "no input is valid".to_owned();
    assert_eq!(gathered.failed, BTreeMap::from([(reason.clone(), 1)]));
    let manifest = PredictionManifest::read(&manifest_path(&output)).unwrap();
    assert_eq!((manifest.failed, manifest.levels, manifest.columns.len()), (gathered.failed, levels.to_vec(), 6));
    let reader = SerializedFileReader::try_from(output.as_path()).unwrap();
    let schema = reader.metadata().file_metadata().schema_descr();
    let names: Vec<&str> = schema.columns().iter().map(|column| column.name()).collect();
    assert_eq!(
        names[2..10],
        ["EWR.00h", "EWR.01h", "EWR.02h", "JFK.00h", "JFK.01h", "JFK.02h", "EWR.00h@0.1", "EWR.00h@0.9"]
    );
    assert_eq!((names.len(), names[20]), (21, "failed"));
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows[5].get_float(7).unwrap(), value(5, 5) + 1.0, "the median is the prediction");
    assert_eq!((rows[5].get_float(8).unwrap(), rows[5].get_float(9).unwrap()), (value(5, 0), value(5, 0) + 2.0));
    assert!(rows[5].get_string(20).is_err() && rows[3].get_float(2).is_err(), "null");
    assert_eq!(rows[3].get_string(20).unwrap(), &reason);

    let output = dir.path().join("b");
    predictions(&request(&output), &quantiles(&output), &mut |_| {}).unwrap();
    let open = |name: &str| NpyMap::open(&output.join(name)).unwrap();
    assert_eq!(open("pred.npy").numbers::<f32>().unwrap()[5 * 6], value(5, 0) + 1.0);
    assert_eq!(open("levels.npy").header().shape, [25, 3, 2, 3]);
    assert_eq!(open("levels.npy").numbers::<f32>().unwrap()[5 * 18 + 12], value(5, 0) + 2.0);
    assert_eq!(open("level.npy").numbers::<f64>().unwrap(), levels);
    assert_eq!(open("status.npy").data()[2..5], [0, 1, 0]);
    assert!(PredictionManifest::read(&output.join("manifest.json")).is_ok());
    let arrays = Arrays::read(&output).unwrap();
    assert_eq!((&arrays.out_shape[..], &arrays.levels[..], arrays.row_ids[24]), (&[2, 3][..], &levels[..], id(24)));
    assert_eq!((arrays.row(5)[0], arrays.quantiles[5 * 18 + 12]), (value(5, 0) + 1.0, value(5, 0) + 2.0));
    assert_eq!(arrays.status[2..4], [chunk::RowStatus::Predicted, chunk::RowStatus::NoInput]);

    let output = dir.path().join("c.csv");
    predictions(&request(&output), &quantiles(&output), &mut |_| {}).unwrap();
    let text = fs::read_to_string(&output).unwrap();
    let expected = format!("{},2013-01-04{}no input is valid", id(3), ",".repeat(19));
    assert_eq!(text.lines().nth(4), Some(expected.as_str()));

    // The predictions alone, where they are all that is asked for.
    let output = dir.path().join("point");
    let gathered = predictions(&Request { point: true, ..request(&output) }, &quantiles(&output), &mut |_| {}).unwrap();
    assert_eq!((gathered.files, gathered.failed), (4, BTreeMap::from([(reason, 1)])));
    assert_eq!(NpyMap::open(&output.join("pred.npy")).unwrap().numbers::<f32>().unwrap()[5 * 6], value(5, 0) + 1.0);
    assert_eq!(PredictionManifest::read(&output.join("manifest.json")).unwrap().levels, Vec::<f64>::new());

    // Chunks of a model that predicts points are not those of one that predicts quantiles.
    let output = dir.path().join("c.parquet");
    let refused = predictions(&request(&output), &all_chunks(&output), &mut |_| {}).unwrap_err();
    assert!(matches!(refused, GatherError::OtherData { what: "the shape of a prediction", .. }), "{refused}");
}

#[test]
fn every_row_must_be_there_once_and_be_the_right_one() {
    let dir = tempfile::tempdir().unwrap();
    let staged = staged(&dir.path().join("staged"));
    let output = dir.path().join("a.parquet");
    let partial = partial_dir(&output);
    let mut ledger = Ledger::open(&partial, &header()).unwrap();
    predict(&partial, &mut ledger, (0, 10));
    predict(&partial, &mut ledger, (20, 25));
    let refused = |ledger: &Ledger| predictions(&request(&output, &staged), ledger, &mut |_| {}).unwrap_err();
    assert!(refused(&ledger).to_string().starts_with("rows 10..20 of 25 were not predicted"));
    predict(&partial, &mut ledger, (9, 20));
    assert!(matches!(refused(&ledger), GatherError::Twice { start: 9, .. }));

    let mut ledger = Ledger::open(&partial, &Header { data: "other".into(), ..header() }).unwrap();
    assert_eq!(ledger.done(), [], "chunks of other data do not count");
    let rows = chunk::ChunkRows { values: &[0.0; 150], ids: &[7; 25], status: &[0; 25] };
    let written = chunk::write(&partial, ChunkExtent { start: 0, end: 25, out_shape: &[2, 3] }, rows).unwrap();
    ledger.record(0, 25, &written.blake3).unwrap();
    assert!(matches!(refused(&ledger), GatherError::OtherData { what: "the identity of a row", .. }));
    assert!(!output.exists() && !manifest_path(&output).exists());
    assert!(matches!(Format::of(Path::new("a.xlsx")), Err(GatherError::Format { .. })));
}

#[test]
fn a_broken_prediction_is_taken_up_where_it_ended() {
    let dir = tempfile::tempdir().unwrap();
    let partial = partial_dir(&dir.path().join("a.parquet"));
    let mut ledger = Ledger::open(&partial, &header()).unwrap();
    for rows in [(0, 10), (10, 20), (20, 25)] {
        predict(&partial, &mut ledger, rows);
    }
    drop(ledger);
    // One chunk damaged, one line torn.
    let victim = chunk::path(&partial, 10, 20);
    let mut bytes = fs::read(&victim).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&victim, bytes).unwrap();
    let path = partial.join("ledger.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 5]).unwrap();
    let mut ledger = Ledger::open(&partial, &header()).unwrap();
    assert_eq!(ledger.done(), [(0, 10)]);
    predict(&partial, &mut ledger, (10, 20));
    assert_eq!(Ledger::open(&partial, &header()).unwrap().done(), [(0, 10), (10, 20)]);
}

#[test]
fn the_run_manifest_names_every_file_but_the_staged_ones() {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in [("run.json", "{}"), ("logs/0/0/stdout.log", "hello"), ("staged/x.npy", "x"), (".tmp", "t")] {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    run_manifest(dir.path(), RunInfo { run: "r".into(), ..RunInfo::default() }).unwrap();
    let found = RunManifest::read(dir.path()).unwrap();
    let paths: Vec<&str> = found.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["logs/0/0/stdout.log", "run.json"]);
    assert_eq!(found.files[0].blake3, blake3::hash(b"hello").to_hex().as_str());
}
